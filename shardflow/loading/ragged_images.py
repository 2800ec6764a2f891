"""Images of different sizes in one piece of memory, whole or cut into the patches of a vision transformer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from shardflow.errors import ConfigError
from shardflow.order.keyed_rng import I64


class RaggedImages:
    """Concatenated images, in memory [C, H, W] each, or patch by patch, [C, patch, patch] each.

    Indexing returns a view of a whole image, but a copy of an image in patches.

    Args:
        sizes: Height and width of each image, int64 [B, 2]; with `patch` multiples of it.
        channels, dtype: Number of channels and dtype of all images.
        allocate: Returns uint8 memory of a shape.
        patch: Height and width of a patch in pixels; None for whole images.

    Attributes:
        memory: The values of all images as bytes, uint8 [bytes].
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
        """Offset of each image in the memory in bytes, and its width and height: int64 [B, 3]."""
        return np.column_stack([self._ends[:-1], self.sizes[:, ::-1]])

    @property
    def patches(self) -> torch.Tensor:
        """The patches of all images, row by row: [T, C·patch²], in order of channel, row, column."""
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
        """Return the rows of an image's patches, [C, H / patch, patch, W / patch], each one element."""
        assert self.patch is not None
        own = self.memory[self._ends[index] : self._ends[index + 1]].numpy()
        height, width = (self.sizes[index] // self.patch).tolist()
        rows = own.view(np.dtype(("V", self.patch * self.dtype.itemsize)))
        moved: npt.NDArray[np.void] = rows.reshape(height, width, self.channels, self.patch).transpose(2, 0, 3, 1)
        return moved


def cut_patches(
    images: Sequence[torch.Tensor], patch: int, allocate: Callable[[tuple[int, ...]], torch.Tensor]
) -> RaggedImages:
    """Return images [C, H, W] in patches; their sizes are multiples of `patch`.

    The images must have one dtype and number of channels.

    Raises:
        ConfigError: A transform returned other sizes, or several dtypes.
    """
    if wrong := [tuple(image.shape) for image in images if image.shape[-1] % patch or image.shape[-2] % patch]:
        raise ConfigError(
            f"an image of shape {wrong[0]} cannot be cut into patches of {patch} pixels; do not resize in transforms"
        )
    if len(kinds := {(image.dtype, len(image)) for image in images}) > 1:
        raise ConfigError(
            f"images of (dtype, channels) {sorted(map(str, kinds))} do not form a batch; return one dtype from "
            "transforms"
        )
    ((dtype, channels),) = kinds
    sizes = np.array([image.shape[-2:] for image in images], dtype=np.int64)
    cut = RaggedImages(sizes, channels, dtype, allocate, patch)
    for index, image in enumerate(images):
        cut[index] = image
    return cut
