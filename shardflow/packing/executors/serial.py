"""The simplest executor: no processes, for debugging and for where none may be started."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shardflow.packing.jobs import Finish, Job, PieceResult


def _nobody(ordinal: int | None) -> None:
    pass


class Serial:
    """One job after the other, in the calling process."""

    def run(self, jobs: Iterable[Job], done: Callable[[PieceResult], None]) -> None:
        """See `Executor`."""
        for job in jobs:
            results = []
            for piece in job.pieces():
                results.append(piece.run(_nobody))
                done(results[-1])
            Finish(job=job, results=tuple(results)).run(_nobody)
