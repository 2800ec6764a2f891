"""Annotation fields: the masks, boxes and keypoints of a batch, which take the crop, resize and flip of its images.

What the parts of a sample mean is declared in the dataset's manifest (`formats.annotations`), and `Geometry` says how a
decoder cropped each image. The coordinates of a batch are moved all at once.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from shardflow._pillow import map_codec_errors, mask_values
from shardflow._validation import check_probability
from shardflow.dataset.sample import Sample
from shardflow.errors import ConfigError, DecodeError, TooLargeError
from shardflow.formats.annotations import Annotations, field_path, mask_field
from shardflow.formats.coordinates import Array, Coordinates, read_coordinates

from .geometry import Geometry

BOXES, KEYPOINTS = "boxes", "keypoints"

_BOX_PREFIX = "box_"
_CROWD = "iscrowd"
"""The field of boxes that marks crowds, by COCO's name."""

_Floats = npt.NDArray[np.float64]
_Tensors = list[torch.Tensor]

FlipPairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CroppedBoxes:
    """The field "boxes", with the rule which of them stay; the name "boxes" alone stands for `CroppedBoxes()`.

    They are clipped to the crop. One of which too little is left is dropped, with its fields and its keypoints, and so
    is one that marks a crowd: whose field "iscrowd", which COCO sets have, is not 0.

    >>> fields = ("image", shardflow.annotations.CroppedBoxes(min_visibility=0.25), "box_labels")  # doctest: +SKIP

    Args:
        min_visibility: Least share of a box that must lie within the crop, 0 … 1: the area of the clipped box by the
            area of the box before this crop, as in Albumentations. With 0, boxes are dropped that have no area in the
            crop. None keeps all boxes; one beside the crop is then a line or a point on its border.
        crowds: Whether boxes of crowds stay, for an evaluation that ignores what is found in them. Such a box is around
            many objects, and is not an example of one.

    Raises:
        ConfigError: It is out of its range.
    """

    min_visibility: float | None = 0.0
    crowds: bool = False

    def __post_init__(self) -> None:
        if self.min_visibility is not None:
            check_probability("min_visibility", self.min_visibility)
        if not isinstance(self.crowds, bool):
            raise ConfigError(f"crowds must be True or False, found {self.crowds!r}")


def field_parts(declared: Annotations) -> dict[str, str]:
    """Return the fields of a batch that a dataset's declaration offers, and the part that each comes from."""
    parts = {mask_field(part): part for part in declared.masks}
    if declared.boxes is not None:
        parts |= dict.fromkeys([BOXES, *map(_box_field, declared.boxes.fields)], declared.boxes.part)
    if declared.keypoints is not None:
        parts[KEYPOINTS] = declared.keypoints.part
    return parts


def _box_field(name: str) -> str:
    return f"{_BOX_PREFIX}{name}"


class AnnotationFields:
    """The fields of a batch that come from the annotations of a dataset: how they are read, and moved.

    Args:
        fields: The fields of a batch; others may be among them.
        declared: What the dataset declares.
        boxes: Which boxes stay.
        max_pixels: Limit of the masks.

    Attributes:
        masks: Field → part.
        objects: The other fields: "boxes", "box_NAME" for its fields, "keypoints".
        boxes: As given.
        flip_pairs: The keypoints that change places where an image is mirrored; None where those of the sources of a
            mix differ, see `of_mix`.
    """

    def __init__(self, fields: Sequence[str], declared: Annotations, boxes: CroppedBoxes, max_pixels: int) -> None:
        masks = {mask_field(part): part for part in declared.masks}
        parts = field_parts(declared)
        self.masks = {field: masks[field] for field in fields if field in masks}
        self.objects = tuple(field for field in fields if field in parts and field not in masks)
        self.boxes, self._max_pixels = boxes, max_pixels
        if _box_field(_CROWD) in self.objects and not boxes.crowds:
            raise ConfigError(
                f"the boxes of crowds are left out, so 'box_{_CROWD}' would be 0 for all boxes; to keep them, give "
                "CroppedBoxes(crowds=True) among the fields, else leave it out"
            )
        self._declared = _needed(declared, self.objects, () if boxes.crowds else (_CROWD,))
        keypoints = self._declared.keypoints
        self.flip_pairs: FlipPairs | None = () if keypoints is None else keypoints.flip_pairs

    @classmethod
    def of_mix(cls, sources: Sequence[AnnotationFields]) -> AnnotationFields:
        """Return those of the first source, for batches that do not say from which source they come."""
        found = copy.copy(sources[0])
        if any(other.flip_pairs != found.flip_pairs for other in sources):
            found.flip_pairs = None
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The fields: masks first."""
        return (*self.masks, *self.objects)

    @property
    def kinds(self) -> dict[str, str]:
        """What each field is, which is equal where samples of several datasets come in one batch."""
        kinds = dict.fromkeys(self.masks, "mask")
        for field in self.objects:
            kinds[field] = field
        if (boxes := self._declared.boxes) is not None:
            for name, path in boxes.fields.items():
                if (field := _box_field(name)) in self.objects:
                    kinds[field] = "float32" if field_path(path)[1] else "int64"
        if (keypoints := self._declared.keypoints) is not None:
            kinds[KEYPOINTS] = f"{keypoints.format}{' of boxes' * (keypoints.per_box and boxes is not None)}"
            if keypoints.flip_pairs:
                kinds[KEYPOINTS] += f", flip pairs {keypoints.flip_pairs}"
        return kinds

    def read(self, sample: Sample, geometry: Geometry, index: int) -> SampleAnnotations:
        """Return the annotations of a sample, which is image `index` of this geometry.

        Raises:
            DecodeError: A part is missing or damaged, or is not what is declared.
            TooLargeError: A mask is too large.
        """
        width, height = geometry.source[index].tolist()
        masks = {field: self._mask(sample, part, geometry, index) for field, part in self.masks.items()}
        coordinates = Coordinates(None, {}, None)
        if self.objects:
            coordinates = read_coordinates(self._declared, sample.parts.get, (width, height))
            if not self.boxes.crowds:
                coordinates = _without_crowds(coordinates)
        return SampleAnnotations(masks, coordinates)

    def _mask(self, sample: Sample, part: str, geometry: Geometry, index: int) -> torch.Tensor:
        if part not in sample.parts:
            raise DecodeError(f"the sample has no part {part!r}, which is declared to be a mask")
        width, height = geometry.source[index].tolist()
        try:
            with map_codec_errors(DecodeError):
                values = mask_values(sample.parts[part], (width, height), max_pixels=self._max_pixels)
        except TooLargeError as error:
            raise TooLargeError(f"part {part!r} {error}") from error
        except DecodeError as error:
            raise DecodeError(f"part {part!r}: {error}") from error
        mask = geometry.crop_mask(index, values)
        if mask.dtype == np.uint16:
            mask = mask.astype(np.int32)  # torch computes little in unsigned integers of 16 bits
        return torch.from_numpy(mask[None] if mask.ndim == 2 else mask.transpose(2, 0, 1))

    def move(self, annotations: Sequence[SampleAnnotations], geometry: Geometry) -> dict[str, _Tensors]:
        """Return field → one tensor per sample: boxes, their fields and keypoints as they are in the crops.

        Boxes are float32 [N, 4], left, top, right, bottom in pixels of the crop; their fields int64 or float32 [N];
        keypoints float32 [N, K, 2 or 3] or [K, 2 or 3].
        """
        coordinates = [each.coordinates for each in annotations]
        columns: dict[str, list[Array]] = {}
        if coordinates[0].boxes is not None:
            columns[BOXES] = [_boxes_of(each) for each in coordinates]
            for name in coordinates[0].box_fields:
                columns[_box_field(name)] = [each.box_fields[name] for each in coordinates]
        if KEYPOINTS in self.objects:
            columns[KEYPOINTS] = [_points_of(each) for each in coordinates]
        moved = move_objects(columns, geometry, self.boxes, self.flip_pairs or ())
        return {field: moved[field] for field in self.objects}


class SampleAnnotations(NamedTuple):
    """The annotations of a sample.

    Attributes:
        masks: Field → the mask as it is in the crop, uint8 or int32 [1 or 3, H, W].
        coordinates: Boxes and keypoints as they are in the source image.
    """

    masks: dict[str, torch.Tensor]
    coordinates: Coordinates


def _needed(declared: Annotations, objects: Sequence[str], always: Sequence[str]) -> Annotations:
    """Return what has to be read for these fields: for keypoints of boxes also the boxes, with which they go.

    With boxes, those of their fields are read that are `always` needed.
    """
    keypoints = declared.keypoints if KEYPOINTS in objects else None
    boxes = declared.boxes
    if boxes is not None:
        fields = {name: path for name, path in boxes.fields.items() if _box_field(name) in objects}
        if BOXES in objects or fields or (keypoints is not None and keypoints.per_box):
            boxes = replace(
                boxes, fields=fields | {name: boxes.fields[name] for name in always if name in boxes.fields}
            )
        else:
            boxes = None
    return Annotations(boxes=boxes, keypoints=keypoints)


def _without_crowds(coordinates: Coordinates) -> Coordinates:
    """Return the coordinates without the boxes of crowds, and what goes with them."""
    boxes, fields, points = coordinates
    if boxes is None or _CROWD not in fields:
        return coordinates
    kept = fields[_CROWD] == 0
    own = {name: values[kept] for name, values in fields.items() if name != _CROWD}
    return Coordinates(boxes[kept], own, points[kept] if points is not None and points.ndim == 3 else points)


def is_object_field(field: str) -> bool:
    """Return whether this is the name of boxes, of a field of boxes or of keypoints."""
    return field in (BOXES, KEYPOINTS) or field.startswith(_BOX_PREFIX)


def move_objects(
    columns: Mapping[str, Sequence[Array]], geometry: Geometry, rule: CroppedBoxes, flip_pairs: FlipPairs = ()
) -> dict[str, _Tensors]:
    """Return boxes, their fields and keypoints as they are in the crops of a batch.

    Args:
        columns: Field → one array per image, as `AnnotationFields.move` returns them, in pixels of the source images.
            Without boxes, nothing is dropped.
        geometry: Of the crops.
        rule: Which boxes stay.
        flip_pairs: Keypoints that change places where an image is mirrored, see `Keypoints`.
    """
    moved: dict[str, _Tensors] = {}
    kept: Sequence[npt.NDArray[np.bool_]] | None = None
    if BOXES in columns:
        counts = [len(each) for each in columns[BOXES]]
        rows = np.repeat(np.arange(len(counts)), counts)
        moved_boxes = _move_boxes(np.concatenate(columns[BOXES]), rows, geometry)
        boxes, is_kept = _clip_boxes(moved_boxes, geometry.windows[rows], rule)
        kept = _split(is_kept, counts)
        counts = np.bincount(rows[is_kept], minlength=len(counts)).tolist()
        for field, arrays in columns.items():
            if field != KEYPOINTS:
                values = boxes if field == BOXES else np.concatenate(arrays)
                moved[field] = [torch.from_numpy(each) for each in _split(values[is_kept], counts)]
    if KEYPOINTS in columns:
        points = _move_keypoints(columns[KEYPOINTS], geometry, flip_pairs)
        if kept is not None and points[0].ndim == 3:
            points = [each[is_kept] for each, is_kept in zip(points, kept, strict=True)]
        moved[KEYPOINTS] = [torch.from_numpy(each) for each in points]
    return moved


def _move_boxes(boxes: npt.NDArray[np.float32], rows: npt.NDArray[np.int64], geometry: Geometry) -> _Floats:
    """Return boxes of source images, [N, 4], as they are in the crops, not clipped; `rows` are their images."""
    corners = geometry.move(boxes.astype(np.float64).reshape(-1, 2), rows.repeat(2)).reshape(-1, 2, 2)
    corners.sort(axis=1)  # a flip makes the right side the left one
    return corners.reshape(-1, 4)


def _clip_boxes(
    boxes: _Floats, windows: npt.NDArray[np.int32], rule: CroppedBoxes
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Return the boxes clipped to their windows, and which of them stay."""
    inside = boxes.clip(0, np.tile(windows, 2))
    rounded = inside.astype(np.float32)
    if rule.min_visibility is None:
        return rounded, np.ones(len(boxes), dtype=np.bool_)
    is_visible = _areas(inside) >= rule.min_visibility * _areas(boxes)
    return rounded, is_visible & (_areas(rounded) > 0)


def _areas(boxes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    areas: npt.NDArray[Any] = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return areas


def _move_keypoints(
    points: Sequence[npt.NDArray[np.float32]], geometry: Geometry, flip_pairs: FlipPairs
) -> list[npt.NDArray[np.float32]]:
    """Return the keypoints of each sample, [..., K, 2 or 3], as they are in its crop; those of visibility 0 stay."""
    flat = [each.reshape(-1, each.shape[-1]) for each in points]
    rows = np.repeat(np.arange(len(flat)), [len(each) for each in flat])
    xy = np.concatenate([each[:, :2] for each in flat]).astype(np.float64)
    moved = _split(geometry.move(xy, rows).astype(np.float32), [len(each) for each in flat])
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
        for each, is_flipped in zip(found, geometry.flip.tolist(), strict=True):
            if is_flipped and each.size:
                each[..., left + right, :] = each[..., right + left, :]
    return found


def _split(values: npt.NDArray[Any], counts: Sequence[int]) -> list[npt.NDArray[Any]]:
    ends = np.cumsum(counts).tolist()
    return [values[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _boxes_of(coordinates: Coordinates) -> npt.NDArray[np.float32]:
    assert coordinates.boxes is not None
    return coordinates.boxes


def _points_of(coordinates: Coordinates) -> npt.NDArray[np.float32]:
    assert coordinates.keypoints is not None
    return coordinates.keypoints
