"""Images of different sizes in one piece of memory, whole or cut into the patches of a vision transformer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from shardflow.errors import ConfigError
from shardflow.order.keyed_rng import I64


class RaggedImages:
    """Concatenated images, each [C, H, W] in memory, or patch by patch, [C, patch, patch] each.

    Of an image in patches, `images[0]` is a copy.

    Args:
        sizes: Height and width of each, int64 [B, 2]; with `patch` multiples of it.
        channels, dtype: Those of all.
        allocate: Returns uint8 memory.
        patch: Height and width of a patch; None for whole images.

    Attributes:
        memory: uint8, all values.
    """

    def __init__(
        self,
        sizes: I64,
        channels: int,
        dtype: torch.dtype,
        allocate: Callable[[tuple[int, ...]], torch.Tensor],
        patch: int | None = None,
    ) -> None:
        self.sizes, self.channels, self.dtype, self.patch = sizes, channels, dtype, patch
        ends = np.cumsum(sizes.prod(axis=1)) * (channels * dtype.itemsize)
        self._ends = [0, *ends.tolist()]
        self.memory = allocate((self._ends[-1],))

    @property
    def places(self) -> I64:
        """Where each image begins in the memory, its width and its height: int64 [B, 3]."""
        return np.column_stack([self._ends[:-1], self.sizes[:, ::-1]])

    @property
    def patches(self) -> torch.Tensor:
        """The patches of all images, image after image and row after row: [T, C·patch²], channel, row, column."""
        assert self.patch is not None
        return self.memory.view(self.dtype).view(-1, self.channels * self.patch**2)

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> torch.Tensor:
        own = self.memory[self._ends[index] : self._ends[index + 1]]
        if self.patch is not None:
            own = torch.from_numpy(self._rows(index).copy().view(np.uint8).reshape(-1))
        return own.view(self.dtype).view(self.channels, *self.sizes[index].tolist())

    def __setitem__(self, index: int, image: torch.Tensor) -> None:
        if self.patch is None:
            self[index][:] = image
            return
        rows = self._rows(index)
        rows[:] = image.contiguous().view(torch.uint8).numpy().reshape(-1).view(rows.dtype).reshape(rows.shape)

    def _rows(self, index: int) -> npt.NDArray[np.void]:
        """Return the rows of an image's patches, [C, H / patch, patch, W / patch], each to be moved as a whole."""
        assert self.patch is not None
        own = self.memory[self._ends[index] : self._ends[index + 1]].numpy()
        height, width = (self.sizes[index] // self.patch).tolist()
        rows = own.view(np.dtype(("V", self.patch * self.dtype.itemsize)))
        moved: npt.NDArray[np.void] = rows.reshape(height, width, self.channels, self.patch).transpose(2, 0, 3, 1)
        return moved


def cut_patches(
    images: Sequence[torch.Tensor], patch: int, allocate: Callable[[tuple[int, ...]], torch.Tensor]
) -> RaggedImages:
    """Return images [C, H, W], of any sizes that are multiples of `patch` and of one dtype, in patches.

    Raises:
        ConfigError: A transform returned other sizes, or several dtypes.
    """
    if wrong := [tuple(image.shape) for image in images if image.shape[-1] % patch or image.shape[-2] % patch]:
        raise ConfigError(
            f"an image of shape {wrong[0]} does not consist of patches of {patch} pixels; do not resize it"
        )
    if len(kinds := {(image.dtype, len(image)) for image in images}) > 1:
        raise ConfigError(
            f"images of {sorted(map(str, kinds))} do not form a batch; let the transforms return one dtype"
        )
    ((dtype, channels),) = kinds
    sizes = np.array([image.shape[-2:] for image in images], dtype=np.int64)
    cut = RaggedImages(sizes, channels, dtype, allocate, patch)
    for index, image in enumerate(images):
        cut[index] = image
    return cut
