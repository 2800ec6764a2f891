"""The executor of a cluster: Ray runs whole jobs, each on one node, as `Processes` with one process does.

A job's fragments lie in a temporary directory of its node, so nothing but the finished shard travels. Whatever ends a
decoder is dealt with on the node; when the node, or Ray's own process there, is lost, Ray does the job again somewhere:
publishing is atomic, so a job that runs twice does no harm.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

from shardflow.errors import ConfigError, PackIncompleteError, ShardflowError
from shardflow.packing.jobs import Job, PieceResult
from shardflow.storage.staging import temporary_staging

from .processes import Processes
from .ray_preflight import Premises, marked

_RETRIES = 5
_ANSWER_S = 5.0
_JOBS_PER_CORE = 2  # so that no core waits for the planning machine, and a cluster that can grow sees why it should


class Ray:
    """The cores of a Ray cluster; each does one job at a time.

    Args:
        workers: Jobs at a time; None for what keeps the whole cluster busy.
        address: Of the cluster, as `ray.init` takes it; None for one on this machine, for as long as the run takes. A
            connection that the process has already is used in any case.
    """

    def __init__(self, workers: int | None = None, *, address: str | None = None) -> None:
        self.workers = workers
        self.address = address

    def run(self, jobs: Iterable[Job], done: Callable[[PieceResult], None]) -> None:
        """See `Executor`; `done` is told of the pieces of a job when all are done.

        Raises:
            ConfigError: Ray is not installed, there is no cluster, or a node has other codecs or another source.
        """
        jobs = iter(jobs)
        first = next(jobs, None)
        if first is None:
            return
        with _connected(self.address, self.workers) as ours, marked(first) as premises:
            _run(chain((first,), jobs), premises, self.workers, done, cancel=not ours)


def _run_job(job: Job, premises: Premises) -> list[PieceResult] | ShardflowError:
    """Do a job; this is what runs on a node. Errors are returned, because Ray would wrap them."""
    results: list[PieceResult] = []
    try:
        premises.check(job)
        with temporary_staging() as (spool, lock):
            Processes(1, (lock,)).run([replace(job, spool=spool)], results.append)
    except ShardflowError as error:
        return error
    return results


def _run(
    jobs: Iterator[Job],
    premises: Premises,
    workers: int | None,
    done: Callable[[PieceResult], None],
    *,
    cancel: bool,
) -> None:
    """Do the jobs. A connection that ends takes its tasks along; where it goes on, what is left has to be cancelled."""
    import ray

    task = ray.remote(num_cpus=1, max_retries=_RETRIES, scheduling_strategy="SPREAD")(_run_job)
    shared = ray.put(premises)
    running: set[Any] = set()
    try:
        while True:
            most = workers or _JOBS_PER_CORE * max(1, int(ray.cluster_resources().get("CPU", 0)))
            while len(running) < most and (job := next(jobs, None)) is not None:
                running.add(task.remote(job, shared))
            if not running:
                break
            for ended in ray.wait(list(running))[0]:
                outcome = ray.get(ended)
                running.remove(ended)
                if isinstance(outcome, ShardflowError):
                    raise outcome
                for result in outcome:
                    done(result)
    except ray.exceptions.RayTaskError as error:
        if not isinstance(error.cause, ImportError):
            raise  # a defect: its traceback is in it
        raise ConfigError(
            f"a node of the cluster lacks what the job needs ({error.cause}); install it there"
        ) from error
    except ray.exceptions.RayError as error:
        message = f"Ray gave up on a shard after {_RETRIES + 1} attempts: {type(error).__name__}. Is memory short? Use"
        raise PackIncompleteError(
            f"{message} fewer workers; the same command goes on where this one stopped"
        ) from error
    finally:
        with contextlib.suppress(Exception):  # what ended the run matters more; on its own a task ends with its shard
            for left in running if cancel else ():
                ray.cancel(left, force=True)


@contextlib.contextmanager
def _connected(address: str | None, workers: int | None) -> Iterator[bool]:
    """Be connected to a cluster while the body runs, which is told whether the connection ends with it."""
    try:
        with warnings.catch_warnings():  # Ray's are for those who write for it
            warnings.simplefilter("ignore")
            import ray
    except ImportError as error:
        raise ConfigError("executor 'ray' needs Ray: pip install 'shardflow[ray]'") from error
    if ray.is_initialized():
        yield False
        return
    own: dict[str, Any] = {} if address else {"num_cpus": workers, "include_dashboard": False}
    with _signals_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _knock(address)
            ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(f"no Ray cluster answers at {address or 'this machine'}: {reason}") from error
    try:
        yield True
    finally:
        ray.shutdown()


def _knock(address: str | None) -> None:
    """Fail soon where nobody listens: Ray itself tries for minutes."""
    place = urlsplit(address if address and "://" in address else f"//{address or ''}")
    if place.hostname and place.port:
        socket.create_connection((place.hostname, place.port), timeout=_ANSWER_S).close()


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Undo what the body does about SIGTERM: Ray exits without a word, and with another code."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
