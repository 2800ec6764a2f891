"""The stages of a prefetcher in a row: who gets which fields of a batch, and which keys."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from shardflow.errors import ConfigError
from shardflow.loading.fork_rng import fork_rng, reseed
from shardflow.order import keyed_rng

from .buffers import to_keep
from .transforms import rng
from .transforms.decode_jpeg import DecodeJpeg
from .transforms.transform import BlendStage, KeyedStage

KEY_FIELD = "random_key"

_FIELDS = ("image", "label")
_DICTS = "hand out dicts, whose keys are the names of the fields"

Stage = KeyedStage | BlendStage | DecodeJpeg | Callable[[torch.Tensor], torch.Tensor]


class Stages:
    """Applies stages to batches; `random_key` is used up by that.

    Keyed stages get images and keys, blends images, labels and keys, and anything else, a Kornia or torchvision
    augmentation for one, the images alone. What the latter draw from torch's, Python's or numpy's global generators
    depends on the batch's key, where the batch has keys: on (seed, epoch) and the batch's first sample.

    Args:
        stages: What to apply, in order.
        fields: The names of what a batch consists of; None where its loader does not say: those of a dict are its keys,
            and any other has an image and a label.
        batch_transform: Called with the fields at the end, as arguments; returns what to hand out.

    Raises:
        ConfigError: `DecodeJpeg` is not first, something is no stage, or the fields lack what a stage needs.
    """

    def __init__(
        self, stages: Sequence[Stage], fields: Sequence[str] | None, batch_transform: Callable[..., Any] | None = None
    ) -> None:
        if not isinstance(stages, Sequence):
            raise ConfigError(f"stages must be a list of them, found {stages!r}")
        for stage in stages:
            if isinstance(stage, type) or not callable(stage):
                raise ConfigError(
                    f"a stage is an object to call, such as Normalize() with parentheses; found {stage!r}"
                )
        if batch_transform is not None and not callable(batch_transform):
            raise ConfigError(f"batch_transform must be something to call, found {batch_transform!r}")
        stages = tuple(stages)
        self._decode = stages[0] if stages and isinstance(stages[0], DecodeJpeg) else None
        self._stages: list[tuple[Any, Any]] = [
            (_compiled_from(stage), stage) for stage in stages if not isinstance(stage, DecodeJpeg)
        ]
        if any(isinstance(stage, DecodeJpeg) for stage in stages[1:]):
            raise ConfigError("DecodeJpeg has to be the first of the stages, it makes the images that others work on")
        self._fields = _FIELDS if fields is None else tuple(fields)
        self._told, self._batch_transform = fields is not None, batch_transform
        needed = {"image"} if stages else set()
        for kind, _ in self._stages:
            if isinstance(kind, BlendStage):
                needed |= {"label", KEY_FIELD}
            elif isinstance(kind, KeyedStage) and kind.needs_keys:
                needed.add(KEY_FIELD)
        self._needed = needed
        if self._told and (missing := sorted(needed - set(self._fields))):
            raise ConfigError(
                f"the stages need {', '.join(missing)}, the loader's fields are {', '.join(self._fields)}; "
                f"give it fields={(*self._fields, *missing)}"
            )

    def arrive(self, batch: Any, device: torch.device) -> tuple[Any, int | None]:
        """Do what has to be done where the batch is: decode it to the device, and read its key.

        Returns:
            The batch, and its 64-bit key, None where it has none.
        """
        if isinstance(batch, Mapping) and not isinstance(batch, dict):
            batch = dict(batch)  # in other mappings nobody finds the tensors
        for leaf in _pytree.tree_leaves(batch):
            if not isinstance(leaf, torch.Tensor) and _holds_tensors(leaf):
                raise ConfigError(
                    f"a batch has a {type(leaf).__name__} in it, whose tensors would stay where they are; hand out "
                    "tuples, lists or dicts of tensors"
                )
        named = self._named(batch)
        if missing := sorted(self._needed - set(named)):
            remedy = "leave out the loader's batch_transform, and give the prefetcher one" if self._told else _DICTS
            raise ConfigError(f"the stages need {', '.join(missing)}, a batch has {', '.join(named)}; {remedy}")
        keys = named.get(KEY_FIELD)
        key = int(keys[0]) & (2**64 - 1) if isinstance(keys, torch.Tensor) and len(keys) else None
        if self._decode is not None:
            named["image"] = self._decode(named["image"], device)
            batch = self._like(batch, named)
        return batch, key

    def __call__(self, batch: Any, key: int | None, *, lent: bool) -> Any:
        """Return a batch that has arrived on the device, augmented.

        Args:
            batch: What `arrive` returned, on the device.
            key: What it returned with it.
            lent: Whether the memory of the batch's tensors will be used again. Those that are returned in tuples, lists
                and dicts can be found and cloned; the batch transform may put them into objects, so it gets clones.
        """
        if not self._stages and self._batch_transform is None and KEY_FIELD not in self._fields:
            return batch  # in whatever form it came
        named = self._named(batch)
        keys = named.pop(KEY_FIELD, torch.zeros(0, dtype=torch.int64))  # no stage looks at those that are not there
        with _generators(key, batch) if self._are_foreign() else contextlib.nullcontext():
            for place, (kind, stage) in enumerate(self._stages):
                if isinstance(kind, KeyedStage):
                    _check_images(kind, named["image"])
                    named["image"] = stage(named["image"], rng.fold(keys, place) if kind.needs_keys else keys)
                elif isinstance(kind, BlendStage):
                    _check_images(kind, named["image"])
                    named["image"], named["label"] = stage(named["image"], named["label"], rng.fold(keys, place))
                else:
                    image = named["image"] = stage(named["image"])
                    if not isinstance(image, torch.Tensor):
                        raise ConfigError(f"a stage has to return images, and {stage!r} returned {image!r:.80}")
            if self._batch_transform is not None:
                columns = list(named.values())
                return self._batch_transform(*(to_keep(columns, batch) if lent else columns))
        return self._like(batch, named)

    def _are_foreign(self) -> bool:
        ours = (KeyedStage, BlendStage)
        ours_alone = all(isinstance(kind, ours) for kind, _ in self._stages)
        return self._batch_transform is not None or not ours_alone

    def _named(self, batch: Any) -> dict[str, Any]:
        """Return the fields of a batch by name."""
        if isinstance(batch, Mapping):
            return dict(batch)
        if isinstance(batch, (tuple, list)):
            if len(batch) == len(self._fields):
                return dict(zip(self._fields, batch, strict=True))
            if self._stages or self._decode is not None:
                remedy = "leave out the loader's batch_transform, and give the prefetcher one" if self._told else _DICTS
                raise ConfigError(
                    f"a batch of {len(batch)} fields came where {', '.join(self._fields)} were expected; {remedy}"
                )
            return {str(number): column for number, column in enumerate(batch)}
        return {"image": batch}

    def _like(self, batch: Any, named: dict[str, Any]) -> Any:
        """Return fields in the form that the batch has."""
        if isinstance(batch, Mapping):
            return named
        if isinstance(batch, (tuple, list)):
            return tuple(named.values())
        return named["image"]


def _compiled_from(stage: Any) -> Any:
    """Return the stage that was compiled, by `torch.compile` of it or of its `__call__`; of all others themselves."""
    function = inspect.unwrap(stage)
    return getattr(function, "__self__", function)


def _check_images(stage: object, images: torch.Tensor) -> None:
    if images.dim() != 4:
        remedy = "; files need DecodeJpeg() as the first stage" if images.dim() == 2 else ""
        raise ConfigError(
            f"{type(stage).__name__} works on images [B, C, H, W], found a tensor {list(images.shape)}{remedy}"
        )


def _holds_tensors(leaf: object) -> bool:
    held = leaf if isinstance(leaf, Mapping) else getattr(leaf, "__dict__", {})
    return any(isinstance(value, torch.Tensor) for value in held.values())


@contextlib.contextmanager
def _generators(key: int | None, batch: Any) -> Iterator[None]:
    """Set the global generators from the batch's key, the device's too, and give them back as they were."""
    if key is None:
        yield
        return
    key = keyed_rng.fold(key, "device")
    devices = {leaf.device for leaf in _pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)}
    indexes = [device.index for device in devices if device.type == "cuda"]
    with fork_rng():
        reseed(key)
        generators = [torch.cuda.default_generators[index] for index in indexes]
        saved = [generator.get_state() for generator in generators]
        try:
            for generator in generators:
                generator.manual_seed(key)
            yield
        finally:
            for generator, state in zip(generators, saved, strict=True):
                generator.set_state(state)
