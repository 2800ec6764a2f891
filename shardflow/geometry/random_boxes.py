"""Random boxes with torchvision's distribution: in numpy on the host, and equally in torch on a device.

The functions take the module of their arrays, `np` or `torch`. No branch depends on a value, so nothing waits for the
device, and a compiled graph has no breaks.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow.order import keyed_rng

from .crops import Sizes

TRIES = 10
"""Number of sizes that are drawn to find one that fits into the image, as in torchvision."""

Range = tuple[float, float]


def random_resized_crops(
    sizes: Sizes, keys: keyed_rng.U64, scale: Range, ratio: Range
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """Return a box per image, int32 [N, 4], and a uniform number in [0, 1) per image for the flip, float64 [N].

    Boxes have the distribution of torchvision's `RandomResizedCrop.get_params`, including its ten tries and central
    fallback. Source: Szegedy et al., "Going deeper with convolutions", 2014.
    """
    drawn = keyed_rng.uniforms(keys, 2 * TRIES + 3)
    width, height = sizes.astype(np.float64).T
    shape = width / height  # the central box is the largest with a ratio within range
    central_w = np.where(shape > ratio[1], np.rint(height * ratio[1]), width)
    central_h = np.where(shape < ratio[0], np.rint(width / ratio[0]), height)
    central = np.maximum(central_w, 1), np.maximum(central_h, 1)
    area, most = (width * height)[:, None], (width[:, None], height[:, None])
    tried = draw_sizes(np, drawn, area, scale, ratio)
    boxes = place_boxes(np, drawn[:, -3:-1], tried, fits_within(tried, most), (width, height), central)
    return boxes.astype(np.int32), drawn[:, -1]


def draw_sizes(xp: ModuleType, uniforms: Any, area: Any, scale: Range, ratio: Range) -> tuple[Any, Any]:
    """Return the two side lengths of random boxes, integral floats [N, TRIES]; `ratio` is first / second."""
    areas = area * (scale[0] + uniforms[:, :TRIES] * (scale[1] - scale[0]))
    low, high = math.log(ratio[0]), math.log(ratio[1])
    ratios = xp.exp(low + uniforms[:, TRIES : 2 * TRIES] * (high - low))
    return xp.round(xp.sqrt(areas * ratios)), xp.round(xp.sqrt(areas / ratios))


def fits_within(tried: tuple[Any, Any], size: tuple[Any, Any]) -> Any:
    """Return which sizes (width, height) are above 0 and fit into the image: bool [N, TRIES]."""
    return (tried[0] > 0) & (tried[0] <= size[0]) & (tried[1] > 0) & (tried[1] <= size[1])


def first_fit(xp: ModuleType, fits: Any, sizes: tuple[Any, Any]) -> tuple[Any, Any, Any]:
    """Return whether any try fits, bool [N], then both side lengths of the first that does, [N]."""
    first = (fits * 1).argmax(1)
    places = first + TRIES * (xp.cumsum(xp.ones_like(first), 0) - 1)  # made on the arrays' device
    return fits.any(1), sizes[0].reshape(-1)[places], sizes[1].reshape(-1)[places]


def place_boxes(
    xp: ModuleType,
    uniforms: Any,
    tried: tuple[Any, Any],
    fits: Any,
    size: tuple[Any, Any],
    central: tuple[Any, Any],
) -> Any:
    """Return boxes, [N, 4] of x, y, width, height: the first try that fits, anywhere in the image, or the central box.

    `uniforms` is [N, 2]; `tried` and `fits` are [N, TRIES]; `size` and `central` are widths and heights, of the images
    and of the central boxes.
    """
    found, *first = first_fit(xp, fits, tried)
    sides = [xp.where(found, side, own) for side, own in zip(first, central, strict=True)]
    places = [
        xp.where(found, xp.floor(uniforms[:, axis] * (size[axis] - sides[axis] + 1)), (size[axis] - central[axis]) // 2)
        for axis in (0, 1)
    ]
    return xp.stack([*places, *sides], 1)
