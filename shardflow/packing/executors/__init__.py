"""Executors run jobs in this process, in several processes, or on a cluster, and write the same bytes.

An image that crashes or hangs its decoder does the same to the caller of `Serial`; `Processes` and `Ray` lose two
workers and quarantine the image.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from shardflow._validation import check_integer
from shardflow.errors import ConfigError
from shardflow.packing.jobs import Done, Finish, Job

from .processes import Processes
from .ray import Ray

__all__ = ["EXECUTORS", "Executor", "Processes", "Ray", "Serial", "make_executor"]

EXECUTORS = ("processes", "ray", "serial")


class Executor(Protocol):
    """Runs jobs. After an error, finished jobs stay finished, and the other jobs can be run again."""

    def run(self, jobs: Iterable[Job], done: Done, *, inherited: Sequence[int] = ()) -> None:
        """Run all jobs; `done` gets their outcomes. Processes on this machine keep the `inherited` descriptors open.

        Raises:
            StoreError: The destination failed.
            PackIncompleteError: Workers die for another reason than a single input.
        """
        ...


class Serial:
    """Runs one job after the other in the calling process: for debugging, and where no process may be started."""

    def run(self, jobs: Iterable[Job], done: Done, *, inherited: Sequence[int] = ()) -> None:  # noqa: ARG002 - its own
        """See `Executor`."""

        for job in jobs:
            results = []
            for piece in job.pieces():
                results.append(piece.run())
                done(job, results[-1])
            done(job, Finish(job=job, results=tuple(results)).run())


def make_executor(name: str, workers: int | None = None, ray_address: str | None = None) -> Executor:
    """Return the executor with a name from `EXECUTORS`; see `pack` for the other arguments."""
    if name not in EXECUTORS:
        raise ConfigError(f"executor is {name!r}; allowed are {', '.join(EXECUTORS)}")
    if workers is not None:
        workers = check_integer("workers", workers, 1)
    if name == "ray":
        return Ray(workers, address=ray_address)
    return Processes(workers) if name == "processes" else Serial()
