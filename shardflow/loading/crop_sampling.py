"""Crop sampling: the random boxes of RandomResizedCrop, for a whole batch at once, from the samples' keys."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from shardflow.order import keyed_rng

from .geometry import Sizes

Boxes = npt.NDArray[np.int32]  # [N, 4]: x, y, width, height in pixels

_TRIES = 10


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
