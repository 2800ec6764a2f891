"""Tuning: the number of workers and the prefetch factor that suit a loader on this machine.

Settings are measured in turns, so that other load on the machine affects all of them; each run starts new workers, so
that only one setting takes memory at a time. Of the settings within 3 % of the fastest, the one with the fewest workers
and then the smallest prefetch factor is recommended, which leaves cores and memory to the training.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from shardflow.dataset.virtual_dataset import used_bytes
from shardflow.errors import ConfigError
from shardflow.loading.loader import Loader
from shardflow.loading.shared_memory import SLOTS_BEYOND_PREFETCH
from shardflow.loading.worker_settings import DEFAULT_PREFETCH_FACTOR, Workers, usable_cores

from .checks import Check, failed_checks
from .loader_probe import LoaderProbe, Measurement

PREFETCH_FACTORS = (2, 4, 8)

_ROUNDS = 3
_WORKERS_SHARE = 0.65  # of the time; the rest is for the prefetch factor, which matters less
_AS_GOOD = 0.97
_BUSY = 0.85
_OTHER_LOAD = 0.2
_FROM_DISK = 0.5

MakeLoader = Callable[..., Loader]
"""Called with `num_workers`, it returns a new loader; all other settings are the user's."""


@dataclass(slots=True)
class Trial:
    """The measurements of one setting, in one or several runs."""

    workers: Workers
    measurements: list[Measurement] = field(default_factory=list)
    first_batches_s: list[float] = field(default_factory=list)  # including the start of the workers
    batch_bytes: int = 0  # size of a batch's tensors

    @property
    def first_batch_s(self) -> float:
        """Seconds to the first batch; median of the runs."""
        return median(self.first_batches_s)

    @property
    def settings(self) -> dict[str, int]:
        """The setting, as arguments of `Workers`."""
        return {"num_workers": self.workers.count, "prefetch_factor": self.workers.prefetch_factor}

    @property
    def images_per_s(self) -> float:
        """Throughput of the fastest run: other load on the machine can only lower it."""
        return max(measurement.images_per_s for measurement in self.measurements)

    @property
    def shared_bytes(self) -> int:
        """The maximum size of its batches in shared memory."""
        return (self.workers.count * self.workers.prefetch_factor + SLOTS_BEYOND_PREFETCH) * self.batch_bytes

    @property
    def total(self) -> Measurement:
        """The sum of its measurements."""
        return sum(self.measurements, Measurement())


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneReport:
    """The result of `tune`."""

    trials: tuple[Trial, ...]  # every setting that was tried
    best: Trial  # the recommended setting
    bottleneck: str  # "cores", "training process", "other processes", "network", "disk" or "not known"
    advice: str  # one line about the bottleneck
    checks: tuple[Check, ...]  # failed checks: other likely causes of a slow loader

    @property
    def settings(self) -> dict[str, int]:
        """The recommended arguments of `Workers`."""
        return self.best.settings

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        return {
            "settings": self.settings,
            "trials": [
                {
                    **trial.settings,
                    "images_per_s": trial.images_per_s,
                    "cpu_ms_per_image": trial.total.cpu_ms_per_image,
                    "first_batch_s": trial.first_batch_s,
                    "shared_bytes": trial.shared_bytes,
                    "runs": len(trial.measurements),
                }
                for trial in self.trials
            ],
            "bottleneck": self.bottleneck,
            "advice": self.advice,
            "checks": [check._asdict() for check in self.checks],
        }


def tune(
    make_loader: MakeLoader,
    *,
    seconds: float = 60.0,
    workers: Sequence[int] | None = None,
    progress: Callable[[], object] | None = None,
) -> TuneReport:
    """Find the number of workers and the prefetch factor that suit a loader on this machine.

    Args:
        make_loader: A function with the argument `num_workers`, a `Workers`, that returns a new `Loader` with it.
        seconds: Approximate duration, above 0. Every setting is tried at least once.
        workers: The numbers of workers to try, each 1 or more; None tries one to twice the cores of this rank.
        progress: Called after each run.

    Returns:
        A report: `settings` are the recommended arguments of `Workers`, and `trials` all measurements. `bottleneck` and
        `advice` name the limit of the loader, and `checks` other causes of delay.

    Raises:
        ConfigError: An argument is out of range.
        ShardflowError: Reading or decoding failed.

    Example:
        >>> def make_loader(num_workers):
        ...     return shardflow.Loader("photos256", batch_size=256, num_workers=num_workers)
        >>> settings = shardflow.tune(make_loader, workers=[1], seconds=1).settings  # of `Workers`
    """
    if not seconds > 0:
        raise ConfigError(f"seconds must be above 0, found {seconds}")
    cores = usable_cores()
    numbers = sorted({1, max(1, cores // 2), max(1, cores - 1), cores, 2 * cores} if workers is None else set(workers))
    if not numbers or min(numbers) < 1:
        raise ConfigError(f"workers must be one number or more, each 1 or more, found {numbers}")
    report_run = progress or (lambda: None)
    share = seconds * _WORKERS_SHARE
    with warnings.catch_warnings():
        # More workers than cores are tried on purpose: they help with a slow store.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        trials = [Trial(Workers(number, prefetch_factor=DEFAULT_PREFETCH_FACTOR)) for number in numbers]
        _run(make_loader, trials, share, report_run)
        first = _best(trials)
        # The default factor runs again, as its first runs may have been under other load.
        factors = [factor for factor in PREFETCH_FACTORS if factor != DEFAULT_PREFETCH_FACTOR]
        others = [Trial(replace(first.workers, prefetch_factor=factor)) for factor in factors]
        _run(make_loader, [first, *others], seconds - share, report_run)
        trials = sorted([*trials, *others], key=lambda trial: (*trial.settings.values(),))
        best = _best(trials)
        loader = make_loader(num_workers=best.workers)
    bottleneck, advice = _bottleneck(best, loader, cores)
    return TuneReport(
        trials=tuple(trials),
        best=best,
        bottleneck=bottleneck,
        advice=advice,
        checks=tuple(failed_checks(loader, shared_bytes=best.shared_bytes)),
    )


def _run(make_loader: MakeLoader, trials: Sequence[Trial], seconds: float, report_run: Callable[[], object]) -> None:
    """Run settings in turn until the time is up, each at least once."""
    begin, longest = time.monotonic(), 0.0
    for turn in range(_ROUNDS * len(trials)):
        trial, started = trials[turn % len(trials)], time.monotonic()
        if turn >= len(trials) and started + longest > begin + seconds:
            break  # this run and all later ones would end too late
        with LoaderProbe(make_loader(num_workers=trial.workers)) as probe:
            trial.measurements.append(probe.measure(seconds / (_ROUNDS * len(trials)) / 2))
        trial.first_batches_s.append(probe.first_batch_s)
        trial.batch_bytes = probe.batch_bytes
        longest = max(longest, time.monotonic() - started)
        report_run()


def _best(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the fewest workers, then the least prefetching, of those as good as the fastest."""
    enough = _AS_GOOD * max(trial.images_per_s for trial in trials)
    good = [trial for trial in trials if trial.images_per_s >= enough]
    return min(good, key=lambda trial: (*trial.settings.values(),))


def _bottleneck(best: Trial, loader: Loader, cores: int) -> tuple[str, str]:
    measured, split = best.total, loader.split
    busy = measured.cpu_s / measured.wall_s
    if busy >= _BUSY * cores:
        return "cores", (
            f"{busy:.1f} of {cores} cores are busy: more workers would not help; more cores, smaller images or a "
            "lighter transform would"
        )
    if measured.own_cpu_s >= _BUSY * measured.wall_s:
        return "training process", (
            "the training process is busy receiving batches: return fewer bytes per image (uint8, not float), or train "
            "with more ranks"
        )
    others = (measured.machine_cpu_s - measured.cpu_s) / measured.wall_s
    if others >= _OTHER_LOAD * cores:
        return "other processes", f"other processes keep {others:.1f} cores busy: end them, and tune again"
    if not all(split.reader.is_local(number) for number in range(len(split.shards))):
        return "network", (
            "shards were being downloaded: download all in advance with `shardflow cache warm URL`; later epochs need "
            "no network"
        )
    size = used_bytes(loader.dataset.dataset, split.name)
    if measured.disk_bytes >= _FROM_DISK * measured.images * size / len(split):
        return "disk", (
            "images are read from the disk: use a faster disk, smaller images, or enough memory for the whole split "
            f"({size / 1e9:.1f} GB)"
        )
    found = f"{busy:.1f} of {cores} cores are busy, and no known bottleneck was found"
    return "not known", f"{found}: tune again with more --seconds"
