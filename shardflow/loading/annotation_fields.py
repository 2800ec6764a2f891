"""Annotation fields: the masks, boxes and keypoints of a batch, which follow the crop, resize and flip of its images.

The dataset's manifest declares the meaning of parts (`formats.annotations`); `Crops` has the crop of each image. The
coordinates of a batch are moved together.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from shardflow._masks import mask_values
from shardflow._pillow import map_codec_errors
from shardflow.dataset.sample import Sample
from shardflow.errors import ConfigError, DecodeError, TooLargeError
from shardflow.formats.annotations import FLOAT, MASK, Annotations, field_path, mask_field
from shardflow.formats.coordinates import Array, Coordinates, read_coordinates
from shardflow.formats.image_limits import REMEDY
from shardflow.geometry.crops import Crops
from shardflow.geometry.objects import BOXES, KEYPOINTS, CroppedBoxes, FlipPairs, move_objects

_BOX_PREFIX = "box_"
_CROWD = "iscrowd"
"""The field of boxes that marks crowds, by COCO's name."""

_KINDS = {"": "int64", FLOAT: "float32", MASK: "masks"}

_Tensors = list[torch.Tensor]


def field_parts(declared: Annotations) -> dict[str, str]:
    """Return the fields of a batch that a declaration provides → the part of each."""
    parts = {mask_field(part): part for part in declared.masks}
    if declared.boxes is not None:
        parts |= dict.fromkeys([BOXES, *map(_box_field, declared.boxes.fields)], declared.boxes.part)
    if declared.keypoints is not None:
        parts[KEYPOINTS] = declared.keypoints.part
    return parts


def _box_field(name: str) -> str:
    return f"{_BOX_PREFIX}{name}"


class AnnotationFields:
    """The fields of a batch that come from declared annotations: how they are read and moved.

    Attributes:
        names: These fields, masks first.
        masks: Field → part.
        objects: The other fields: "boxes", "box_NAME" for its fields, "keypoints".
        boxes: The rule for the boxes that stay.
        parts: Field that the declaration provides → its part.
        flip_pairs: Keypoints that are swapped in a mirrored image; None if the sources of a mix differ, see `of_mix`.
    """

    def __init__(self, fields: Sequence[str], declared: Annotations, boxes: CroppedBoxes) -> None:
        self.parts = parts = field_parts(declared)
        self.masks = {field: parts[field] for field in fields if parts.get(field) in declared.masks}
        self.objects = tuple(field for field in fields if field in parts and field not in self.masks)
        self.names, self.boxes = (*self.masks, *self.objects), boxes
        if _box_field(_CROWD) in self.objects and not boxes.crowds:
            raise ConfigError(
                f"crowd boxes are left out, so 'box_{_CROWD}' would be 0 for all boxes; remove it, or keep crowds with "
                "CroppedBoxes(crowds=True) among the fields"
            )
        self._declared = _needed(declared, self.objects, () if boxes.crowds else (_CROWD,))
        keypoints = self._declared.keypoints
        self.flip_pairs: FlipPairs | None = () if keypoints is None else keypoints.flip_pairs

    @classmethod
    def of_mix(cls, sources: Sequence[AnnotationFields]) -> AnnotationFields:
        """Return the fields of all sources, for batches of unknown source."""
        found = copy.copy(sources[0])
        found.masks = {field: part for source in sources for field, part in source.masks.items()}
        found.objects = tuple(dict.fromkeys(field for source in sources for field in source.objects))
        found.names = (*found.masks, *found.objects)
        pairs = {source.flip_pairs for source in sources if KEYPOINTS in source.objects}
        if pairs:
            found.flip_pairs = pairs.pop() if len(pairs) == 1 else None
        return found

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each field; samples of one batch have equal kinds."""
        kinds = dict.fromkeys(self.masks, "mask") | {field: field for field in self.objects}
        if (boxes := self._declared.boxes) is not None:
            for name, path in boxes.fields.items():
                if (field := _box_field(name)) in self.objects:
                    kinds[field] = _KINDS[field_path(path)[1]]
        if (keypoints := self._declared.keypoints) is not None:
            kinds[KEYPOINTS] = f"{keypoints.format}{' of boxes' * (keypoints.per_box and boxes is not None)}"
            if keypoints.flip_pairs:
                kinds[KEYPOINTS] += f", flip pairs {keypoints.flip_pairs}"
        return kinds

    def read(self, sample: Sample, views: Sequence[Crops], index: int, max_pixels: int) -> SampleAnnotations:
        """Return the annotations of a sample, image `index` of the crops of each view; `max_pixels` limits its masks.

        Raises:
            DecodeError: A part is missing, damaged, or differs from its declaration.
            TooLargeError: A mask, or the masks of all boxes together, are too large.
        """
        width, height = views[0].source[index].tolist()
        masks = {field: _mask(sample, part, (width, height), max_pixels) for field, part in self.masks.items()}
        cropped = [{field: _crop_mask(mask, crops, index) for field, mask in masks.items()} for crops in views]
        coordinates = Coordinates(None, {}, None)
        if self.objects:
            coordinates = read_coordinates(self._declared, sample.parts.get, (width, height))
            if not self.boxes.crowds:
                coordinates = _without_crowds(coordinates)
            masks_of_boxes = sum(len(each) for each in coordinates.box_fields.values() if each.dtype == object)
            pixels = max(int(crops.extents[index].prod()) for crops in views)
            if masks_of_boxes * pixels > max_pixels:
                raise TooLargeError(f"the masks of its {masks_of_boxes} boxes have {pixels:,} pixels each; {REMEDY}")
        return SampleAnnotations(cropped, coordinates)

    def of_views(
        self, annotations: Sequence[SampleAnnotations], views: Sequence[Crops]
    ) -> tuple[dict[str, _Tensors], ...]:
        """Return for each view, field → one tensor per sample, in the crops of the view.

        Masks are uint8 or int32 [1 or 3, H, W]. Boxes are float32 [N, 4], left, top, right, bottom in pixels of the
        crop; their fields int64 or float32 [N], or masks uint8 [N, H, W]; keypoints float32 [N, K, 2 or 3] or
        [K, 2 or 3].
        """
        coordinates = [each.coordinates for each in annotations]
        columns: dict[str, list[Array]] = {}
        if coordinates[0].boxes is not None:
            columns[BOXES] = [each.boxes for each in coordinates if each.boxes is not None]
            for name in coordinates[0].box_fields:
                columns[_box_field(name)] = [each.box_fields[name] for each in coordinates]
        if KEYPOINTS in self.objects:
            columns[KEYPOINTS] = [each.keypoints for each in coordinates if each.keypoints is not None]
        found = []
        for view, crops in enumerate(views):
            masks = {field: _of_one_dtype([each.masks[view][field] for each in annotations]) for field in self.masks}
            moved = move_objects(columns, crops, self.boxes, self.flip_pairs or ())
            found.append(masks | {field: [torch.from_numpy(each) for each in moved[field]] for field in self.objects})
        return tuple(found)


def _mask(sample: Sample, part: str, size: tuple[int, int], max_pixels: int) -> Array:
    """Return the mask in a part of a sample, of the size of its image: [H, W] or [H, W, 3]."""
    if part not in sample.parts:
        raise DecodeError(f"the sample lacks the part {part!r}, declared to be a mask")
    try:
        with map_codec_errors(DecodeError):
            return mask_values(sample.parts[part], size, max_pixels=max_pixels)
    except TooLargeError as error:
        raise TooLargeError(f"part {part!r} {error}") from error
    except DecodeError as error:
        raise DecodeError(f"part {part!r}: {error}") from error


def _crop_mask(values: Array, crops: Crops, index: int) -> torch.Tensor:
    """Return the crop of a mask: [1 or 3, H, W]."""
    mask = crops.crop_mask(index, values)
    if mask.dtype == np.uint16:
        mask = mask.astype(np.int32)  # torch supports few operations on uint16
    return torch.from_numpy(mask[None] if mask.ndim == 2 else mask.transpose(2, 0, 1))


def _of_one_dtype(masks: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the masks, all as int32 if some of them are."""
    if len({mask.dtype for mask in masks}) == 1:
        return masks
    return [mask.to(torch.int32) for mask in masks]


class SampleAnnotations(NamedTuple):
    """The annotations of a sample."""

    masks: list[dict[str, torch.Tensor]]  # per view: field → cropped mask, uint8 or int32 [1 or 3, H, W]
    coordinates: Coordinates  # in the source image


def _needed(declared: Annotations, objects: Sequence[str], always: Sequence[str]) -> Annotations:
    """Return the declarations to read for these fields; keypoints per box need the boxes too.

    If boxes are read, their fields named in `always` are read too.
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
    """Return the coordinates without crowd boxes and their fields and keypoints."""
    boxes, fields, points = coordinates
    if boxes is None or _CROWD not in fields:
        return coordinates
    kept = fields[_CROWD] == 0
    own = {name: values[kept] for name, values in fields.items() if name != _CROWD}
    return Coordinates(boxes[kept], own, points[kept] if points is not None and points.ndim == 3 else points)


def is_object_field(field: str) -> bool:
    """Return whether a field is boxes, a field of boxes or keypoints."""
    return field in (BOXES, KEYPOINTS) or field.startswith(_BOX_PREFIX)
