"""The serial executor: no processes, for debugging and for where none may be started."""

from __future__ import annotations

from collections.abc import Iterable

from shardflow.packing.jobs import Done, Finish, Job


class Serial:
    """One job after the other, in the calling process."""

    def run(self, jobs: Iterable[Job], done: Done) -> None:
        """See `Executor`."""
        for job in jobs:
            results = []
            for piece in job.pieces():
                results.append(piece.run(_ignore))
                done(job, results[-1])
            done(job, Finish(job=job, results=tuple(results)).run(_ignore))


def _ignore(ordinal: int | None) -> None:
    pass
