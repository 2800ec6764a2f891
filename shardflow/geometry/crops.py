"""Crops: which part of each image is shown, at which size, and whether mirrored, so that masks and points follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Sizes = npt.NDArray[np.int64]
"""[N, 2]: width and height in pixels."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crops:
    """How each image of a batch is cropped. The steps, in the native kernel's order:

    1. The box is cut out of the source image.
    2. The box is resized, with antialiasing, to a width and a height.
    3. The output size is cut out of the resized box, at an offset.
    4. If `flip` is set, the output is mirrored from left to right.

    A point (x, y) of the source image, in continuous coordinates (pixel i covers i … i + 1), therefore moves to

        x' = (x - box_x) * resized_width / box_width - offset_x          and, mirrored, to output_width - x'
        y' = (y - box_y) * resized_height / box_height - offset_y

    A mask follows the same four steps, by the nearest pixel. If the resized box is smaller than the output, as for
    whole images of different sizes, the output ends with the box.

    Attributes:
        source: int32 [B, 2]: width and height of the source image.
        box: int32 [B, 4]: x, y, width, height in pixels of the source image.
        resized: int32 [B, 2]: width and height of the resized box.
        offset: int32 [B, 2]: left and top of the output in the resized box.
        flip: bool [B], whether the output is mirrored.
        size: Width and height of the outputs; None if each ends with its resized box.
    """

    source: npt.NDArray[np.int32]
    box: npt.NDArray[np.int32]
    resized: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int32]
    flip: npt.NDArray[np.bool_]
    size: tuple[int, int] | None

    @classmethod
    def of(
        cls,
        sizes: npt.ArrayLike,
        *,
        box: npt.ArrayLike | None = None,
        resized: npt.ArrayLike | None = None,
        offset: npt.ArrayLike | None = None,
        flip: npt.ArrayLike | None = None,
        size: tuple[int, int] | None = None,
    ) -> Crops:
        """Return crops of images of these sizes, [B, 2]; omitted steps do nothing.

        `resized` and `offset` may be one pair for all images.
        """
        source = np.array(sizes, dtype=np.int32)
        boxes, offsets = np.zeros((len(source), 4), dtype=np.int32), np.zeros_like(source)
        boxes[:, 2:] = source
        if box is not None:
            boxes[:] = box
        sides = boxes[:, 2:].copy()  # a copy, as rows may be replaced one by one
        if resized is not None:
            sides[:] = resized
        if offset is not None:
            offsets[:] = offset
        flips = np.zeros(len(source), dtype=np.bool_)
        if flip is not None:
            flips[:] = flip
        return cls(source=source, box=boxes, resized=sides, offset=offsets, flip=flips, size=size)

    @property
    def extents(self) -> npt.NDArray[np.int32]:
        """Width and height of each output, int32 [B, 2]."""
        rest = self.resized - self.offset
        extents: npt.NDArray[np.int32] = rest if self.size is None else np.minimum(rest, np.array(self.size, np.int32))
        return extents

    @property
    def shown(self) -> npt.NDArray[np.float32]:
        """The part of each source image that its output shows: float32 [B, 4], left, top, right, bottom in pixels."""
        across = self.box[:, 2:].astype(np.float64)
        resized = np.maximum(self.resized, 1)
        begins = self.box[:, :2] + self.offset * across / resized
        ends = self.box[:, :2] + (self.offset + self.extents) * across / resized
        return np.concatenate([begins, ends], axis=1).astype(np.float32)

    def crop_mask(self, index: int, mask: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the crop of the mask of image `index`, [H, W] or [H, W, C], by the nearest pixels."""
        x, y, box_width, box_height = self.box[index].tolist()
        width, height = self.resized[index].tolist()
        left, top = self.offset[index].tolist()
        right, bottom = (self.offset[index] + self.extents[index]).tolist()
        columns = x + centres(np.arange(left, right), box_width, width)
        if self.flip[index]:
            columns = columns[::-1]
        rows = y + centres(np.arange(top, bottom), box_height, height)
        cropped: npt.NDArray[Any] = mask[rows].take(columns, axis=1)
        return cropped

    def move(self, points: npt.NDArray[np.float64], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the positions of points of the source images in the outputs, also beyond their borders.

        Args:
            points: float64 [N, 2]: x, y in continuous coordinates.
            rows: int64 [N], the image of each point.
        """
        box = self.box[rows]
        # Multiplication first maps the borders of the box exactly to those of the resized box.
        moved = (points - box[:, :2]) * self.resized[rows] / box[:, 2:] - self.offset[rows]
        flipped = self.flip[rows]
        moved[flipped, 0] = self.extents[rows[flipped], 0] - moved[flipped, 0]
        return moved

    def __getitem__(self, rows: slice | npt.NDArray[np.int64]) -> Crops:
        """Return the crops of some images; a slice shares memory with these crops."""
        return Crops(
            source=self.source[rows],
            box=self.box[rows],
            resized=self.resized[rows],
            offset=self.offset[rows],
            flip=self.flip[rows],
            size=self.size,
        )

    def replace(self, rows: Any, by: Crops) -> None:
        """Replace the crops of `rows`, a slice or numbers, by others of the same output size."""
        for name in ("source", "box", "resized", "offset", "flip"):
            getattr(self, name)[rows] = getattr(by, name)


def centres(pixels: Any, source: Any, resized: Any) -> Any:
    """Return the nearest source pixels of some pixels of a side that was resized from `source` to `resized` pixels.

    These are floor((pixel + 1/2) * source / resized), as in `torch.nn.functional.interpolate` with "nearest-exact".
    Images are resized around the same centres, so a mask does not shift against its image. If a centre lies between two
    pixels, the right one is taken; PyTorch leaves the choice to the rounding of 32-bit floats.

    All arguments are 64-bit integers: of Python, of numpy, or tensors on any device.
    """
    return (2 * pixels + 1) * source // (2 * resized)
