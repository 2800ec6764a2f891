"""The transforms of a prefetcher, applied in order, each with its fields of a batch and its keys."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree

from shardflow._validation import check_callable
from shardflow.errors import ConfigError
from shardflow.loading.annotation_fields import AnnotationFields
from shardflow.loading.fork_rng import fork_rng, reseed
from shardflow.order import keyed_rng

from .annotation_columns import AnnotationColumns, Columns, is_views, transform_pixels
from .buffers import clone_shared
from .transforms import rng
from .transforms.decode_jpeg import DecodeJpeg
from .transforms.mixup import MixingTransform
from .transforms.transform import KeyedTransform

KEY_FIELD = "random_key"

_DEFAULT_FIELDS = ("image", "label")

DeviceTransform = KeyedTransform | MixingTransform | DecodeJpeg | Callable[[torch.Tensor], torch.Tensor]


class PreparedBatch(NamedTuple):
    """A checked batch on its way to the device."""

    batch: Any  # boxes and keypoints are transformed already
    key: int | None  # 64 bits, if the batch has keys
    annotated: Columns
    params: dict[int, torch.Tensor]  # number of a transform → the parameters that it used for boxes and keypoints


class TransformChain:
    """Applies transforms to batches, and removes the field `random_key`.

    Keyed transforms get images and keys; mixing transforms get images, labels and keys; any other callable, such as an
    augmentation of Kornia or torchvision, gets only the images. If batches have keys, the global generators of torch,
    Python and numpy, from which such callables draw, are seeded from the key of the batch's first sample: draws depend
    on (seed, epoch, first sample).

    Views, a tuple of tensors, are augmented with different random numbers; the first view is augmented as it would be
    alone. Mixed views would need a common target, so mixing is an error.

    Masks, boxes, the fields of boxes and keypoints follow the images through `SpatialTransform`s, see
    `annotation_columns`. The images of a list, which differ in size, are transformed one by one.

    If the loader has no `fields`, a dict has its keys as fields, and any other batch has an image and a label.
    """

    def __init__(
        self,
        transforms: Sequence[DeviceTransform],
        fields: Sequence[str] | None,
        batch_transform: Callable[..., Any] | None = None,
        annotations: AnnotationFields | None = None,
        *,
        pads: bool = False,
    ) -> None:
        if not isinstance(transforms, Sequence):
            raise ConfigError(f"transforms must be a list, found {transforms!r}")
        for transform in transforms:
            if isinstance(transform, type) or not callable(transform):
                raise ConfigError(f"a transform must be a callable instance, such as Normalize(), found {transform!r}")
        check_callable("batch_transform", batch_transform)
        if any(isinstance(transform, DecodeJpeg) for transform in transforms[1:]):
            raise ConfigError("DecodeJpeg must be the first transform, as it decodes the images for the others")
        first = transforms[0] if transforms else None
        self._decode = first if isinstance(first, DecodeJpeg) else None
        others = transforms[1:] if self._decode is not None else transforms
        self._transforms: list[tuple[Any, Any]] = [(_uncompiled(transform), transform) for transform in others]
        self._fields = _DEFAULT_FIELDS if fields is None else tuple(fields)
        self._batch_transform = batch_transform
        self._remedy = "let the loader return dicts, with the names of the fields as keys"
        if fields is not None:
            self._remedy = "pass batch_transform to the prefetcher, not to the loader"
        kinds = [kind for kind, _ in self._transforms]
        # Callables of other libraries may draw from the global generators.
        ours = all(isinstance(kind, (KeyedTransform, MixingTransform)) for kind in kinds)
        self._use_generators = batch_transform is not None or not ours
        self._needed = {"image"} if transforms else set[str]()
        self._mixes = any(isinstance(kind, MixingTransform) for kind in kinds)
        if self._mixes or any(isinstance(kind, KeyedTransform) and kind.needs_keys for kind in kinds):
            self._needed.add(KEY_FIELD)
        if self._mixes and pads:
            self._needed.add("valid")
        self._annotations = AnnotationColumns(kinds, annotations)
        if fields is not None:
            if missing := self._missing(fields):
                raise ConfigError(
                    f"the transforms need {', '.join(missing)}, but the loader's fields are {', '.join(fields)}; "
                    f"give it fields={(*fields, *missing)}"
                )
            self._annotations.find(fields)

    def _missing(self, fields: Collection[str]) -> list[str]:
        """Return the fields that the transforms need but that are not among these."""
        return sorted((self._needed | ({_label_field(fields)} if self._mixes else set())) - set(fields))

    def prepare(self, batch: Any, device: torch.device) -> PreparedBatch:
        """Check a batch of the loader, decode its images to the device if encoded, and move its boxes and keypoints."""
        if isinstance(batch, Mapping) and not isinstance(batch, dict):
            batch = dict(batch)  # pytree finds no tensors in other mappings
        for leaf in _pytree.tree_leaves(batch):
            if not isinstance(leaf, torch.Tensor) and _holds_tensors(leaf):
                raise ConfigError(
                    f"a batch contains a {type(leaf).__name__}, whose tensors cannot be copied to a device; return "
                    "tuples, lists or dicts of tensors"
                )
        fields = self._split(batch)
        if missing := self._missing(fields):
            raise ConfigError(
                f"the transforms need {', '.join(missing)}, but a batch has {', '.join(fields)}; {self._remedy}"
            )
        there = [field for field, column in fields.items() if column is not None]
        if missing := self._missing(there):
            raise ConfigError(
                f"the transforms need {', '.join(missing)}, which a source of the mix lacks; give its loader the field"
            )
        keys = fields.get(KEY_FIELD)
        key = int(keys[0]) & (2**64 - 1) if isinstance(keys, torch.Tensor) and len(keys) else None
        if self._decode is not None:
            fields["image"] = self._decode(fields["image"], device)
            batch = self._join(fields, batch)
        annotated = self._annotations.find(there)
        params = self._annotations.move(fields, annotated)
        if params:
            batch = self._join(fields, batch)
        return PreparedBatch(batch, key, annotated, params)

    def __call__(self, prepared: PreparedBatch, *, in_buffer: bool) -> Any:
        """Transform a batch that `prepare` returned and that is now on the device.

        `in_buffer` says that its memory will be overwritten. The caller clones tensors in tuples, lists and dicts, but
        cannot find those in other objects, so `batch_transform` gets clones.
        """
        batch, key, annotated, params = prepared
        if not self._transforms and self._batch_transform is None and KEY_FIELD not in self._fields:
            return batch
        fields = self._split(batch)
        # Without the field, no transform uses the keys.
        keys = fields.pop(KEY_FIELD, torch.zeros(0, dtype=torch.int64, device="cpu"))
        with _seeded_generators(key, batch) if self._use_generators else contextlib.nullcontext():
            for number, (kind, transform) in enumerate(self._transforms):
                images = fields["image"]
                if isinstance(kind, (KeyedTransform, MixingTransform)):
                    _check_dtype(kind, images)
                if number in params:
                    fields["image"] = transform_pixels(kind.transform_images, images, params[number])
                    for field in annotated.masks:
                        fields[field] = transform_pixels(kind.transform_masks, fields[field], params[number])
                elif isinstance(kind, MixingTransform):
                    _check_images(kind, images)
                    label = _label_field(fields)
                    own_keys = rng.fold(keys, number)
                    fields["image"], fields[label] = transform(images, fields[label], own_keys, fields.get("valid"))
                else:
                    fields["image"] = _augment(kind, transform, images, keys, number)
                    if annotated.masks or annotated.objects or annotated.padding:
                        _check_sizes(transform, fields["image"], images, annotated)
            if self._batch_transform is not None:
                columns = list(fields.values())
                return self._batch_transform(*(clone_shared(columns, batch) if in_buffer else columns))
        return self._join(fields, batch)

    def _split(self, batch: Any) -> dict[str, Any]:
        if isinstance(batch, Mapping):
            return dict(batch)
        if isinstance(batch, (tuple, list)):
            if len(batch) == len(self._fields):
                return dict(zip(self._fields, batch, strict=True))
            if self._needed:
                raise ConfigError(
                    f"expected a batch of the fields {', '.join(self._fields)}, found {len(batch)} of them; "
                    f"{self._remedy}"
                )
            return {str(number): column for number, column in enumerate(batch)}
        return {"image": batch}

    def _join(self, fields: dict[str, Any], batch: Any) -> Any:
        """Return fields in the form of the batch: a dict, tuple or tensor."""
        if isinstance(batch, Mapping):
            return fields
        return tuple(fields.values()) if isinstance(batch, (tuple, list)) else fields["image"]


def _uncompiled(transform: Any) -> Any:
    """Return the transform below `torch.compile` of it or its `__call__`; any other unchanged."""
    function = inspect.unwrap(transform)
    return getattr(function, "__self__", function)


def _augment(kind: object, transform: Any, images: Any, keys: torch.Tensor, number: int) -> Any:
    """Apply transform `number` to a batch of images, to each view, or to each image of a list."""
    if is_views(images):
        places = ((number, view) if view else (number,) for view in range(len(images)))
        return tuple(_augment_batch(kind, transform, *each, keys) for each in zip(images, places, strict=True))
    return transform_pixels(
        lambda pixels, own_keys: _augment_batch(kind, transform, pixels, (number,), own_keys), images, keys
    )


def _augment_batch(
    kind: object, transform: Any, images: torch.Tensor, place: tuple[int, ...], keys: torch.Tensor
) -> torch.Tensor:
    """Transform a batch; `place` is the number of the transform, and for later views that of the view."""
    if isinstance(kind, KeyedTransform):
        _check_images(kind, images)
        keys = functools.reduce(rng.fold, place, keys) if kind.needs_keys else keys
        augmented: torch.Tensor = transform(images, keys)
        return augmented
    augmented = transform(images)
    if not isinstance(augmented, torch.Tensor):
        raise ConfigError(f"a transform must return a tensor of images, but {transform!r} returned {augmented!r:.80}")
    return augmented


def _label_field(fields: Collection[str]) -> str:
    """Return the field that is mixed with the images: "label", or "labels" of several classes."""
    if {"label", "labels"} <= set(fields):
        raise ConfigError("MixUp and CutMix mix either 'label' or 'labels' with the images; leave one of them out")
    return "labels" if "labels" in fields else "label"


def _check_sizes(transform: object, images: Any, before: Any, annotated: Columns) -> None:
    if any(image.shape[-2:] != given.shape[-2:] for image, given in zip(images, before, strict=True)):
        raise ConfigError(
            f"{transform!r} changed the size of the images, which {annotated} cannot follow; transform all of them "
            "together in batch_transform"
        )


def _check_dtype(transform: object, images: Any) -> None:
    for image in [images] if isinstance(images, torch.Tensor) else images:
        if image.dtype != torch.uint8 and not image.is_floating_point():
            raise ConfigError(
                f"{type(transform).__name__} takes images in uint8 or floating point, found {image.dtype}; put "
                "torchvision's v2.ToDtype(torch.float32, scale=True) before it"
            )


def _check_images(transform: object, images: Any) -> None:
    if not isinstance(images, torch.Tensor):
        raise ConfigError(
            f"{type(transform).__name__} takes one tensor of images, found {len(images)} views or images of different "
            "sizes; leave the transform out, or use a decoder with one size"
        )
    if images.dim() != 4:
        remedy = "; encoded images need DecodeJpeg() as the first transform" if images.dim() == 2 else ""
        raise ConfigError(
            f"{type(transform).__name__} takes images [B, C, H, W], found a tensor {list(images.shape)}{remedy}"
        )


def _holds_tensors(leaf: object) -> bool:
    members = leaf if isinstance(leaf, Mapping) else getattr(leaf, "__dict__", {})
    return any(isinstance(member, torch.Tensor) for member in members.values())


@contextlib.contextmanager
def _seeded_generators(key: int | None, batch: Any) -> Iterator[None]:
    """Seed the global generators, also on the batch's devices, and restore them afterwards; no-op without a key."""
    if key is None:
        yield
        return
    key = keyed_rng.fold(key, "device")
    tensors = (leaf for leaf in _pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor))
    devices = [*{tensor.device for tensor in tensors if tensor.device.type == "cuda"}]
    with fork_rng(devices):
        reseed(key)
        for device in devices:
            torch.cuda.default_generators[device.index].manual_seed(key)
        yield
