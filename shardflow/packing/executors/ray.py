"""The executor of a cluster: Ray runs whole jobs, each on one node, with `Processes` of one worker.

A job's partial tars are in a temporary directory of its node, so only the finished shard crosses the network. An input
that crashes its decoder is handled on the node. If the node or its Ray process is lost, Ray runs the job elsewhere;
publishing is atomic, so a job may run twice.

A path that exists on every node need not be the same disk, and other codecs make other bytes. So each job first checks
that its node has the same source, destination and codecs as the planning machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import signal
import socket
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

from shardflow.errors import ConfigError, NotFoundError, PackIncompleteError, SampleError, ShardflowError, StoreError
from shardflow.packing.jobs import Done, Job, Outcome
from shardflow.packing.recipe import codec_versions
from shardflow.packing.sources.items import Item
from shardflow.storage.interface import TEMPORARY
from shardflow.storage.resolve import open_storage
from shardflow.storage.staging import temporary_staging

from .processes import Processes

_RETRIES = 5
_ANSWER_S = 5.0
_JOBS_PER_CORE = 2  # so that no core waits for the planning machine, and an autoscaling cluster sees the demand

_TRIED_INPUTS = 8
_REACH = "a cluster needs a source and a destination that every node reaches by the same name: a shared disk, or s3://"


class Ray:
    """The cores of a Ray cluster: `workers` jobs at a time, or two per core with None.

    `address` is the argument of `ray.init`; None starts a cluster on this machine for the run. An existing connection
    of this process takes precedence.
    """

    def __init__(self, workers: int | None = None, *, address: str | None = None) -> None:
        self.workers = workers
        self.address = address

    def run(self, jobs: Iterable[Job], done: Done, *, inherited: Sequence[int] = ()) -> None:  # noqa: ARG002 - nodes
        """See `Executor`; the outcomes of a job arrive when the whole job is done."""
        jobs = iter(jobs)
        first = next(jobs, None)
        if first is None:
            return
        with _connected(self.address, self.workers) as ours, preflight(first) as checks:
            _run(chain((first,), jobs), checks, self.workers, done, cancel=not ours)


def _run_job(job: Job, checks: Preflight) -> list[Outcome] | ShardflowError:
    """Do a job on a node. Return errors instead of raising them, because Ray would wrap them."""
    outcomes: list[Outcome] = []
    try:
        checks.check(job)
        with temporary_staging() as (staging, lock):
            here = [replace(job, staging=staging)]
            Processes(1).run(here, lambda _, outcome: outcomes.append(outcome), inherited=(lock,))
    except ShardflowError as error:
        return error
    return outcomes


def _run(jobs: Iterator[Job], checks: Preflight, workers: int | None, done: Done, *, cancel: bool) -> None:
    """Do the jobs. Closing our connection ends its tasks; `cancel` unfinished tasks on a connection of the caller."""
    import ray

    task = ray.remote(num_cpus=1, max_retries=_RETRIES, scheduling_strategy="SPREAD")(_run_job)
    shared = ray.put(checks)
    running: dict[Any, Job] = {}
    try:
        while True:
            most = workers or _JOBS_PER_CORE * max(1, int(ray.cluster_resources().get("CPU", 0)))
            while len(running) < most and (job := next(jobs, None)) is not None:
                running[task.remote(job, shared)] = job
            if not running:
                break
            for ended in ray.wait(list(running))[0]:
                outcomes = ray.get(ended)
                job = running.pop(ended)
                if isinstance(outcomes, ShardflowError):
                    raise outcomes
                for outcome in outcomes:
                    done(job, outcome)
    except ray.exceptions.RayTaskError as error:
        if not isinstance(error.cause, ImportError):
            raise  # a bug: keep the traceback
        raise ConfigError(
            f"a node of the cluster lacks a requirement of the job ({error.cause}); install it there"
        ) from error
    except ray.exceptions.RayError as error:
        raise PackIncompleteError(
            f"Ray gave up on a shard after {_RETRIES + 1} attempts: {type(error).__name__}. Is memory short? Use fewer "
            "workers; the same command continues where this one stopped"
        ) from error
    finally:
        with contextlib.suppress(Exception):  # the error of the run matters more; otherwise a task ends after its shard
            for left in running if cancel else ():
                ray.cancel(left, force=True)


@contextlib.contextmanager
def _connected(address: str | None, workers: int | None) -> Iterator[bool]:
    """Connect to a cluster while the context lasts; yield whether the connection ends with the context."""
    try:
        with warnings.catch_warnings():  # Ray's warnings are for its developers
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
            _probe(address)
            ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(f"no Ray cluster answers at {address or 'this machine'}: {reason}") from error
    try:
        yield True
    finally:
        ray.shutdown()


def _probe(address: str | None) -> None:
    """Raise OSError soon if nothing answers at an address: Ray tries for minutes."""
    place = urlsplit(address if address and "://" in address else f"//{address or ''}")
    if place.hostname and place.port:
        socket.create_connection((place.hostname, place.port), timeout=_ANSWER_S).close()


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the SIGTERM handler afterwards: Ray's handler exits without a message, and with another exit code."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """The state of the planning machine, for comparison on the nodes."""

    host: str
    folder: str  # its working directory, the base of relative paths
    mark: tuple[str, bytes]  # name and content of a blob in the destination
    probe: tuple[Item, str] | None  # an input and its SHA-256; None if that machine cannot read the first inputs
    codecs: dict[str, str]
    recipe_sha256: str

    def check(self, job: Job) -> None:
        """Raise ConfigError if this node differs from the planning machine."""
        with contextlib.suppress(OSError):  # without the directory, the checks below fail for relative paths
            os.chdir(self.folder)
        here = f"node {socket.gethostname()}"
        if job.recipe.digest != self.recipe_sha256:
            raise ConfigError(
                f"{here} has the codecs {codec_versions()}, {self.host} has {self.codecs}, and other codecs make other "
                "bytes; install the same versions on every node"
            )
        name, content = self.mark
        storage = open_storage(job.dst, job.storage_options)
        try:
            same = storage.read(name) == content
        except NotFoundError:
            same = False
        if not same:
            raise ConfigError(f"{here} does not see the same {storage} as {self.host}; {_REACH}")
        if self.probe is not None:
            item, sha256 = self.probe
            found = _read_sha256(job, item)
            if found != sha256:
                problem = "has other bytes there" if found else "cannot be read there"
                raise ConfigError(f"{here} does not see the source of {self.host}: {item.path!r} {problem}; {_REACH}")


@contextlib.contextmanager
def preflight(job: Job) -> Iterator[Preflight]:
    """Put a mark into the destination while the context lasts; yield the state of this machine."""
    storage = open_storage(job.dst, job.storage_options)
    mark = (f"{TEMPORARY}ray.{secrets.token_hex(4)}", secrets.token_bytes(16))
    readable = ((item, sha256) for item in job.items[:_TRIED_INPUTS] if (sha256 := _read_sha256(job, item)))
    checks = Preflight(
        host=socket.gethostname(),
        folder=os.getcwd(),
        mark=mark,
        probe=next(readable, None),
        codecs=codec_versions(),
        recipe_sha256=job.recipe.digest,
    )
    storage.put(*mark)
    try:
        yield checks
    finally:
        with contextlib.suppress(StoreError):  # the next attempt removes it
            storage.remove(mark[0])


def _read_sha256(job: Job, item: Item) -> str | None:
    try:
        return hashlib.sha256(job.reader.read(item).image).hexdigest()
    except SampleError:
        return None
