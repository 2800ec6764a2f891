"""A mix of several datasets: batches of each, interleaved by weight."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardflow._validation import check_integer
from shardflow.errors import ConfigError, ResumeMismatchError

from .checkpoint import Cursor, compare, saved_integers
from .loader import BatchSampler, Loader
from .sampler import EpochStart
from .stats import Stats, StatsRecorder

STATE_VERSION = 1

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, rounded to odd
_CHUNK = 1 << 20


class _Origin(NamedTuple):
    """A step, counted from the start of epoch 0, and where each loader is before it."""

    step: int
    starts: list[EpochStart]


class Mix:
    """Interleaves whole batches of several loaders in proportion to their weights; usable wherever a loader is.

    The loader of a step is a pure function of the step's number: the step's value in a Weyl sequence (k / golden ratio,
    modulo 1; Weyl, "Über die Gleichverteilung von Zahlen mod. Eins", 1916), looked up among the weights. Any section
    of steps has the right shares to within a few batches, all ranks agree without communication, and any step can be
    reached by arithmetic. Each loader runs through its own epochs, exactly.

    >>> mix = shardflow.Mix([("photos256", 3), ("sketches256", 1)], batch_size=256)      # doctest: +SKIP

    Args:
        sources: Pairs (loader, weight) or (path or URL of a dataset, weight), with weights above 0.
        steps_per_epoch: Batches per iteration, 1 or more; by default the sum of all loaders' epochs.
        options: Arguments of `Loader`, for the sources that are paths or URLs.

    Raises:
        ConfigError: There are no sources, a weight is not above 0, options have no effect, or fields differ.
    """

    def __init__(
        self,
        sources: Sequence[tuple[Loader | str | os.PathLike[str], float]],
        *,
        steps_per_epoch: int | None = None,
        **options: Any,
    ) -> None:
        if not sources or not all(0 < weight < math.inf for _, weight in sources):
            raise ConfigError(f"a mix needs one or more sources with weights above 0, found {[w for _, w in sources]}")
        if options and all(isinstance(source, Loader) for source, _ in sources):
            raise ConfigError(f"all sources are loaders already, so {', '.join(options)} would have no effect")
        if steps_per_epoch is not None:
            steps_per_epoch = check_integer("steps_per_epoch", steps_per_epoch, 1)
        self.loaders = [source if isinstance(source, Loader) else Loader(source, **options) for source, _ in sources]
        if len(found := {loader.fields for loader in self.loaders}) > 1:
            raise ConfigError(f"the loaders' fields differ: {'; '.join(map(str, sorted(found)))}; make them equal")
        self._weights = [float(weight) for _, weight in sources]
        shares = np.cumsum(self._weights) / sum(self._weights)
        self._bounds = np.array([min(int(share * 2**64), 2**64 - 1) for share in shares[:-1]], dtype=np.uint64)
        self._steps = steps_per_epoch or sum(len(loader) for loader in self.loaders)
        self._cursor = Cursor()  # its position counts steps
        self._origin = self._starts()  # from where other steps are reached by arithmetic
        self._running: list[Iterator[Any] | None] = [None] * len(sources)
        self._iterations = 0
        self._stats = StatsRecorder()

    @property
    def fields(self) -> tuple[str, ...]:
        """What a batch consists of."""
        return self.loaders[0].fields

    @property
    def substituted(self) -> set[str]:
        """The problem of each sample that was replaced by another."""
        return set().union(*(loader.substituted for loader in self.loaders))

    def __len__(self) -> int:
        """Return the number of batches in an epoch of the mix."""
        return self._steps

    def source_of(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of the loader of each step; steps are counted from the start of epoch 0."""
        values = steps.astype(np.uint64) * np.uint64(_GOLDEN)
        sources: npt.NDArray[np.int64] = np.searchsorted(self._bounds, values, side="right")
        return sources

    def __iter__(self) -> Iterator[Any]:
        """Start at the cursor that was set or loaded; after any iteration, at the start of the next epoch.

        One iteration at a time: starting another, or moving the mix, ends the one before it.
        """
        if self._cursor.begun:
            self._seek(self._cursor.epoch + 1)
        self._iterations += 1
        iteration = self._iterations
        epoch, first = self._cursor.epoch, self._cursor.position
        for step, batch in enumerate(self._stats.timed(self._batches(epoch, first)), start=first + 1):
            self._cursor.advance(step)
            yield batch
            if self._iterations == iteration:
                continue
            if step < self._steps:
                raise ConfigError(
                    "the mix was iterated again, or moved by set_epoch or load_state_dict, which ended this iteration; "
                    "move it between iterations, and use two mixes for two at once"
                )
            return
        self._cursor.set(epoch + 1)

    def _batches(self, epoch: int, first: int) -> Iterator[Any]:
        for step in range(first, self._steps):
            (source,) = self.source_of(np.array([epoch * self._steps + step])).tolist()
            yield self._next(source)

    def _next(self, source: int) -> Any:
        while True:
            running = self._running[source] or iter(self.loaders[source])
            self._running[source] = None  # after an error, and at the end of its epoch, it begins anew
            with contextlib.suppress(StopIteration):
                batch = next(running)
                self._running[source] = running
                return batch

    def describe(self) -> dict[str, Any]:
        """Return what a run's log needs to name its data: the description of each loader, and the weights."""
        sources = [loader.describe() for loader in self.loaders]
        return {"weights": self._weights, "steps_per_epoch": self._steps, "sources": sources}

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration run through `epoch`, as for a loader."""
        if self._cursor.set_epoch(epoch):
            self._seek(epoch)

    @property
    def batch_sampler(self) -> BatchSampler:
        """Where Lightning looks for `set_epoch` and the batch size (that of the first loader)."""
        return BatchSampler(sampler=self, batch_size=self.loaders[0].batch_sampler.batch_size)

    def _seek(self, epoch: int) -> None:
        """Move every loader to where it is at the start of an epoch.

        Steps are counted from the state that was loaded: those before it may have had another size.
        """
        end = epoch * self._steps
        if end < self._origin.step:
            self._origin = self._starts()
        counts = np.zeros(len(self.loaders), dtype=np.int64)
        for begin in range(self._origin.step, end, _CHUNK):
            steps = np.arange(begin, min(begin + _CHUNK, end))
            counts += np.bincount(self.source_of(steps), minlength=len(counts))
        for loader, start, count in zip(self.loaders, self._origin.starts, counts.tolist(), strict=True):
            loader.move_to(loader.after(start, count))
        self._move(epoch)

    def _starts(self) -> _Origin:
        return _Origin(0, [loader.first_start() for loader in self.loaders])

    def _move(self, epoch: int, position: int = 0) -> None:
        self._cursor.set(epoch, position)
        self._running = [None] * len(self.loaders)
        self._iterations += 1

    def stats(self) -> Stats:
        """Return where the time went since the iteration began; its `str` says what to do about it."""
        return self._stats.stats()

    def close(self) -> None:
        """End the worker processes of all loaders now; another iteration starts new ones."""
        for loader in self.loaders:
            loader.close()

    def state_dict(self) -> dict[str, Any]:
        """Return where the next batch starts, in the mix and in each of its loaders."""
        return {
            **self._identity(),
            "epoch": self._cursor.epoch,
            "position": self._cursor.position,
            "sources": [loader.state_dict() for loader in self.loaders],
        }

    def _identity(self) -> dict[str, Any]:
        """Return the settings that must be equal for a position to mean the same step."""
        return {"version": STATE_VERSION, "weights": self._weights, "steps_per_epoch": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration start where the state was saved.

        Raises:
            ResumeMismatchError: The state belongs to another mix.
        """
        if differences := compare(state, self._identity()):
            raise ResumeMismatchError(f"the state belongs to another mix: {'; '.join(differences)}; make these equal")
        sources = state.get("sources", ())
        if len(sources) != len(self.loaders):
            raise ResumeMismatchError(f"the state has {len(sources)} sources, this mix {len(self.loaders)}")
        epoch, position = saved_integers(state, "epoch", "position")
        # All states are checked before any loader is moved.
        starts = [loader.start_of(source) for loader, source in zip(self.loaders, sources, strict=True)]
        for loader, start in zip(self.loaders, starts, strict=True):
            loader.move_to(start)
        self._origin = _Origin(epoch * self._steps + position, starts)
        self._move(epoch, position)
