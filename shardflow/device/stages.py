"""The stages of a prefetcher in a row: who gets which fields of a batch, and which keys."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from shardflow import keyed
from shardflow.errors import ConfigError
from shardflow.load.randomness import preserved, reseed

from . import draws
from .encoded import DecodeJpeg
from .stage import BlendStage, KeyedStage

KEY_FIELD = "random_key"

Stage = KeyedStage | BlendStage | DecodeJpeg | Callable[[torch.Tensor], torch.Tensor]


class Stages:
    """Applies stages to batches; `random_key` is used up by that.

    Keyed stages get images and keys, blends images, labels and keys, and anything else, a Kornia or torchvision
    augmentation for one, the images alone. What the latter draw from torch's, Python's or numpy's global generators
    depends on the batch's key, where the batch has keys: on (seed, epoch) and the batch's first sample.

    Args:
        stages: What to apply, in order.
        fields: The names of what a batch consists of, where it does not say so itself.
        batch_transform: Called with the fields at the end, as arguments; returns what to hand out.

    Raises:
        ConfigError: `DecodeJpeg` is not first, or the fields lack what a stage needs.
    """

    def __init__(
        self, stages: Sequence[Stage], fields: Sequence[str], batch_transform: Callable[..., Any] | None = None
    ) -> None:
        stages = tuple(stages)
        self._decode = stages[0] if stages and isinstance(stages[0], DecodeJpeg) else None
        self._stages = tuple(stage for stage in stages if not isinstance(stage, DecodeJpeg))
        if any(isinstance(stage, DecodeJpeg) for stage in stages[1:]):
            raise ConfigError("DecodeJpeg has to be the first of the stages, it makes the images that others work on")
        self._fields, self._batch_transform = tuple(fields), batch_transform
        needed = {"image"} if stages else set()
        for stage in stages:
            if isinstance(stage, BlendStage):
                needed |= {"label", KEY_FIELD}
            elif isinstance(stage, KeyedStage) and stage.needs_keys:
                needed.add(KEY_FIELD)
        if missing := sorted(needed - set(self._fields)):
            raise ConfigError(
                f"the stages need {', '.join(missing)}, the loader's fields are {', '.join(self._fields)}; "
                f"give it fields={(*self._fields, *missing)}"
            )

    def arrive(self, batch: Any, device: torch.device) -> tuple[Any, int | None]:
        """Do what has to be done where the batch is: decode it to the device, and read its key.

        Returns:
            The batch, and its 64-bit key, None where it has none.
        """
        named = self._named(batch)
        keys = named.get(KEY_FIELD)
        key = int(keys[0]) & (2**64 - 1) if isinstance(keys, torch.Tensor) and len(keys) else None
        if self._decode is not None:
            named["image"] = self._decode(named["image"], device)
            batch = self._like(batch, named)
        return batch, key

    def __call__(self, batch: Any, key: int | None) -> Any:
        """Return a batch that has arrived on the device, augmented."""
        if not self._stages and self._batch_transform is None and KEY_FIELD not in self._fields:
            return batch  # in whatever form it came
        named = self._named(batch)
        keys = named.pop(KEY_FIELD, torch.zeros(0, dtype=torch.int64))  # no stage looks at those that are not there
        with _generators(key, batch) if self._are_foreign() else contextlib.nullcontext():
            for place, stage in enumerate(self._stages):
                if isinstance(stage, KeyedStage):
                    own = draws.fold(keys, place) if stage.needs_keys else keys
                    named["image"] = stage(named["image"], own)
                elif isinstance(stage, BlendStage):
                    named["image"], named["label"] = stage(named["image"], named["label"], draws.fold(keys, place))
                else:
                    named["image"] = stage(named["image"])
            if self._batch_transform is not None:
                return self._batch_transform(*named.values())
        return self._like(batch, named)

    def _are_foreign(self) -> bool:
        ours = (KeyedStage, BlendStage)
        return self._batch_transform is not None or not all(isinstance(stage, ours) for stage in self._stages)

    def _named(self, batch: Any) -> dict[str, Any]:
        """Return the fields of a batch by name."""
        if isinstance(batch, Mapping):
            return dict(batch)
        if isinstance(batch, (tuple, list)):
            if len(batch) == len(self._fields):
                return dict(zip(self._fields, batch, strict=True))
            if self._stages or self._decode is not None:
                raise ConfigError(
                    f"a batch of {len(batch)} fields came where {', '.join(self._fields)} were expected; leave out the "
                    "loader's batch_transform, and give the prefetcher one"
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


@contextlib.contextmanager
def _generators(key: int | None, batch: Any) -> Iterator[None]:
    """Set the global generators from the batch's key, the device's too, and give them back as they were."""
    if key is None:
        yield
        return
    key = keyed.fold(key, "device")
    devices = {leaf.device for leaf in _pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)}
    indexes = [device.index for device in devices if device.type == "cuda"]
    with preserved():
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
