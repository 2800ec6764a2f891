"""A sample as torchvision's v2 transforms take it: a dict of an image and its annotations, as tv_tensors.

Source: docs.pytorch.org/vision/stable/transforms.html, "What are TVTensors?"
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from shardflow._imports import import_large
from shardflow.errors import ConfigError
from shardflow.geometry.objects import BOXES, KEYPOINTS

from .batch import Batch

VISIBILITY = "keypoint_visibility"
"""The third numbers of the keypoints: `KeyPoints` has room for two."""


def transform_sample(transform: Callable[[Any], Any], batch: Batch, index: int, image: torch.Tensor) -> Any:
    """Return the transformed image of a sample, and put its transformed annotations into the batch.

    Raises:
        ConfigError: The transform does not return what it was given, or more, or other numbers of boxes and of their
            fields.
    """
    given = _to_dict(batch, index, image)
    returned = transform(dict(given))
    try:
        _check(returned, given)
    except ConfigError as error:
        raise batch.samples[index].with_sample(error) from None
    for field, masks in batch.masks.items():
        mask = _plain(returned[field])
        masks[index] = mask[None] if mask.dim() == 2 else mask
    for field, values in batch.objects.items():
        values[index] = _plain(returned[field])
    if VISIBILITY in given:
        parts = [_plain(returned[KEYPOINTS]), _plain(returned[VISIBILITY])[..., None]]
        batch.objects[KEYPOINTS][index] = torch.cat(parts, dim=-1)
    return _plain(returned["image"])


def _to_dict(batch: Batch, index: int, image: torch.Tensor) -> dict[str, torch.Tensor]:
    tv_tensors = _tv_tensors()
    canvas_size = (image.shape[-2], image.shape[-1])
    sample: dict[str, torch.Tensor] = {"image": tv_tensors.Image(image)}
    for field, masks in batch.masks.items():
        # Of [1, H, W], SanitizeBoundingBoxes would take the 1 for the number of boxes.
        mask = masks[index]
        sample[field] = tv_tensors.Mask(mask[0] if len(mask) == 1 else mask)
    for field, values in batch.objects.items():
        value = values[index]
        if field == BOXES:
            value = tv_tensors.BoundingBoxes(value, format="XYXY", canvas_size=canvas_size)
        elif field == KEYPOINTS:
            if value.shape[-1] == 3:
                sample[VISIBILITY] = value[..., 2]
            value = tv_tensors.KeyPoints(value[..., :2], canvas_size=canvas_size)
        sample[field] = value
    return sample


@functools.cache
def _tv_tensors() -> ModuleType:
    return import_large("torchvision.tv_tensors")


def check_movable(fields: Sequence[str]) -> None:
    """Check that transforms can move these fields, and import what they need: before workers are forked.

    Raises:
        ConfigError: Keypoints are among the fields, and the installed torchvision does not know them.
    """
    if not hasattr(_tv_tensors(), "KeyPoints") and KEYPOINTS in fields:
        raise ConfigError(
            "transforms move keypoints as of torchvision 0.23: update it, or leave the transform or 'keypoints' out"
        )


def _check(returned: Any, given: dict[str, Any]) -> None:
    """Check that all that was given came back, and that what was given per box still is parallel to the boxes."""
    if not isinstance(returned, dict) or (missing := given.keys() - returned.keys()):
        found = f"a dict without {', '.join(missing)}" if isinstance(returned, dict) else type(returned).__qualname__
        raise ConfigError(
            f"with annotations among the fields, a transform gets and returns a dict of {', '.join(given)}; got {found}"
        )
    if added := returned.keys() - given.keys():
        raise ConfigError(
            f"the transform added {', '.join(map(repr, sorted(added, key=str)))}, which would be lost: a batch has the "
            "loader's fields alone; remove it at the end of the transform, or compute it in batch_transform, which "
            "returns whatever the batch shall be"
        )
    if BOXES not in given:
        return
    boxes = len(returned[BOXES])
    for field, value in returned.items():
        is_per_box = field.startswith("box_") or (field in (KEYPOINTS, VISIBILITY) and given[KEYPOINTS].dim() == 3)
        if field in given and is_per_box and len(value) != boxes:
            raise ConfigError(
                f"the transform returned {boxes} boxes and {len(value)} of {field!r}; SanitizeBoundingBoxes drops what "
                f"its labels_getter returns beside the boxes: lambda sample: (sample[{field!r}], ...)"
            )


def _plain(value: Any) -> Any:
    return value.as_subclass(torch.Tensor) if isinstance(value, torch.Tensor) else value
