"""The transforms of a prefetcher, applied in order: which fields of a batch and which keys each of them gets."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from shardflow._validation import check_callable
from shardflow.errors import ConfigError
from shardflow.loading.fork_rng import fork_rng, reseed
from shardflow.order import keyed_rng

from .buffers import clone_shared
from .transforms import rng
from .transforms.decode_jpeg import DecodeJpeg
from .transforms.mixup import MixingTransform
from .transforms.transform import KeyedTransform

KEY_FIELD = "random_key"

_DEFAULT_FIELDS = ("image", "label")

DeviceTransform = KeyedTransform | MixingTransform | DecodeJpeg | Callable[[torch.Tensor], torch.Tensor]


class TransformChain:
    """Applies transforms to batches, and removes the field `random_key`.

    Keyed transforms get images and keys; mixing transforms get images, labels and keys; any other callable, such as an
    augmentation of Kornia or torchvision, gets the images alone. Other callables draw from the global generators of
    torch, Python and numpy. Where batches have keys, these generators are seeded from the key of the batch's first
    sample, so the draws depend on (seed, epoch, first sample).

    Images in several views, a tuple of tensors, are augmented view by view, each with random numbers of its own: the
    number of the view is folded into the keys. There is no target that mixed views share, so mixing is an error.

    If the loader has no `fields`, the fields of a dict are its keys, and any other batch has an image and a label.
    """

    def __init__(
        self,
        transforms: Sequence[DeviceTransform],
        fields: Sequence[str] | None,
        batch_transform: Callable[..., Any] | None = None,
    ) -> None:
        if not isinstance(transforms, Sequence):
            raise ConfigError(f"transforms must be a list, found {transforms!r}")
        for transform in transforms:
            if isinstance(transform, type) or not callable(transform):
                raise ConfigError(
                    f"a transform must be a callable object, such as Normalize() with parentheses, found {transform!r}"
                )
        check_callable("batch_transform", batch_transform)
        if any(isinstance(transform, DecodeJpeg) for transform in transforms[1:]):
            raise ConfigError("DecodeJpeg must be the first transform: it makes the images that the others take")
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
        # Whether a callable of another library may draw from the global generators.
        ours = all(isinstance(kind, (KeyedTransform, MixingTransform)) for kind in kinds)
        self._use_generators = batch_transform is not None or not ours
        self._needed = {"image"} if transforms else set[str]()
        if any(isinstance(kind, MixingTransform) for kind in kinds):
            self._needed |= {"label", KEY_FIELD}
        if any(isinstance(kind, KeyedTransform) and kind.needs_keys for kind in kinds):
            self._needed.add(KEY_FIELD)
        if fields is not None and (missing := sorted(self._needed - set(fields))):
            raise ConfigError(
                f"the transforms need {', '.join(missing)}, the loader's fields are {', '.join(fields)}; "
                f"give it fields={(*fields, *missing)}"
            )

    def prepare(self, batch: Any, device: torch.device) -> tuple[Any, int | None]:
        """Check a batch of the loader, decode its images to the device if need be; return it and its 64-bit key."""
        if isinstance(batch, Mapping) and not isinstance(batch, dict):
            batch = dict(batch)  # pytree finds no tensors in other mappings
        for leaf in _pytree.tree_leaves(batch):
            if not isinstance(leaf, torch.Tensor) and _holds_tensors(leaf):
                raise ConfigError(
                    f"a batch contains a {type(leaf).__name__}, whose tensors cannot be moved to a device; return "
                    "tuples, lists or dicts of tensors"
                )
        fields = self._split(batch)
        if missing := sorted(self._needed - set(fields)):
            raise ConfigError(
                f"the transforms need {', '.join(missing)}, a batch has {', '.join(fields)}; {self._remedy}"
            )
        keys = fields.get(KEY_FIELD)
        key = int(keys[0]) & (2**64 - 1) if isinstance(keys, torch.Tensor) and len(keys) else None
        if self._decode is not None:
            fields["image"] = self._decode(fields["image"], device)
            batch = self._join(fields, batch)
        return batch, key

    def __call__(self, batch: Any, key: int | None, *, in_buffer: bool) -> Any:
        """Return a batch that `prepare` returned, and that is now on the device, transformed.

        With `in_buffer` it lies in memory that will be overwritten. The caller clones tensors in tuples, lists and
        dicts. It cannot find those that `batch_transform` puts into other objects, so `batch_transform` gets clones.
        """
        if not self._transforms and self._batch_transform is None and KEY_FIELD not in self._fields:
            return batch
        fields = self._split(batch)
        keys = fields.pop(KEY_FIELD, torch.zeros(0, dtype=torch.int64))  # without the field, no transform uses the keys
        with _seeded_generators(key, batch) if self._use_generators else contextlib.nullcontext():
            for number, (kind, transform) in enumerate(self._transforms):
                images = fields["image"]
                if isinstance(kind, MixingTransform):
                    _check_images(kind, images)
                    images, fields["label"] = transform(images, fields["label"], rng.fold(keys, number))
                elif isinstance(images, (tuple, list)):
                    images = tuple(
                        _augment(kind, transform, each, keys, number, view) for view, each in enumerate(images)
                    )
                else:
                    images = _augment(kind, transform, images, keys, number)
                fields["image"] = images
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
                    f"expected batches of the fields {', '.join(self._fields)}, found one of {len(batch)} fields; "
                    f"{self._remedy}"
                )
            return {str(number): column for number, column in enumerate(batch)}
        return {"image": batch}

    def _join(self, fields: dict[str, Any], batch: Any) -> Any:
        """Return fields as a dict, tuple or tensor, as the batch is."""
        if isinstance(batch, Mapping):
            return fields
        return tuple(fields.values()) if isinstance(batch, (tuple, list)) else fields["image"]


def _uncompiled(transform: Any) -> Any:
    """Return the transform that `torch.compile` of it, or of its `__call__`, was given; any other as it is."""
    function = inspect.unwrap(transform)
    return getattr(function, "__self__", function)


def _augment(kind: object, transform: Any, images: Any, keys: torch.Tensor, *place: int) -> torch.Tensor:
    """Return images, transformed; `place` is the number of the transform, and that of the view if there are several."""
    if isinstance(kind, KeyedTransform):
        _check_images(kind, images)
        keys = functools.reduce(rng.fold, place, keys) if kind.needs_keys else keys
        augmented: torch.Tensor = transform(images, keys)
        return augmented
    augmented = transform(images)
    if not isinstance(augmented, torch.Tensor):
        raise ConfigError(f"a transform must return a tensor of images, {transform!r} returned {augmented!r:.80}")
    return augmented


def _check_images(transform: object, images: Any) -> None:
    if not isinstance(images, torch.Tensor):
        raise ConfigError(
            f"{type(transform).__name__} takes one tensor of images, found {len(images)} views; leave it out, or give "
            "the loader a decoder of one view"
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
    """Seed the global generators, those of the batch's devices too, and restore them afterwards; no key, no change."""
    if key is None:
        yield
        return
    key = keyed_rng.fold(key, "device")
    devices = {leaf.device for leaf in _pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)}
    generators = [torch.cuda.default_generators[device.index] for device in devices if device.type == "cuda"]
    with fork_rng():
        reseed(key)
        saved = [generator.get_state() for generator in generators]
        try:
            for generator in generators:
                generator.manual_seed(key)
            yield
        finally:
            for generator, state in zip(generators, saved, strict=True):
                generator.set_state(state)
