"""The annotations of a batch: masks, boxes and keypoints, which follow the images through the transforms.

The number of remaining boxes decides the shapes of a batch, for which the host would have to wait on the device. So
boxes and keypoints are moved on the host, before the copy. If a batch has annotations, the parameters of the transforms
are drawn on the host, and copied with the batch for its images and masks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from shardflow.errors import ConfigError
from shardflow.geometry.objects import BOXES, KEYPOINTS, CroppedBoxes, move_objects
from shardflow.loading.annotation_fields import AnnotationFields, is_object_field
from shardflow.loading.decoders.repeated_crops import moving_transforms
from shardflow.loading.fields import CROP_FIELDS
from shardflow.loading.padding import PADDING_FIELDS

from .transforms import rng
from .transforms.mixup import MixingTransform
from .transforms.transform import SpatialTransform

_MASK_FIELD = "mask"
_FLIPPED, _CROP = CROP_FIELDS
_MIXED = ("image", "label", "labels", "random_key", "index", "key", "source", "valid", *CROP_FIELDS)
"""The fields that a mixed batch may have: images, labels, and what identifies the first image of each pair."""


class Columns(NamedTuple):
    """Which fields of a batch are annotations."""

    masks: list[str]
    objects: list[str]  # boxes, fields of boxes, keypoints
    padding: list[str]  # where the images are in a padded batch
    crops: list[str]  # the crops made by the loader

    def __str__(self) -> str:
        """Return their names."""
        return ", ".join(self.masks + self.objects + self.padding + self.crops)


class AnnotationColumns:
    """Finds the annotations among the fields of a batch, and moves them with the images.

    If `declared` is None, annotations are recognised by their names.
    """

    def __init__(self, transforms: Sequence[object], declared: AnnotationFields | None) -> None:
        self._transforms, self._declared = transforms, declared
        ours = (SpatialTransform, MixingTransform)
        self._moving = [[] if isinstance(each, ours) else moving_transforms(each) for each in transforms]
        self._rule = CroppedBoxes() if declared is None else declared.boxes
        self._flip_pairs = () if declared is None else declared.flip_pairs

    def find(self, fields: Collection[str]) -> Columns:
        """Return which of the fields are annotations.

        Raises:
            ConfigError: A transform cannot move them.
        """
        crops = [field for field in fields if field in CROP_FIELDS]
        if self._declared is not None:
            masks = [field for field in fields if field in self._declared.masks]
            objects = [field for field in fields if field in self._declared.objects]
        else:
            masks = [field for field in fields if field == _MASK_FIELD]
            objects = [field for field in fields if is_object_field(field)]
        followers = ", ".join(masks + objects)
        unmixed = ", ".join(field for field in fields if field not in _MIXED)
        for transform, moving in zip(self._transforms, self._moving, strict=True):
            name, problem, is_spatial = type(transform).__name__, "", isinstance(transform, SpatialTransform)
            if isinstance(transform, MixingTransform) and unmixed:
                problem = f"mixes images and their labels, not {unmixed}; leave it out, or these fields"
            elif moving and followers:
                name, problem = " and ".join(moving), f"would move the images without {followers}; "
                problem += "use the transforms of shardflow.device, or move all of them together in batch_transform"
            elif is_spatial and objects and BOXES not in objects and objects != [KEYPOINTS]:
                found = ", ".join(objects)
                problem = f"may drop boxes with their {found}; add 'boxes' to the loader's fields"
            elif is_spatial and KEYPOINTS in objects and self._flip_pairs is None:
                problem = "may mirror images, but the datasets of the mix declare different flip_pairs of keypoints; "
                problem += f"leave it or {KEYPOINTS!r} out, and mirror in the decoders of the loaders"
            elif isinstance(transform, SpatialTransform) and transform.crops_images and _CROP in crops:
                problem = f"crops again, so {_CROP!r} would not be the crop of the stored image; leave the field out, "
                problem += "or crop only in the loader"
            if problem:
                raise ConfigError(f"{name} {problem}")
        return Columns(masks, objects, [field for field in fields if field in PADDING_FIELDS], crops)

    def move(self, fields: dict[str, Any], columns: Columns) -> dict[int, torch.Tensor]:
        """Move the boxes and keypoints of a batch; return the number of each `SpatialTransform` → its parameters.

        Args:
            fields: The batch, whose boxes, keypoints and flips are replaced. Its images are [B, C, H, W], or a list of
                [C, H, W].
            columns: The annotations of the batch.

        Raises:
            ConfigError: The images or annotations cannot be moved.
        """
        params: dict[int, torch.Tensor] = {}
        if not any(columns) or not any(isinstance(transform, SpatialTransform) for transform in self._transforms):
            return params
        images, keys = fields["image"], fields["random_key"].cpu()
        if is_views(images):
            if columns == Columns([], [], [], columns.crops) and not any(
                isinstance(transform, SpatialTransform) and transform.moves_pixels for transform in self._transforms
            ):
                return params
            raise ConfigError(f"{columns} cannot follow {len(images)} views; leave them out")
        for field in columns.masks:
            _check_masks(field, fields[field], images)
        sizes = np.array([image.shape[:-3:-1] for image in images], dtype=np.int64).reshape(-1, 2)
        for number, transform in enumerate(self._transforms):
            if not isinstance(transform, SpatialTransform):
                continue
            params[number] = _draw(transform, rng.fold(keys, number), sizes.tolist())
            crops = transform.crops(params[number], sizes) if len(keys) else None
            if crops is None:
                continue
            if columns.padding:
                raise ConfigError(
                    f"{type(transform).__name__} moves the padding of images too, so {', '.join(columns.padding)} "
                    "would be wrong; leave these fields out, or transform in the loader, before images are padded"
                )
            if _FLIPPED in columns.crops:
                fields[_FLIPPED] = fields[_FLIPPED] ^ torch.from_numpy(crops.flip)
            if columns.objects:
                arrays = {field: [each.cpu().numpy() for each in fields[field]] for field in columns.objects}
                _check_boxes(arrays.get(BOXES, ()))
                moved = move_objects(arrays, crops, self._rule, self._flip_pairs or ())
                fields |= {field: [torch.from_numpy(each) for each in values] for field, values in moved.items()}
            sizes = crops.extents.astype(np.int64)
        return params


def is_views(images: Any) -> bool:
    """Return whether images are a list of views [B, C, H, W], not one tensor or a list of images [C, H, W]."""
    return isinstance(images, (tuple, list)) and len(images) > 0 and images[0].dim() == 4


def transform_pixels(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], pixels: Any, params: torch.Tensor
) -> Any:
    """Return images or masks, [B, C, H, W] or a list of [C, H, W], transformed with a row of `params` each."""
    if isinstance(pixels, torch.Tensor):
        return function(pixels, params)
    return [function(image[None], params[row : row + 1])[0] for row, image in enumerate(pixels)]


def _draw(transform: SpatialTransform, keys: torch.Tensor, sizes: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return the parameters for images of these sizes, width and height."""
    if all(size == sizes[0] for size in sizes):
        width, height = sizes[0] if sizes else (1, 1)
        return transform.make_params(keys, height, width)
    rows = enumerate(sizes)
    return torch.cat([transform.make_params(keys[row : row + 1], height, width) for row, (width, height) in rows])


def _check_boxes(boxes: Iterable[npt.NDArray[Any]]) -> None:
    for each in boxes:
        if len(wrong := each[(each[:, 2:] < each[:, :2]).any(axis=1)]):
            raise ConfigError(
                f"{BOXES!r} must be left, top, right, bottom, found {wrong[0].tolist()}; if these are a centre, width "
                "and height, convert them after the transforms, in the batch_transform of the prefetcher"
            )


def _check_masks(field: str, masks: Any, images: Any) -> None:
    for mask, image in zip(masks, images, strict=True):
        if mask.dim() != 3 or mask.shape[-2:] != image.shape[-2:]:
            height, width = image.shape[-2:]
            raise ConfigError(
                f"field {field!r} must be masks [C, H, W] of the images' sizes, here {height} x {width}; found "
                f"{list(mask.shape)}"
            )
