"""The geometry of crops: random boxes, and how images were cropped, so that masks, boxes and keypoints can follow."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from shardflow.order import keyed_rng

Boxes = npt.NDArray[np.int32]  # [N, 4]: x, y, width, height in pixels
Sizes = npt.NDArray[np.int64]  # [N, 2]: width and height in pixels

_TRIES = 10


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


def random_resized_crops(
    sizes: Sizes, keys: keyed_rng.U64, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[Boxes, npt.NDArray[np.float64]]:
    """Draw one box per image, distributed as torchvision's `RandomResizedCrop.get_params` draws them.

    Source: Szegedy et al., "Going deeper with convolutions", 2014; the ten tries and the central fallback are
    torchvision's. Also return one uniform number in [0, 1) per image for the flip: float64 [N].
    """
    drawn = keyed_rng.uniforms(keys, 2 * _TRIES + 3)
    width, height = sizes[:, :1].astype(np.float64), sizes[:, 1:].astype(np.float64)
    area = width * height * (scale[0] + drawn[:, :_TRIES] * (scale[1] - scale[0]))
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = np.exp(low + drawn[:, _TRIES : 2 * _TRIES] * (high - low))
    tried_w, tried_h = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (tried_w > 0) & (tried_w <= width) & (tried_h > 0) & (tried_h <= height)
    rows, first = np.arange(len(sizes)), fits.argmax(axis=1)
    central_w, central_h = _central(width[:, 0], height[:, 0], ratio)
    found = fits.any(axis=1)
    w = np.where(found, tried_w[rows, first], central_w)
    h = np.where(found, tried_h[rows, first], central_h)
    space_x, space_y = width[:, 0] - w, height[:, 0] - h
    x = np.where(found, np.floor(drawn[:, -3] * (space_x + 1)), space_x // 2)
    y = np.where(found, np.floor(drawn[:, -2] * (space_y + 1)), space_y // 2)
    return np.stack([x, y, w, h], axis=1).astype(np.int32), drawn[:, -1]


def _central(
    width: npt.NDArray[np.float64], height: npt.NDArray[np.float64], ratio: tuple[float, float]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the size of the largest central box whose ratio is within range."""
    shape = width / height
    w = np.where(shape > ratio[1], np.rint(height * ratio[1]), width)
    h = np.where(shape < ratio[0], np.rint(width / ratio[0]), height)
    return np.maximum(w, 1), np.maximum(h, 1)
