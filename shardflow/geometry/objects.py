"""Boxes, their masks and keypoints: their positions in the crops of their images, and the rule for which boxes stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from shardflow._validation import check_probability, check_switch

from .crops import Crops
from .segment_masks import segment_mask

Array: TypeAlias = "npt.NDArray[Any]"

BOXES, KEYPOINTS = "boxes", "keypoints"

FlipPairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CroppedBoxes:
    """The field "boxes", with a rule for the boxes that stay; the name "boxes" means `CroppedBoxes()`.

    Boxes are clipped to the crop. A box is dropped, with its fields and keypoints, if too little of it is left, or if
    it marks a crowd: its field "iscrowd", as in COCO, is not 0.

    >>> fields = ("image", shardflow.annotations.CroppedBoxes(min_visibility=0.25), "box_labels")

    Args:
        min_visibility: Minimum share of a box that must lie within the crop, 0 … 1: the area of the clipped box divided
            by the area of the whole box, as in Albumentations. 0 drops only boxes without an area in the crop. None
            keeps all boxes; a box outside the crop then becomes a line or a point on its border.
        crowds: Whether crowd boxes stay, for an evaluation that ignores detections in them.

    Raises:
        ConfigError: A value is out of its range.
    """

    min_visibility: float | None = 0.0
    crowds: bool = False

    def __post_init__(self) -> None:
        if self.min_visibility is not None:
            check_probability("min_visibility", self.min_visibility)
        check_switch("crowds", self.crowds)


def move_objects(
    columns: Mapping[str, Sequence[Array]], crops: Crops, rule: CroppedBoxes, flip_pairs: FlipPairs = ()
) -> dict[str, list[Array]]:
    """Return boxes, their fields and keypoints in the coordinates of the crops of a batch.

    Args:
        columns: Field → one array per image: "boxes" float32 [N, 4], left, top, right, bottom, and "keypoints" float32
            [N, K, 2 or 3] or [K, 2 or 3], in pixels of the source images; any other name is a field of the boxes, [N],
            or their masks: segments, object [N], or uint8 [N, H, W]. Without boxes, nothing is dropped.
        crops: The crops.
        rule: The rule for the boxes that stay.
        flip_pairs: Keypoints that are swapped when an image is mirrored, see `Keypoints`.
    """
    moved: dict[str, list[Array]] = {}
    kept: Sequence[Array] | None = None
    if BOXES in columns:
        counts = [len(each) for each in columns[BOXES]]
        rows = np.repeat(np.arange(len(counts)), counts)
        boxes = move_boxes(np.concatenate(columns[BOXES]), crops, rows)
        inside = clip_boxes(boxes, crops.extents[rows])
        rounded = inside.astype(np.float32)
        is_kept = np.ones(len(boxes), dtype=np.bool_)
        if rule.min_visibility is not None:
            is_kept = (_areas(inside) >= rule.min_visibility * _areas(boxes)) & (_areas(rounded) > 0)
        kept = _split(is_kept, counts)
        for field, arrays in columns.items():
            if field == BOXES:
                arrays = _split(rounded, counts)
            if field != KEYPOINTS:
                own = zip(arrays, kept, strict=True)
                moved[field] = [_crop_masks(each[is_kept], crops, row) for row, (each, is_kept) in enumerate(own)]
    if KEYPOINTS in columns:
        points = _move_keypoints(columns[KEYPOINTS], crops, flip_pairs)
        if kept is not None and points[0].ndim == 3:
            points = [each[is_kept] for each, is_kept in zip(points, kept, strict=True)]
        moved[KEYPOINTS] = points
    return moved


def _crop_masks(values: Array, crops: Crops, index: int) -> Array:
    """Return the masks of the boxes of image `index` in its crop, uint8 [N, H, W]; other values unchanged."""
    if values.dtype == object:
        width, height = crops.extents[index].tolist()
        masks = np.empty((len(values), height, width), dtype=np.uint8)
        for mask, segment in zip(masks, values, strict=True):
            mask[:] = segment_mask(segment, crops, index)
        return masks
    if values.ndim == 3:
        return np.ascontiguousarray(crops.crop_mask(index, values.transpose(1, 2, 0)).transpose(2, 0, 1))
    return values


def move_boxes(boxes: Array, crops: Crops, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return boxes of source images, [N, 4], in the coordinates of the crops, not clipped; `rows` are their images."""
    corners = crops.move(boxes.astype(np.float64).reshape(-1, 2), rows.repeat(2)).reshape(-1, 2, 2)
    corners.sort(axis=1)  # a flip makes the right side the left one
    return corners.reshape(-1, 4)


def clip_boxes(boxes: npt.NDArray[np.float64], extents: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """Return boxes clipped to images from (0, 0) to their extents, [N, 2]."""
    return boxes.clip(0, np.tile(extents, 2))


def _areas(boxes: Array) -> Array:
    areas: Array = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return areas


def _move_keypoints(points: Sequence[Array], crops: Crops, flip_pairs: FlipPairs) -> list[Array]:
    """Return the keypoints of each sample, [..., K, 2 or 3], in its crop; points of visibility 0 do not move."""
    flat = [each.reshape(-1, each.shape[-1]) for each in points]
    rows = np.repeat(np.arange(len(flat)), [len(each) for each in flat])
    xy = np.concatenate([each[:, :2] for each in flat]).astype(np.float64)
    moved = _split(crops.move(xy, rows).astype(np.float32), [len(each) for each in flat])
    for own, to in zip(flat, moved, strict=True):
        if own.shape[1] == 3:
            is_absent = own[:, 2] == 0
            to[is_absent] = own[is_absent, :2]
    found = [
        np.concatenate([to, own[:, 2:]], axis=1).reshape(each.shape)
        for each, own, to in zip(points, flat, moved, strict=True)
    ]
    if flip_pairs:
        left, right = (list(numbers) for numbers in zip(*flip_pairs, strict=True))
        for each, is_flipped in zip(found, crops.flip.tolist(), strict=True):
            if is_flipped and each.size:
                each[..., left + right, :] = each[..., right + left, :]
    return found


def _split(values: Array, counts: Sequence[int]) -> list[Array]:
    ends = np.cumsum(counts).tolist()
    return [values[end - count : end] for end, count in zip(ends, counts, strict=True)]
