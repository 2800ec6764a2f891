"""The geometry of crops: how each image of a batch was cropped, so that masks, boxes and keypoints can follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Sizes = npt.NDArray[np.int64]  # [N, 2]: width and height in pixels


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Geometry:
    """How each image of a batch was cropped. The steps, in the order in which the native kernel does them:

    1. The box is cut out of the source image.
    2. The box is resized, with antialiasing, to a width and a height.
    3. A window of the output size is cut out of the resized box.
    4. The window is mirrored from left to right, where `flip` says so.

    A point (x, y) of the source image, in continuous coordinates (pixel i covers i … i + 1), therefore moves to

        x' = (x - box_x) * resized_width / box_width - window_left          and, mirrored, to output_width - x'
        y' = (y - box_y) * resized_height / box_height - window_top

    A mask follows by the same four steps, by the pixel at each centre. Where the resized box ends before the window
    does, as of whole images of different sizes, the window ends there too.

    Attributes:
        source: int32 [B, 2]: width and height of the source image.
        box: int32 [B, 4]: x, y, width, height in pixels of the source image.
        resized: int32 [B, 2]: width and height of the resized box.
        window: int32 [B, 2]: left and top of the window in the resized box.
        flip: bool [B], whether the window is mirrored.
        size: Width and height of the output.
    """

    source: npt.NDArray[np.int32]
    box: npt.NDArray[np.int32]
    resized: npt.NDArray[np.int32]
    window: npt.NDArray[np.int32]
    flip: npt.NDArray[np.bool_]
    size: tuple[int, int]

    def crop(
        self, index: int, image: torch.Tensor, resize: Callable[[torch.Tensor, int, int], torch.Tensor]
    ) -> torch.Tensor:
        """Return the crop of image `index` of the batch, [3, H, W]; `resize` takes an image, a height and a width."""
        x, y, box_width, box_height = self.box[index].tolist()
        width, height = self.resized[index].tolist()
        left, top = self.window[index].tolist()
        resized = resize(image[:, y : y + box_height, x : x + box_width], height, width)
        window = resized[:, top : top + self.size[1], left : left + self.size[0]]
        return window.flip(-1) if self.flip[index] else window

    @classmethod
    def identity(cls, sizes: Sizes) -> Geometry:
        """Return the geometry of whole images of these sizes."""
        source = sizes.astype(np.int32)
        nothing = np.zeros_like(source)
        return cls(
            source=source,
            box=np.concatenate([nothing, source], axis=1),
            resized=source.copy(),
            window=nothing,
            flip=np.zeros(len(source), dtype=np.bool_),
            size=tuple(source.max(axis=0).tolist()),
        )

    @property
    def windows(self) -> npt.NDArray[np.int32]:
        """Width and height of each window, int32 [B, 2]."""
        windows: npt.NDArray[np.int32] = np.minimum(self.resized - self.window, np.array(self.size, dtype=np.int32))
        return windows

    @property
    def shown(self) -> npt.NDArray[np.float32]:
        """The part of each source image that its window shows: float32 [B, 4], left, top, right, bottom in pixels."""
        across = self.box[:, 2:].astype(np.float64)
        resized = np.maximum(self.resized, 1)
        begins = self.box[:, :2] + self.window * across / resized
        ends = self.box[:, :2] + (self.window + self.windows) * across / resized
        return np.concatenate([begins, ends], axis=1).astype(np.float32)

    def crop_mask(self, index: int, mask: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the crop of the mask of image `index`, [H, W] or [H, W, C], by the pixels at its centres."""
        x, y, box_width, box_height = self.box[index].tolist()
        width, height = self.resized[index].tolist()
        left, top = self.window[index].tolist()
        window_width, window_height = self.windows[index].tolist()
        columns = x + _nearest(box_width, width, left, window_width)
        if self.flip[index]:
            columns = columns[::-1]
        rows = y + _nearest(box_height, height, top, window_height)
        cropped: npt.NDArray[Any] = mask[rows].take(columns, axis=1)
        return cropped

    def move(self, points: npt.NDArray[np.float64], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return where points of the source images are in the outputs, within or beyond the window.

        Args:
            points: float64 [N, 2]: x, y in continuous coordinates.
            rows: int64 [N], the image of each.
        """
        box = self.box[rows]
        # Multiplied first, so that the borders of the box are exactly those of the resized one.
        moved = (points - box[:, :2]) * self.resized[rows] / box[:, 2:] - self.window[rows]
        flipped = self.flip[rows]
        moved[flipped, 0] = self.windows[rows[flipped], 0] - moved[flipped, 0]
        return moved

    def copy_row(self, index: int, source: Geometry, row: int) -> None:
        """Replace the geometry of image `index` by that of image `row` of another batch, or of this one."""
        for name in ("source", "box", "resized", "window", "flip"):
            getattr(self, name)[index] = getattr(source, name)[row]


def _nearest(source: int, resized: int, first: int, count: int) -> npt.NDArray[np.int64]:
    """Return which of so many source pixels some pixels of the resized side show.

    The one at its centre, floor((pixel + 1/2) * source / resized), as `torch.nn.functional.interpolate` has it with
    "nearest-exact". Images are resized around the same centres, so a mask does not shift beside its image. Where a
    centre lies between two pixels, the right one is shown; PyTorch leaves that to the rounding of 32-bit floats.
    """
    pixels = np.arange(first, first + count, dtype=np.int64)
    shown: npt.NDArray[np.int64] = (2 * pixels + 1) * source // (2 * resized)
    return shown
