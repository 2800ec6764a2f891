"""Executors run jobs: one after the other in this process, side by side in several, or on a cluster.

The bytes are the same with each. They differ in what an input can break: an image that crashes its decoder, or hangs
it, ends the caller of `Serial`; it costs `Processes` and `Ray` two workers and is quarantined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from shardflow.errors import ConfigError
from shardflow.packing.jobs import Done, Job

from .processes import Processes
from .ray import Ray
from .serial import Serial

__all__ = ["EXECUTORS", "Executor", "ExecutorMaker", "Processes", "Ray", "Serial", "executor_maker"]

EXECUTORS = ("processes", "ray", "serial")


class Executor(Protocol):
    """Runs jobs. After an error, finished jobs stay finished, and the others can be run again."""

    def run(self, jobs: Iterable[Job], done: Done) -> None:
        """Run all jobs; `done` gets their outcomes.

        Raises:
            StoreError: The destination failed.
            PackIncompleteError: Workers die for a reason that does not lie in one input.
        """
        ...


ExecutorMaker: TypeAlias = Callable[[int], Executor]
"""Returns an executor whose workers hold the descriptor of a lock as well."""


def executor_maker(name: str, workers: int | None = None, ray_address: str | None = None) -> ExecutorMaker:
    """Return a function that makes the executor of a name once the destination is locked.

    Raises:
        ConfigError: An argument is wrong.
    """
    if name not in EXECUTORS:
        raise ConfigError(f"executor is {name!r}; allowed are {', '.join(EXECUTORS)}")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers is {workers}; 1 is the least")
    makers: dict[str, ExecutorMaker] = {
        "processes": lambda lock: Processes(workers, (lock,)),
        "ray": lambda _: Ray(workers, address=ray_address),
        "serial": lambda _: Serial(),
    }
    return makers[name]
