"""Tuning: which number of workers, and how many batches each prefetches, suit a loader on this machine.

Settings are tried in turn, round after round, so that whatever else the machine does falls on all of them; each try
starts its workers anew, so that only one setting takes memory at a time. What was fastest is not what is recommended:
among those within 3 % of it, the one with the fewest workers is, and then the one that prefetches least. The rest is
left to the training.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from shardflow.errors import ConfigError
from shardflow.loading.loader import Loader
from shardflow.loading.shared_memory import SLOTS_BEYOND_PREFETCH
from shardflow.loading.topology import usable_cores

from .checks import Suspect, usual_suspects
from .loader_probe import LoaderProbe
from .time_window import Window

PREFETCH = (2, 4, 8)
_MIDDLE = 4

_ROUNDS = 3
_WORKERS_SHARE = 0.65
"""Of the time for finding the number of workers; the rest is for the prefetching, which matters less."""
_AS_GOOD = 0.97
_BUSY = 0.85
_OTHERS = 0.2
_FROM_DISK = 0.5

MakeLoader = Callable[..., Loader]
"""Called with `num_workers` and `prefetch_factor`, it returns a new loader that is like the user's in all else."""

Tries = dict[tuple[int, int], list[tuple[Window, float, int]]]
"""Workers and prefetch factor → of each time that they were tried: the window, first_batch_s and batch_bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What was measured of one setting.

    Attributes:
        num_workers, prefetch_factor: The setting.
        windows: One for each time that it was tried.
        first_batch_s: Median of the seconds to the first batch, the start of the workers included.
        batch_bytes: Size of the tensors of a batch.
    """

    num_workers: int
    prefetch_factor: int
    windows: tuple[Window, ...]
    first_batch_s: float
    batch_bytes: int

    @property
    def images_per_s(self) -> float:
        """The best of its rates: what else the machine does can only lower one."""
        return max(window.images_per_s for window in self.windows)

    @property
    def shared_bytes(self) -> int:
        """The most shared memory that its batches take."""
        return self.num_workers * (self.prefetch_factor + SLOTS_BEYOND_PREFETCH) * self.batch_bytes

    @property
    def total(self) -> Window:
        """All its windows together."""
        return sum(self.windows, Window())


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What was found.

    Attributes:
        trials: Every setting that was tried.
        best: The one to take.
        limit: What limits it: "cores", "training process", "other processes", "network", "disk" or "not known".
        advice: A line about that.
        suspects: What else is likely to cost speed.
    """

    trials: tuple[Trial, ...]
    best: Trial
    limit: str
    advice: str
    suspects: tuple[Suspect, ...]

    @property
    def settings(self) -> dict[str, int]:
        """The arguments to give to the loader."""
        return {"num_workers": self.best.num_workers, "prefetch_factor": self.best.prefetch_factor}

    def to_json(self) -> dict[str, Any]:
        """Return what `json` can write."""
        return {
            "settings": self.settings,
            "trials": [
                {
                    "num_workers": trial.num_workers,
                    "prefetch_factor": trial.prefetch_factor,
                    "images_per_s": trial.images_per_s,
                    "cpu_ms_per_image": trial.total.cpu_ms_per_image,
                    "first_batch_s": trial.first_batch_s,
                    "shared_bytes": trial.shared_bytes,
                    "tries": len(trial.windows),
                }
                for trial in self.trials
            ],
            "limit": self.limit,
            "advice": self.advice,
            "suspects": [suspect._asdict() for suspect in self.suspects],
        }


def tune(
    make_loader: MakeLoader,
    *,
    seconds: float = 60.0,
    workers: Sequence[int] | None = None,
    progress: Callable[[], object] | None = None,
) -> Tuning:
    """Find the settings that suit a loader on this machine; exported as `shardflow.tune`.

    >>> def make_loader(**settings):                                                     # doctest: +SKIP
    ...     return shardflow.Loader("photos256", batch_size=256, transform=mine, **settings)
    >>> shardflow.tune(make_loader).settings                                             # doctest: +SKIP
    {'num_workers': 7, 'prefetch_factor': 2}

    Args:
        make_loader: Called with `num_workers` and `prefetch_factor`, returns a new loader.
        seconds: How long, about. Every setting is tried once however long that takes.
        workers: The numbers of workers to try; by default from one to twice the cores that this rank may use.
        progress: Called after each try.

    Raises:
        ConfigError: An argument is wrong.
        ShardflowError: Whatever the loader meets.
    """
    if not seconds > 0:
        raise ConfigError(f"seconds must be above 0, found {seconds}")
    cores = usable_cores()
    numbers = sorted({1, max(1, cores // 2), max(1, cores - 1), cores, 2 * cores} if workers is None else set(workers))
    if not numbers or min(numbers) < 1:
        raise ConfigError(f"workers must be one number or more, each 1 or more, found {numbers}")
    tell = progress or (lambda: None)
    share = seconds * _WORKERS_SHARE
    with warnings.catch_warnings():
        # More workers than cores are tried on purpose: where images come from afar, they help.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        tries: Tries = {}
        _try(make_loader, tries, [(number, _MIDDLE) for number in numbers], share, tell)
        fewest = _best(_trials(tries)).num_workers
        # The depth in the middle is tried again beside the others: what is known of it is from other rounds.
        _try(make_loader, tries, [(fewest, depth) for depth in PREFETCH], seconds - share, tell)
        # All rounds count: what is taken is not to be slower than anything else that was seen.
        trials = _trials(tries)
        best = _best(trials)
        loader = make_loader(num_workers=best.num_workers, prefetch_factor=best.prefetch_factor)
    limit, advice = _limit(best, loader, cores)
    return Tuning(
        trials=tuple(trials),
        best=best,
        limit=limit,
        advice=advice,
        suspects=tuple(usual_suspects(loader, shared_bytes=best.shared_bytes)),
    )


def _try(
    make_loader: MakeLoader,
    tries: Tries,
    settings: Sequence[tuple[int, int]],
    seconds: float,
    tell: Callable[[], object],
) -> None:
    """Try settings in turn until the time is over, each once at least."""
    begin, longest = time.monotonic(), 0.0
    # A setting whose try would end after the time is not begun; the next one in turn would not end earlier.
    for turn in range(_ROUNDS * len(settings)):
        setting = settings[turn % len(settings)]
        started = time.monotonic()
        if turn >= len(settings) and started + longest > begin + seconds:
            break
        with LoaderProbe(make_loader(num_workers=setting[0], prefetch_factor=setting[1])) as driven:
            window = driven.measure(seconds / (_ROUNDS * len(settings)) / 2)
        tries.setdefault(setting, []).append((window, driven.first_batch_s, driven.batch_bytes))
        longest = max(longest, time.monotonic() - started)
        tell()


def _trials(tries: Tries) -> list[Trial]:
    """Return what was measured of each setting, the most modest first."""
    return [
        Trial(
            num_workers=workers,
            prefetch_factor=depth,
            windows=tuple(window for window, _, _ in tries[workers, depth]),
            first_batch_s=median(first_batch_s for _, first_batch_s, _ in tries[workers, depth]),
            batch_bytes=tries[workers, depth][0][2],
        )
        for workers, depth in sorted(tries)
    ]


def _best(trials: Sequence[Trial]) -> Trial:
    """Return the most modest of the settings that are as good as the fastest."""
    enough = _AS_GOOD * max(trial.images_per_s for trial in trials)
    modest = [trial for trial in trials if trial.images_per_s >= enough]
    return min(modest, key=lambda trial: (trial.num_workers, trial.prefetch_factor))


def _limit(best: Trial, loader: Loader, cores: int) -> tuple[str, str]:
    """Return what limits a setting, and what could be done about it."""
    window, split = best.total, loader.split
    busy = window.cpu_s / window.wall_s
    if busy >= _BUSY * cores:
        return "cores", (
            f"{busy:.1f} of {cores} cores are busy: more workers would not help; more cores, smaller images or a "
            "lighter transform would"
        )
    if window.own_cpu_s >= _BUSY * window.wall_s:
        return "training process", (
            "the process that trains is busy receiving: hand out fewer bytes per image (uint8, not float), or train "
            "with more ranks"
        )
    others = (window.machine_cpu_s - window.cpu_s) / window.wall_s
    if others >= _OTHERS * cores:
        return "other processes", f"they keep {others:.1f} cores busy: end them, and tune again"
    if not all(split.reader.is_local(number) for number in range(len(split.shards))):
        return "network", (
            "shards were still being fetched: `shardflow cache warm URL` fetches all of them before they are needed, "
            "and later epochs need no network"
        )
    size = sum(shard.bytes for shard in split.shards)
    if window.storage_bytes >= _FROM_DISK * window.images * size / len(split):
        return "disk", (
            "images come from the disk: a faster one helps, or memory in which the dataset fits "
            f"({size / 1e9:.1f} GB), or smaller images"
        )
    return (
        "not known",
        f"{busy:.1f} of {cores} cores are busy, and none of the usual limits is reached: tune again, for longer",
    )
