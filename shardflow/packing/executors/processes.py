"""The executor of one machine: worker processes share the pieces of the jobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from typing import NamedTuple

from shardflow._cores import allowed_cores
from shardflow.errors import PackIncompleteError, WorkerError
from shardflow.formats.receipt import Receipt
from shardflow.packing.jobs import Done, Finish, Job, Outcome, Piece, PieceResult

from .worker_process import Task, Worker

ITEM_DEADLINE_S = 300.0
_FINISH_DEADLINE_S = 3600.0  # a shard of any size on a slow disk
_LOOKS_PER_DEADLINE = 4
_SPARE_DEATHS = 32
_INPUTS_PER_DEATH = 10


class _OpenJob(NamedTuple):
    """A job that has begun, its number of pieces, and the results of finished pieces by their first ordinals."""

    job: Job
    pieces: int
    results: dict[int, PieceResult]


class Processes:
    """Several worker processes that share the pieces of the jobs.

    A worker that dies or hangs is replaced and its piece repeated. If a second worker dies at the same input, the input
    is quarantined. Deaths beyond 32, one per worker and one per ten inputs have another cause, and end the run.

    A worker counts as hung after `item_deadline_s` at one input.
    """

    def __init__(self, workers: int | None = None, *, item_deadline_s: float = ITEM_DEADLINE_S) -> None:
        self.workers = workers or allowed_cores()
        self.item_deadline_s = item_deadline_s

    def run(self, jobs: Iterable[Job], done: Done, *, inherited: Sequence[int] = ()) -> None:
        """See `Executor`."""
        _Run(self, jobs, done, inherited).run()


class _Run:
    """One run of `Processes`: its open jobs, its workers, and their deaths."""

    def __init__(self, pool: Processes, jobs: Iterable[Job], done: Done, inherited: Sequence[int]) -> None:
        self._pool = pool
        self._inherited = inherited
        self._jobs = iter(jobs)
        self._done = done
        self._tasks: deque[Task] = deque()
        self._open: dict[str, _OpenJob] = {}
        self._workers: list[Worker] = []
        self._suspects: set[tuple[str, int | None]] = set()
        self._deaths = self._inputs_done = 0

    def run(self) -> None:
        try:
            while self._assign_tasks():
                busy = [worker for worker in self._workers if worker.task is not None]
                wait([worker.connection for worker in busy], self._pool.item_deadline_s / _LOOKS_PER_DEADLINE)
                for worker in busy:
                    self._check(worker)
        finally:
            for worker in self._workers:
                worker.stop("no longer needed")

    def _assign_tasks(self) -> bool:
        """Give every worker a task, starting workers as needed; return whether any worker has a task."""
        idle = [worker for worker in self._workers if worker.task is None]
        while len(self._tasks) < self._pool.workers and (job := next(self._jobs, None)) is not None:
            pieces = job.pieces()
            self._open[job.name] = _OpenJob(job, len(pieces), {})
            self._tasks.extend(pieces)
        while self._tasks and (idle or len(self._workers) < self._pool.workers):
            if not idle:
                idle.append(Worker(self._inherited))
                self._workers.append(idle[-1])
            task = self._tasks.popleft()
            idle.pop().send(task, self._pool.item_deadline_s if isinstance(task, Piece) else _FINISH_DEADLINE_S)
        return any(worker.task is not None for worker in self._workers)

    def _check(self, worker: Worker) -> None:
        task = worker.task
        assert task is not None
        try:
            outcome = worker.receive()
        except WorkerError as error:
            self._replace(worker, task, str(error))
            return
        if outcome is not None:
            self._complete(task, outcome)
        elif worker.is_overdue():
            self._replace(worker, task, worker.stop("it did not end in time"))

    def _complete(self, task: Task, outcome: Outcome) -> None:
        opened = self._open[task.job.name]
        if isinstance(outcome, Receipt):
            del self._open[task.job.name]
            self._done(opened.job, outcome)
            return
        opened.results[task.job.first] = outcome
        if len(opened.results) == opened.pieces:
            results = tuple(opened.results[first] for first in sorted(opened.results))
            self._tasks.appendleft(Finish(job=opened.job, results=results))
        self._inputs_done += len(task.job.items)
        self._done(opened.job, outcome)

    def _replace(self, worker: Worker, task: Task, reason: str) -> None:
        """Drop a dead worker and requeue its task; a second death at the same input marks the input as crashing."""
        self._workers.remove(worker)
        self._deaths += 1
        ordinal = worker.ordinal
        if self._deaths > _SPARE_DEATHS + self._pool.workers + self._inputs_done // _INPUTS_PER_DEATH:
            where = repr(task.job.items[ordinal - task.job.first].path) if ordinal is not None else task.job.name
            raise PackIncompleteError(
                f"{self._deaths} workers died while {self._inputs_done} inputs were done, the last one at {where}: "
                f"{reason}. Is memory short? Use fewer workers; the same command continues where this one stopped"
            )
        suspect = (task.job.name, ordinal)
        if isinstance(task, Piece) and ordinal is not None and suspect in self._suspects:
            task = replace(task, crashing_inputs={**task.crashing_inputs, ordinal: f"{reason}, twice"})
        self._suspects.add(suspect)
        self._tasks.appendleft(task)
