"""Several datasets as one: batches of each, interleaved by weight."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardflow.errors import ConfigError, ResumeMismatchError

from .batchsampler import BatchSampler
from .cursor import Cursor
from .loader import Loader

STATE_VERSION = 1

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, rounded to odd
_CHUNK = 1 << 20


class Mix:
    """Interleaves whole batches of several loaders, each as often as its weight says; usable wherever a loader is.

    Which loader a step takes its batch from is a pure function of the step's number: the step's place in a Weyl
    sequence (k / golden ratio, modulo 1; Weyl, "Über die Gleichverteilung von Zahlen mod. Eins", 1916), looked up among
    the weights. Any stretch of steps has the right shares to within a few batches, all ranks agree without talking, and
    any step can be reached by arithmetic. Each loader runs through its own epochs, exactly.

    >>> mix = shardflow.Mix([("photos256", 3), ("sketches256", 1)], batch_size=256)      # doctest: +SKIP

    Args:
        sources: Pairs of a loader, or of a path or URL from which one is made, and a weight above 0.
        steps_per_epoch: Batches per iteration; by default those of all sources' epochs together.
        options: Arguments of the loaders that are made here.

    Raises:
        ConfigError: No sources, a weight that is not above 0, or options without a use.
    """

    def __init__(
        self,
        sources: Sequence[tuple[Loader | str | os.PathLike[str], float]],
        *,
        steps_per_epoch: int | None = None,
        **options: Any,
    ) -> None:
        if not sources or not all(weight > 0 for _, weight in sources):
            raise ConfigError(f"a mix takes one or more sources with weights above 0, found {[w for _, w in sources]}")
        if options and all(isinstance(source, Loader) for source, _ in sources):
            raise ConfigError(f"all sources are loaders already, so {', '.join(options)} would have no effect")
        if steps_per_epoch is not None and steps_per_epoch < 1:
            raise ConfigError(f"steps_per_epoch must be 1 or more, found {steps_per_epoch}")
        self.loaders = [source if isinstance(source, Loader) else Loader(source, **options) for source, _ in sources]
        self._weights = [float(weight) for _, weight in sources]
        shares = np.cumsum(self._weights) / sum(self._weights)
        self._bounds = np.array([min(int(share * 2**64), 2**64 - 1) for share in shares[:-1]], dtype=np.uint64)
        self._steps = steps_per_epoch or sum(len(loader) for loader in self.loaders)
        self._cursor = Cursor()  # its position counts steps
        self._running: list[Iterator[Any] | None] = [None] * len(sources)

    @property
    def fields(self) -> tuple[str, ...]:
        """What a batch consists of: what those of the first loader do."""
        return self.loaders[0].fields

    def __len__(self) -> int:
        """Return the number of batches in an epoch of the mix."""
        return self._steps

    def source_of(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return, for step numbers counted from the very first, which loader each takes its batch from."""
        places = steps.astype(np.uint64) * np.uint64(_GOLDEN)
        chosen: npt.NDArray[np.int64] = np.searchsorted(self._bounds, places, side="right")
        return chosen

    def __iter__(self) -> Iterator[Any]:
        """Start at the cursor that was set or loaded; after any iteration, at the start of the next epoch."""
        if self._cursor.begun:
            self._seek(self._cursor.epoch + 1)
        epoch, first = self._cursor.epoch, self._cursor.position
        for step in range(first, self._steps):
            (source,) = self.source_of(np.array([epoch * self._steps + step])).tolist()
            batch = self._next(source)
            self._cursor.hand_out(step + 1)
            yield batch
        self._cursor.set(epoch + 1)

    def _next(self, source: int) -> Any:
        while True:
            running = self._running[source]
            if running is None:
                running = self._running[source] = iter(self.loaders[source])
            try:
                return next(running)
            except StopIteration:
                self._running[source] = None  # its epoch is over; it goes on with its next
            except BaseException:
                self._running[source] = None
                raise

    def describe(self) -> dict[str, Any]:
        """Return what a run's log needs to name its data: that of each loader, and how they are mixed."""
        sources = [loader.describe() for loader in self.loaders]
        return {"weights": self._weights, "steps_per_epoch": self._steps, "sources": sources}

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the next iteration runs through; as for a loader."""
        if self._cursor.set_epoch(epoch):
            self._seek(epoch)

    @property
    def batch_sampler(self) -> BatchSampler:
        """Where Lightning looks for `set_epoch`: this mix, and the batch size of its first loader."""
        return BatchSampler(sampler=self, batch_size=self.loaders[0].batch_sampler.batch_size)

    def _seek(self, epoch: int) -> None:
        """Put every loader where it stands at the start of an epoch."""
        counts = np.zeros(len(self.loaders), dtype=np.int64)
        end = epoch * self._steps
        for begin in range(0, end, _CHUNK):
            steps = np.arange(begin, min(begin + _CHUNK, end))
            counts += np.bincount(self.source_of(steps), minlength=len(counts))
        for loader, count in zip(self.loaders, counts.tolist(), strict=True):
            loader.seek(count)
        self._cursor.set(epoch)
        self._running = [None] * len(self.loaders)

    def state_dict(self) -> dict[str, Any]:
        """Return where the next batch starts, in the mix and in each of its loaders."""
        return {
            "version": STATE_VERSION,
            "weights": self._weights,
            "steps_per_epoch": self._steps,
            "epoch": self._cursor.epoch,
            "position": self._cursor.position,
            "sources": [loader.state_dict() for loader in self.loaders],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration start where the saved one stood.

        Raises:
            ResumeMismatchError: The state belongs to another mix.
        """
        for name, value in (
            ("version", STATE_VERSION),
            ("weights", self._weights),
            ("steps_per_epoch", self._steps),
        ):
            if state.get(name) != value:
                raise ResumeMismatchError(
                    f"{name} is {state.get(name)!r} in the state and {value!r} here; make it equal"
                )
        for loader, its_state in zip(self.loaders, state["sources"], strict=True):
            loader.load_state_dict(its_state)
        self._cursor.set(int(state["epoch"]), int(state["position"]))
        self._running = [None] * len(self.loaders)
