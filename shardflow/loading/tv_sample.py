"""A sample for torchvision's v2 transforms: a dict of an image and its annotations, as tv_tensors.

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

from .batch import Batch
from .decoders.decoder import as_views
from .padding import PADDING_FIELDS, PATCH_FIELDS
from .source import IMAGES
from .whole_sample import WholeSample

VISIBILITY = "keypoint_visibility"
"""The visibility of keypoints, which `KeyPoints` of torchvision lacks."""


def transform_sample(
    transform: Callable[[Any], Any],
    image: torch.Tensor,
    annotations: dict[str, list[torch.Tensor]],
    index: int,
    masks: Collection[str],
) -> Any:
    """Return the transformed image of a sample, and replace its annotations by the transformed ones.

    Args:
        transform: Takes and returns a dict.
        image: The image, or one view of it.
        annotations: Field → the masks, boxes, ... of each sample of the batch, in this view.
        index: The position of the sample in the batch.
        masks: Which of the fields are masks.

    Raises:
        ConfigError: The transform returns fields other than the given ones, or boxes and fields of different lengths.
    """
    given = _to_dict(image, {field: values[index] for field, values in annotations.items()}, masks)
    returned = transform(dict(given))
    _check(returned, given)
    _check_parallel(returned, given)
    _put_back(returned, given, annotations, index, masks)
    return _plain(returned["image"])


def transform_whole(
    transform: WholeSample,
    batch: Batch,
    row: int,
    others: Mapping[str, Any],
    names: Sequence[str],
    masks: Collection[str],
) -> dict[str, Any]:
    """Return the result of a transform of the whole sample; images and annotations are put back into the batch.

    Args:
        transform: The transform.
        batch: The batch; its images are lists.
        row: The position of the sample in the batch.
        others: The other fields of the sample.
        names: The fields that the transform must return.
        masks: Which of the fields are masks.

    Raises:
        ConfigError: The transform lacks a field of `names`, or returns boxes and fields of different lengths.
    """
    images = [] if batch.images is None else as_views(batch.images)
    annotations = batch.annotations or ({},) * len(images)
    views = [
        _to_dict(image[row], {field: values[row] for field, values in own.items()}, masks)
        for image, own in zip(images, annotations, strict=True)
    ]
    given = dict(others)
    for name in views[0] if views else ():
        given[name] = tuple(view[name] for view in views) if isinstance(batch.images, tuple) else views[0][name]
    if isinstance(given.get(IMAGES), torch.Tensor):
        given[IMAGES] = _tv_tensors().Image(given[IMAGES])
    returned = transform(given)
    if missing := [name for name in names if name not in returned and name not in PADDING_FIELDS + PATCH_FIELDS]:
        raise ConfigError(
            f"the transform of the whole sample returned {', '.join(map(str, returned)) or 'nothing'}, without "
            f"{', '.join(missing)}; name its fields with WholeSample(transform, returns=...)"
        )
    for number, (view, image, own) in enumerate(zip(views, images, annotations, strict=True)):
        found = {name: returned[name] for name in view if name in returned}
        if isinstance(batch.images, tuple):
            for name, value in found.items():
                if not isinstance(value, tuple) or len(value) != len(views):
                    raise ConfigError(f"the transform got {len(views)} views of {name!r}; it must return as many")
            found = {name: value[number] for name, value in found.items()}
        _check_parallel(found, view)
        _put_back(found, view, own, row, masks)
        if "image" in found:
            image[row] = _plain(found["image"])
    return {name: _plain(value) for name, value in returned.items()}


def _put_back(
    returned: Mapping[str, Any],
    given: Mapping[str, Any],
    annotations: dict[str, list[torch.Tensor]],
    index: int,
    masks: Collection[str],
) -> None:
    """Replace the annotations of a sample by those that a transform returned."""
    for field in annotations:
        if field not in returned:
            continue
        value = _plain(returned[field])
        kind = getattr(returned[field], "format", None)
        if field == BOXES and kind is not None and kind.name != "XYXY":
            raise ConfigError(
                f"the transform returned {BOXES!r} as {kind.name}, but the field has left, top, right, bottom; convert "
                "boxes in batch_transform, or add them under another name with WholeSample(..., returns=...)"
            )
        if field in masks and value.dim() == 2:
            value = value[None]
        elif field == KEYPOINTS and VISIBILITY in given:
            if VISIBILITY not in returned:
                raise ConfigError(f"the transform returned {KEYPOINTS!r} without {VISIBILITY!r}; return both")
            value = torch.cat([value, _plain(returned[VISIBILITY])[..., None]], dim=-1)
        annotations[field][index] = value


def _to_dict(
    image: torch.Tensor, annotations: Mapping[str, torch.Tensor], masks: Collection[str]
) -> dict[str, torch.Tensor]:
    tv_tensors = _tv_tensors()
    canvas_size = (image.shape[-2], image.shape[-1])
    sample: dict[str, torch.Tensor] = {"image": tv_tensors.Image(image)}
    for field, value in annotations.items():
        if field in masks:
            # SanitizeBoundingBoxes would take the 1 of [1, H, W] for the number of boxes.
            value = tv_tensors.Mask(value[0] if len(value) == 1 else value)
        elif value.dim() == 3 and field != KEYPOINTS:  # the masks of the boxes
            value = tv_tensors.Mask(value)
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
    """Check that transforms can move these fields, and import their types before workers are forked.

    Raises:
        ConfigError: Keypoints are among the fields, and the installed torchvision does not know them.
    """
    if not hasattr(_tv_tensors(), "KeyPoints") and KEYPOINTS in fields:
        raise ConfigError(
            "transforms of keypoints need torchvision 0.23 or later; update it, or leave the transform or 'keypoints' "
            "out"
        )


def _check(returned: Any, given: dict[str, Any]) -> None:
    """Check that a transform returned exactly the given fields."""
    if not isinstance(returned, dict) or (missing := given.keys() - returned.keys()):
        found = f"a dict without {', '.join(missing)}" if isinstance(returned, dict) else type(returned).__qualname__
        raise ConfigError(
            f"with annotations, a transform takes and must return a dict of {', '.join(given)}; got {found}"
        )
    if added := returned.keys() - given.keys():
        raise ConfigError(
            f"the transform added {', '.join(map(repr, sorted(added, key=str)))}, but a batch has only the loader's "
            "fields; remove it at the end of the transform, or use WholeSample(transform, returns=(..., name))"
        )


def _check_parallel(returned: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Check that returned boxes and their fields have one length."""
    if BOXES not in given or BOXES not in returned:
        return
    boxes = len(returned[BOXES])
    for field, value in returned.items():
        is_per_box = field.startswith("box_") or (field in (KEYPOINTS, VISIBILITY) and given[KEYPOINTS].dim() == 3)
        if field in given and is_per_box and len(value) != boxes:
            raise ConfigError(
                f"the transform returned {boxes} boxes and {len(value)} of {field!r}; let the "
                f"labels_getter of SanitizeBoundingBoxes return it too: lambda sample: (sample[{field!r}], ...)"
            )


def _plain(value: Any) -> Any:
    return value.as_subclass(torch.Tensor) if isinstance(value, torch.Tensor) else value
