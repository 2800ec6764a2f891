"""The benchmark of a loader: its throughput, compared with the decode rate of the machine's cores.

Loader and decode baseline are measured alternately, so that other load on the machine affects both. The workers are
stopped during the baseline: they would continue to prefetch, and take cores from it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardflow.errors import ConfigError
from shardflow.loading.loader import Loader
from shardflow.loading.worker_settings import usable_cores

from .decode_baseline import DecodeBaseline, payloads
from .loader_probe import LoaderProbe, Measurement

_ROUNDS = 4
STEPS = 2 * _ROUNDS  # calls of `progress`
_LOADER_SHARE, _BASELINE_SHARE, _STAGES_SHARE = 0.6, 0.25, 0.15  # of the time
_UNDISTURBED = 0.9  # the least share of the cores that the baseline gets on a machine without other load


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """The result of `bench`: measurements of the loader, and of one decoding process per core.

    `image_bytes` is the tar bytes per sample, with headers; `stage_cpu_ms` is per image; `step_ms` is the step time of
    the user's model, if known.
    """

    batch_size: int
    workers: int
    cores: int
    loader: Measurement
    first_batch_s: float
    image_bytes: float
    baseline: Measurement
    stage_cpu_ms: Mapping[str, float]
    step_ms: float | None = None

    @property
    def share_of_baseline(self) -> float:
        """Throughput of the loader, as a share of the decode baseline."""
        return self.loader.images_per_s / self.baseline.images_per_s

    @property
    def disturbed(self) -> bool:
        """Whether other processes took cores from the decode baseline, so that no figure is reliable."""
        return self.baseline.cpu_s < _UNDISTURBED * self.baseline.wall_s * self.cores

    @property
    def batch_ms(self) -> float:
        """Milliseconds per batch: a model with a longer training step never waits."""
        return 1000 * self.batch_size / self.loader.images_per_s

    @property
    def wait_share(self) -> float | None:
        """Share of its time that the user's model would wait for data, 0 … 1; None if its step time is not known."""
        return None if self.step_ms is None else max(0.0, 1 - self.step_ms / self.batch_ms)

    @property
    def fed(self) -> bool | None:
        """Whether the user's model would never wait for data; None if its step time is not known."""
        return None if self.step_ms is None else self.step_ms >= self.batch_ms

    def shares(self) -> dict[str, float]:
        """Return how the workers spend their time: stage → share; the shares add up to 1.

        "wait" is the time when a worker does not run: it waits for storage, for a core, or for the training process to
        take a finished batch. "transfer" is CPU time outside the stages: sending batches to the training process.
        """
        processes = max(1, self.workers)
        per_image_s = processes * self.loader.wall_s / self.loader.images
        worked_s = (self.loader.workers_cpu_s if self.workers else self.loader.own_cpu_s) / self.loader.images
        busy = min(1.0, worked_s / per_image_s)
        stages = {name: ms / 1000 / per_image_s for name, ms in self.stage_cpu_ms.items()}
        # The stages are timed in a separate run: scale them so that they do not exceed the workers' busy time.
        scale = min(1.0, busy / max(1e-12, sum(stages.values())))
        shares = {name: scale * share for name, share in stages.items()}
        return {"wait": 1 - busy, **shares, "transfer": max(0.0, busy - sum(shares.values()))}

    def to_json(self) -> dict[str, Any]:
        """Return the result as values that `json` can write."""
        return {
            "batch_size": self.batch_size,
            "workers": self.workers,
            "cores": self.cores,
            "images": self.loader.images,
            "seconds": self.loader.wall_s,
            "images_per_s": self.loader.images_per_s,
            "megabytes_per_s": self.loader.images_per_s * self.image_bytes / 1e6,
            "cpu_ms_per_image": self.loader.cpu_ms_per_image,
            "training_process_cpu_ms_per_image": 1000 * self.loader.own_cpu_s / self.loader.images,
            "first_batch_s": self.first_batch_s,
            "decode_baseline_images_per_s": self.baseline.images_per_s,
            "decode_baseline_cpu_ms_per_image": self.baseline.cpu_ms_per_image,
            "share_of_decode_baseline": self.share_of_baseline,
            "disturbed": self.disturbed,
            "stage_cpu_ms_per_image": dict(self.stage_cpu_ms),
            "shares": self.shares(),
            "step_ms": self.step_ms,
            "batch_ms": self.batch_ms,
            "fed": self.fed,
        }


def bench(
    loader: Loader, *, seconds: float = 10.0, step_ms: float | None = None, progress: Callable[[], object] | None = None
) -> BenchReport:
    """Measure the throughput of a loader. This iterates the loader, so its epoch advances, and then closes it.

    The workers start four times, which `seconds` does not include.
    """
    for name, value in (("seconds", seconds), ("step_ms", step_ms)):
        if value is not None and not value > 0:
            raise ConfigError(f"{name} must be above 0, found {value}")
    if "image" not in loader.fields:
        raise ConfigError("the loader returns no images, so it has no decode baseline: add 'image' to its fields")
    if loader.source.pixel_cache is not None:
        raise ConfigError(
            "the loader caches decoded images, so a decode baseline means nothing for it: measure a loader without "
            "Cache(pixels=...)"
        )
    report_step = progress or (lambda: None)
    cores, first_batch_s = usable_cores(), 0.0
    measured, decoded, baseline = Measurement(), Measurement(), None
    with contextlib.ExitStack() as stack:
        for _ in range(_ROUNDS):
            with LoaderProbe(loader) as probe:
                measured += probe.measure(seconds * _LOADER_SHARE / _ROUNDS)
            report_step()
            if baseline is None:  # not earlier: now some shards of a remote dataset are local
                first_batch_s = probe.first_batch_s
                baseline = stack.enter_context(DecodeBaseline(payloads(loader.split), loader.decoder, cores))
            decoded += baseline.measure(seconds * _BASELINE_SHARE / _ROUNDS)
            report_step()
    return BenchReport(
        batch_size=loader.batch_size,
        workers=loader.num_workers,
        cores=cores,
        loader=measured,
        first_batch_s=first_batch_s,
        image_bytes=sum(shard.bytes for shard in loader.split.shards) / len(loader.split),
        baseline=decoded,
        stage_cpu_ms=loader.profile(seconds * _STAGES_SHARE),
        step_ms=step_ms,
    )
