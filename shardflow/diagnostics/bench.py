"""The bench: what a loader reaches on this machine, against what the machine's cores can decode.

Loader and limit are measured in turn, so that whatever else the machine does meanwhile falls on both. The workers are
ended in between: they would go on prefetching, and take the cores from what the limit is measured with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardflow.errors import ConfigError
from shardflow.loading.loader import Loader
from shardflow.loading.topology import usable_cores

from .decode_baseline import DecodeBaseline, payloads
from .loader_probe import LoaderProbe
from .stage_times import stage_cpu_ms
from .time_window import Window

_ROUNDS = 4
STEPS = 2 * _ROUNDS
"""How often `bench` says that it got further."""

_LOADER, _LIMIT, _STAGES = 0.6, 0.25, 0.15
"""Shares of the time."""
_CALM = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What was measured.

    Attributes:
        batch_size, workers, cores: Samples per batch; worker processes; cores that may be used.
        window: The loader's images, seconds and CPU seconds.
        first_batch_s: Seconds until the very first batch, the start of the workers included.
        image_bytes: Encoded bytes per sample, tar included.
        limit: What as many processes as cores decode when they do nothing else.
        stage_cpu_ms: Stage → CPU milliseconds per image; without "transfer".
        step_ms: Milliseconds that the user's model takes for a batch, if told.
    """

    batch_size: int
    workers: int
    cores: int
    window: Window
    first_batch_s: float
    image_bytes: float
    limit: Window
    stage_cpu_ms: Mapping[str, float] = field(default_factory=dict)
    step_ms: float | None = None

    @property
    def images_per_s(self) -> float:
        """The loader's rate."""
        return self.window.images_per_s

    @property
    def of_limit(self) -> float:
        """The loader's rate as a share of the limit."""
        return self.images_per_s / self.limit.images_per_s

    @property
    def disturbed(self) -> bool:
        """Whether other processes kept the cores from those that only decode, so that all figures are unsteady."""
        return self.limit.cpu_s < _CALM * self.limit.wall_s * self.cores

    @property
    def batch_ms(self) -> float:
        """Milliseconds from batch to batch: a model whose step takes longer never waits."""
        return 1000 * self.batch_size / self.images_per_s

    @property
    def waiting(self) -> float | None:
        """The share of its time that the user's model would wait for data; None when its step is not known."""
        return None if self.step_ms is None else max(0.0, 1 - self.step_ms / self.batch_ms)

    @property
    def fed(self) -> bool | None:
        """Whether the user's model would never wait; None when its step is not known."""
        return None if self.step_ms is None else self.step_ms >= self.batch_ms

    def shares(self) -> dict[str, float]:
        """Return what the workers' time goes to, stage → share; they add up to 1.

        "wait" is the time in which a worker did not run: for storage, for a core, or for the training process to take
        what is ready. "transfer" is what it computed beyond its stages: handing batches over.
        """
        processes = max(1, self.workers)
        per_image_s = processes * self.window.wall_s / self.window.images
        worked_s = (self.window.workers_cpu_s if self.workers else self.window.own_cpu_s) / self.window.images
        busy = min(1.0, worked_s / per_image_s)
        stages = {name: ms / 1000 / per_image_s for name, ms in self.stage_cpu_ms.items()}
        # The stages were timed apart from the rest; where they seem to take more than all of it, they took all of it.
        scale = min(1.0, busy / max(1e-12, sum(stages.values())))
        shares = {name: scale * share for name, share in stages.items()}
        return {"wait": 1 - busy, **shares, "transfer": max(0.0, busy - sum(shares.values()))}

    def to_json(self) -> dict[str, Any]:
        """Return what `json` can write."""
        return {
            "batch_size": self.batch_size,
            "workers": self.workers,
            "cores": self.cores,
            "images": self.window.images,
            "seconds": self.window.wall_s,
            "images_per_s": self.images_per_s,
            "megabytes_per_s": self.images_per_s * self.image_bytes / 1e6,
            "cpu_ms_per_image": self.window.cpu_ms_per_image,
            "training_process_cpu_ms_per_image": 1000 * self.window.own_cpu_s / self.window.images,
            "first_batch_s": self.first_batch_s,
            "limit_images_per_s": self.limit.images_per_s,
            "limit_cpu_ms_per_image": self.limit.cpu_ms_per_image,
            "of_limit": self.of_limit,
            "disturbed": self.disturbed,
            "stage_cpu_ms_per_image": dict(self.stage_cpu_ms),
            "shares": self.shares(),
            "step_ms": self.step_ms,
            "batch_ms": self.batch_ms,
            "fed": self.fed,
        }


def bench(
    loader: Loader, *, seconds: float = 10.0, step_ms: float | None = None, progress: Callable[[], object] | None = None
) -> Bench:
    """Measure a loader; it is iterated, so its epoch moves on, and closed.

    Args:
        loader: What to measure.
        seconds: How long, about; what starting the workers takes, four times, comes on top.
        step_ms: Milliseconds that the user's model takes for a batch.
        progress: Called `STEPS` times.

    Raises:
        ConfigError: An argument is not above 0, or the loader hands out no images, or keeps them decoded.
        ShardflowError: Whatever the loader meets.
    """
    for name, value in (("seconds", seconds), ("step_ms", step_ms)):
        if value is not None and not value > 0:
            raise ConfigError(f"{name} must be above 0, found {value}")
    if "image" not in loader.fields:
        raise ConfigError("the loader hands out no images, so there is nothing to hold it against: add 'image'")
    if loader.pixel_cache is not None:
        raise ConfigError(
            "the limit that a loader is held against is decoding, which this one does once: bench a loader without "
            "Cache(pixels=...)"
        )
    tell = progress or (lambda: None)
    cores = usable_cores()
    window, decoded = Window(), Window()
    with contextlib.ExitStack() as stack:
        limit = None
        first_batch_s = 0.0
        for _ in range(_ROUNDS):
            with LoaderProbe(loader) as driven:
                window += driven.measure(seconds * _LOADER / _ROUNDS)
            tell()
            if limit is None:  # now shards are at hand to take images from
                first_batch_s = driven.first_batch_s
                limit = stack.enter_context(DecodeBaseline(payloads(loader.split), loader.decoder, cores))
            decoded += limit.measure(seconds * _LIMIT / _ROUNDS)
            tell()
    stages = stage_cpu_ms(loader, seconds * _STAGES)
    return Bench(
        batch_size=loader.batch_sampler.batch_size,
        workers=loader.data_loader.num_workers,
        cores=cores,
        window=window,
        first_batch_s=first_batch_s,
        image_bytes=sum(shard.bytes for shard in loader.split.shards) / len(loader.split),
        limit=decoded,
        stage_cpu_ms=stages,
        step_ms=step_ms,
    )
