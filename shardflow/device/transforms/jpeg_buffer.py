"""The encoded images of a batch, and crops that are decoded already, side by side in one uint8 tensor.

Each row of the tensor holds one image:

    int64     length of the encoded image in bytes; -1 if the row holds a crop
    uint64    the sample's key, from which the crop is drawn; if the row holds a crop, a hash of its decoder's settings
    bytes     the encoded image, or the crop, uint8 [3, size, size]; the rest is arbitrary

Such a tensor travels like any batch of images. A row is complete by itself, so one can be copied over another.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from shardflow.order.keyed_rng import U64

HEADER_BYTES = 16
STEP_BYTES = 1 << 14
"""Rows are as long as the longest content needs, rounded up to this, so that few sizes of shared memory occur."""
_CROP = -1


class JpegBuffer:
    """A view of such a tensor, to read or to fill.

    Args:
        memory: uint8 [B, `row_bytes`], on the CPU.
    """

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self._bytes = memory.numpy()
        header = self._bytes[:, :HEADER_BYTES]
        self._lengths, self._words = header.view(np.int64)[:, 0], header.view(np.uint64)[:, 1]

    @property
    def is_crop(self) -> npt.NDArray[np.bool_]:
        """Whether a row holds a crop: bool [B]."""
        is_crop: npt.NDArray[np.bool_] = self._lengths == _CROP
        return is_crop

    @property
    def file_keys(self) -> U64:
        """The keys of the encoded images: uint64 [number of encoded images]."""
        return self._words[~self.is_crop]

    @property
    def crop_hashes(self) -> U64:
        """The hashes of the settings of the crops' decoders: uint64 [number of crops]."""
        return self._words[self.is_crop]

    def file(self, index: int) -> torch.Tensor:
        """Return the encoded image of a row: uint8 [length]."""
        return self._memory[index, HEADER_BYTES : HEADER_BYTES + int(self._lengths[index])]

    def put_file(self, index: int, payload: memoryview, key: int) -> None:
        """Write an encoded image and its key into a row."""
        self._lengths[index], self._words[index] = len(payload), key
        self._bytes[index, HEADER_BYTES : HEADER_BYTES + len(payload)] = np.frombuffer(payload, np.uint8)

    def crops(self, size: int) -> torch.Tensor:
        """Return the crops in the order of their rows: uint8 [number of crops, 3, size, size]."""
        contents = self._memory[:, HEADER_BYTES : HEADER_BYTES + 3 * size * size]
        return contents[torch.from_numpy(self.is_crop)].view(-1, 3, size, size)

    def put_crops(self, indexes: npt.NDArray[np.int64], crops: torch.Tensor, crop_hash: int) -> None:
        """Write crops, uint8 [len(indexes), 3, size, size], into the rows `indexes`."""
        self._lengths[indexes], self._words[indexes] = _CROP, crop_hash
        self._bytes[indexes, HEADER_BYTES : HEADER_BYTES + crops[0].numel()] = crops.flatten(1).numpy()


def row_bytes(content_bytes: int) -> int:
    """Return the length of rows whose longest content has this many bytes."""
    return -(-(HEADER_BYTES + content_bytes) // STEP_BYTES) * STEP_BYTES
