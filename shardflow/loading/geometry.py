"""The geometry of crops: how each image of a batch was cropped, so that masks, boxes and keypoints can follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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

    A mask follows by the same four steps, resized to the nearest pixel.

    Attributes:
        box: int32 [B, 4]: x, y, width, height in pixels of the source image.
        resized: int32 [B, 2]: width and height of the resized box.
        window: int32 [B, 2]: left and top of the window in the resized box.
        flip: bool [B], whether the window is mirrored.
        size: Width and height of the output.
    """

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

    def copy_row(self, index: int, source: Geometry, row: int) -> None:
        """Replace the geometry of image `index` by that of image `row` of another batch, or of this one."""
        self.box[index], self.resized[index] = source.box[row], source.resized[row]
        self.window[index], self.flip[index] = source.window[row], source.flip[row]
