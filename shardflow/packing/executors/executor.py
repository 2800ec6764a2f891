"""What every executor keeps to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from shardflow.packing.jobs import Job, PieceResult


class Executor(Protocol):
    """Runs jobs, each to its receipt. After an error, finished jobs stay finished, and the others can be run again."""

    def run(self, jobs: Iterable[Job], done: Callable[[PieceResult], None]) -> None:
        """Run all jobs; `done` is told of each piece, in this thread, in any order.

        Raises:
            StoreError: The destination failed.
            PackIncompleteError: Workers die for no reason that lies in one input.
        """


ExecutorMaker: TypeAlias = Callable[[int], Executor]
"""Returns an executor whose workers hold the descriptor of a lock as well."""
