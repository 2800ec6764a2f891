"""A sample as torchvision's v2 transforms take it: a dict of an image and its annotations, as tv_tensors.

Source: docs.pytorch.org/vision/stable/transforms.html, "What are TVTensors?"
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from shardflow._imports import import_large
from shardflow.errors import ConfigError
from shardflow.geometry.objects import BOXES, KEYPOINTS

VISIBILITY = "keypoint_visibility"
"""The third numbers of the keypoints: `KeyPoints` has room for two."""


def transform_sample(
    transform: Callable[[Any], Any],
    image: torch.Tensor,
    annotations: dict[str, list[torch.Tensor]],
    index: int,
    masks: Collection[str],
) -> Any:
    """Return the transformed image of a sample, and put its transformed annotations in the place of those it had.

    Args:
        transform: Takes and returns a dict.
        image: The image, or one view of it.
        annotations: Field → the masks, boxes, ... of each sample of the batch, in this view.
        index: The number of the sample in the batch.
        masks: Which of the fields are masks.

    Raises:
        ConfigError: The transform does not return what it was given, or more, or other numbers of boxes and of their
            fields.
    """
    given = _to_dict(image, {field: values[index] for field, values in annotations.items()}, masks)
    returned = transform(dict(given))
    _check(returned, given)
    for field, values in annotations.items():
        value = _plain(returned[field])
        if field in masks and value.dim() == 2:
            value = value[None]
        elif field == KEYPOINTS and VISIBILITY in given:
            value = torch.cat([value, _plain(returned[VISIBILITY])[..., None]], dim=-1)
        values[index] = value
    return _plain(returned["image"])


def _to_dict(
    image: torch.Tensor, annotations: Mapping[str, torch.Tensor], masks: Collection[str]
) -> dict[str, torch.Tensor]:
    tv_tensors = _tv_tensors()
    canvas_size = (image.shape[-2], image.shape[-1])
    sample: dict[str, torch.Tensor] = {"image": tv_tensors.Image(image)}
    for field, value in annotations.items():
        if field in masks:
            # Of [1, H, W], SanitizeBoundingBoxes would take the 1 for the number of boxes.
            value = tv_tensors.Mask(value[0] if len(value) == 1 else value)
        elif field == BOXES:
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
