"""Rows: the files of a batch, and crops that are finished already, side by side in one uint8 tensor.

    int64     the length of a file in bytes; -1 where a crop follows
    uint64    the sample's key, which the file's crop is drawn from; of a crop, the fingerprint of what made it
    bytes     the file, or the crop, uint8 [3, size, size]; then whatever the memory held

Such a tensor travels like any batch of images, and a row is whole by itself, so that one can stand in for another.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from shardflow.order.keyed_rng import U64

HEAD_BYTES = 16
STEP_BYTES = 1 << 14
"""Rows are as long as the longest needs, rounded up to this, so that shared memory of one size serves most batches."""
_CROP = -1


class Rows:
    """A view of rows, to fill in or to read.

    Args:
        memory: uint8 [B, `row_bytes`].
    """

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self._bytes = memory.numpy()
        head = self._bytes[:, :HEAD_BYTES]
        self._lengths, self._words = head.view(np.int64)[:, 0], head.view(np.uint64)[:, 1]

    @property
    def cropped(self) -> npt.NDArray[np.bool_]:
        """Which rows hold a crop: bool [B]."""
        found: npt.NDArray[np.bool_] = self._lengths == _CROP
        return found

    @property
    def words(self) -> U64:
        """The files' keys, and the fingerprints of what made the crops: uint64 [B]."""
        return self._words

    def file(self, index: int) -> torch.Tensor:
        """Return the file in a row: uint8 [length]."""
        return self._memory[index, HEAD_BYTES : HEAD_BYTES + int(self._lengths[index])]

    def put_file(self, index: int, payload: memoryview, key: int) -> None:
        """Make a file, and the key of its crop, what a row holds."""
        self._lengths[index], self._words[index] = len(payload), key
        self._bytes[index, HEAD_BYTES : HEAD_BYTES + len(payload)] = np.frombuffer(payload, np.uint8)

    def crops(self, size: int) -> torch.Tensor:
        """Return the crops, in the rows' order: uint8 [number of crops, 3, size, size]."""
        contents = self._memory[:, HEAD_BYTES : HEAD_BYTES + 3 * size * size]
        return contents[torch.from_numpy(self.cropped)].view(-1, 3, size, size)

    def put_crops(self, indexes: npt.NDArray[np.int64], crops: torch.Tensor, fingerprint: int) -> None:
        """Make crops, uint8 [len(indexes), 3, size, size], what these rows hold."""
        self._lengths[indexes], self._words[indexes] = _CROP, fingerprint
        self._bytes[indexes, HEAD_BYTES : HEAD_BYTES + crops[0].numel()] = crops.flatten(1).numpy()


def row_bytes(contents_bytes: int) -> int:
    """Return how long rows must be for contents of this many bytes at the most."""
    return -(-(HEAD_BYTES + contents_bytes) // STEP_BYTES) * STEP_BYTES
