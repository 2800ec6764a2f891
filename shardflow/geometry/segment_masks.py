"""Segment masks: which pixels of a crop belong to an object, and segments in the coordinates of a crop.

A pixel belongs to a polygon if its centre does, by the even-odd rule, and to an object if it belongs to one of its
polygons. Polygons are filled at the size of the crop; run-length masks take the nearest pixel, like other masks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from shardflow.formats.segments import Segment

from .crops import Crops

_MOST_CROSSINGS = 1 << 20  # computed at once


def segment_mask(segment: Segment, crops: Crops, index: int) -> npt.NDArray[np.uint8]:
    """Return the mask of an object in the crop of image `index`: uint8 [H, W], 1 inside."""
    if segment.runs is not None:
        return crops.crop_mask(index, segment.run_mask())
    width, height = crops.extents[index].tolist()
    mask = np.zeros((height, width), dtype=np.uint8)
    upright = replace(crops, flip=np.zeros_like(crops.flip))  # mirrored as a mask, for an exact mirror image
    for corners in segment.polygons:
        _fill(mask, upright.move(corners, np.full(len(corners), index)))
    return mask[:, ::-1] if crops.flip[index] else mask


def move_segment(segment: Segment, crops: Crops) -> Segment:
    """Return a segment of image 0 in the coordinates of its crop; polygons may extend beyond the borders."""
    if segment.runs is not None:
        return Segment.of_mask(crops.crop_mask(0, segment.run_mask()))
    moved = [crops.move(corners, np.zeros(len(corners), dtype=np.int64)) for corners in segment.polygons]
    width, height = crops.extents[0].tolist()
    return Segment(polygons=moved, size=(width, height))


def _fill(mask: npt.NDArray[np.uint8], corners: npt.NDArray[np.float64]) -> None:
    """Set the pixels of a mask, [H, W], whose centres are in a polygon, by the edges that cross each row of centres."""
    height, width = mask.shape
    begins = corners - 0.5  # the centres of pixels become integers
    ends = np.roll(begins, -1, axis=0)
    firsts, lasts = (
        np.ceil(pick(begins[:, 1], ends[:, 1])).clip(0, height).astype(np.int64) for pick in (np.minimum, np.maximum)
    )
    edges = np.flatnonzero(firsts < lasts)
    if not len(edges):
        return
    top, bottom = int(firsts[edges].min()), int(lasts[edges].max())
    left, right = np.ceil([begins[:, 0].min(), begins[:, 0].max()]).clip(0, width).astype(np.int64).tolist()
    row = right - left + 1  # one more pixel, for crossings right of the last
    crossed = np.zeros((bottom - top) * row, dtype=np.uint8)
    step = max(1, _MOST_CROSSINGS // (bottom - top))
    for some in (edges[at : at + step] for at in range(0, len(edges), step)):
        counts = lasts[some] - firsts[some]
        edge = np.repeat(some, counts)
        rows = np.arange(len(edge)) - np.repeat(np.cumsum(counts) - counts - firsts[some], counts)
        (x, y), (to_x, to_y) = begins[edge].T, ends[edge].T
        columns = np.ceil(x + (rows - y) * ((to_x - x) / (to_y - y))).clip(left, right).astype(np.int64)
        places = (rows - top) * row + columns - left
        crossed ^= (np.bincount(places, minlength=len(crossed)) & 1).astype(np.uint8)
    inside = np.bitwise_xor.accumulate(crossed.reshape(-1, row), axis=1)
    mask[top:bottom, left:right] |= inside[:, :-1]
