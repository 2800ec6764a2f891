"""Worker processes: the DataLoader that runs a pipeline, how its batches and errors arrive, and how workers end.

Only this file uses private attributes of torch's DataLoader.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import io
import multiprocessing
import os
import pickletools
import select
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Generator, Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import webdataset as wds
from torch.utils.data import DataLoader, get_worker_info

from shardflow._signals import FOR_THE_JOB, held_back, ignore
from shardflow.errors import ConfigError, ShardflowError, WorkerError

from .shared_memory import BatchSender
from .worker_errors import SentError
from .worker_settings import Workers

_RUN_AGAIN = 78  # the exit code of a worker that was about to start workers
_GUARD = 'put the start of training below `if __name__ == "__main__":`'
_UNGUARDED = f"workers that are not forked run the training script again, which then starts workers: {_GUARD}"


class WorkerQueue(Queue):  # type: ignore[type-arg] # not subscriptable before Python 3.12
    """A multiprocessing queue that costs the training process less: it sends small messages directly.

    The queues of multiprocessing send through a thread, so that no message can block the sender, and make a selector
    for each wait. A request for a batch has 20 bytes: it is written to the pipe at once if there is room for it, and no
    thread per worker is needed.
    """

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Send an object: directly if that cannot block and the queue has not started its thread."""
        if self._thread is None and os.getpid() == self._opid and not self._closed:  # type: ignore[attr-defined]
            self._message.seek(0)
            self._message.truncate()
            self._pickler.clear_memo()
            self._pickler.dump(obj)
            message = self._message.getvalue()
            # A pipe is writable if it takes PIPE_BUF bytes: these and the four that precede them.
            if len(message) <= select.PIPE_BUF - 4 and self._writable.poll(0):
                self._sem.acquire()  # type: ignore[attr-defined] # `get` releases it
                self._send_bytes(message)  # type: ignore[attr-defined]
                return
        super().put(obj, block, timeout)

    def _reset(self, after_fork: bool = False) -> None:
        super()._reset(after_fork)  # type: ignore[misc]
        readable, self._writable = select.poll(), select.poll()
        readable.register(self._reader, select.POLLIN)  # type: ignore[attr-defined]
        self._message = io.BytesIO()
        self._pickler = ForkingPickler(self._message)  # making one takes ten times as long as its message
        self._writable.register(self._writer, select.POLLOUT)  # type: ignore[attr-defined]
        self._poll = lambda timeout=0.0: bool(readable.poll(1000 * timeout))


def with_queues(context: Any) -> BaseContext:
    """Return a copy of a multiprocessing context, or of the context of a start method, with these queues."""
    own: Any = copy.copy(context if isinstance(context, BaseContext) else multiprocessing.get_context(context))
    own.Queue = functools.partial(WorkerQueue, ctx=own)
    return own  # type: ignore[no-any-return]


class WorkerPool(wds.WebLoader):  # type: ignore[misc] # webdataset has no types
    """Runs a pipeline in worker processes, which are kept from epoch to epoch, or in this process."""

    def __init__(self, pipeline: wds.DataPipeline, workers: Workers, sender: BatchSender) -> None:
        self._workers, self._sender, num_workers, self._owner = workers, sender, workers.count, os.getpid()
        with warnings.catch_warnings():  # torch warns of many workers here, and again when it starts them
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            super().__init__(
                pipeline,
                batch_size=None,
                collate_fn=_unchanged,
                num_workers=num_workers,
                prefetch_factor=workers.prefetch_factor if num_workers else None,
                persistent_workers=num_workers > 0,
                pin_memory=bool(workers.pin_memory),
                multiprocessing_context=workers.multiprocessing_context if num_workers else None,
                # Creating an iterator draws from this generator, and must not change the state of the global one.
                generator=torch.Generator(),
            )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the running workers: a copy starts its own."""
        loader = copy.copy(self.data_loader)
        loader._iterator = None
        if self._workers.count:
            loader.multiprocessing_context = self._workers.multiprocessing_context
        return {**self.__dict__, "pipeline": [loader, *self.pipeline[1:]]}

    @property
    def data_loader(self) -> DataLoader[Any]:
        """The DataLoader, which is the first stage of a WebLoader."""
        loader: DataLoader[Any] = self.pipeline[0]
        return loader

    def iterator1(self) -> Generator[Any, None, None]:
        """Yield the pipeline's batches as one iteration; raise the errors of workers.

        The DataLoader notices within five seconds that a worker or the pinning thread has died.

        Raises:
            WorkerError: A worker or the pinning thread died.
            ConfigError: The workers could not start, because the script lacks `if __name__ == "__main__"`.
        """
        try:
            yield from self._items()
        finally:  # also if a signal ended the wait for the first batch
            self._raise_by_requests(self.data_loader._iterator)

    def _items(self) -> Generator[Any, None, None]:
        if self.data_loader.num_workers and getattr(multiprocessing.current_process(), "_inheriting", False):
            os._exit(_RUN_AGAIN)  # a worker that runs the user's script: the training process reports it
        self._leave_workers_of_others()
        is_start = self.data_loader._iterator is None
        if is_start and self._workers.count:
            slots = self._sender.start()
            self.data_loader.worker_init_fn = functools.partial(_start_worker, os.getpid())
            self.data_loader.multiprocessing_context = with_queues(self.data_loader.multiprocessing_context)
        try:
            # The DataLoader draws a seed by its generator; forked workers keep this default device.
            with _starting(self._workers) if is_start else contextlib.nullcontext(), torch.device("cpu"):
                items: Any = iter(self.data_loader)
                if is_start and self._workers.count:
                    weakref.finalize(items, self._sender.end, slots)
                    for worker in getattr(items, "_workers", ()):
                        _end_by_kill(worker._popen)
        except BrokenPipeError:  # a worker ended before it had read its arguments
            raise ConfigError(_UNGUARDED) from None
        except RuntimeError as error:
            if not _is_death(error):
                raise
            raise _cause_of_death(_exit_codes(self.data_loader._iterator), error) from None  # since the last iteration
        is_profiled = torch.autograd._profiler_enabled  # type: ignore[attr-defined] # from torch._C
        try:
            while True:
                try:
                    # As next(), without the entry for torch's profiler, which costs more than the request of a batch.
                    item = next(items) if is_profiled() else items._next_data()
                except StopIteration:
                    return
                except RuntimeError as error:
                    if not _is_death(error):
                        raise
                    raise _cause_of_death(_exit_codes(items), error) from None
                self._raise_by_requests(items)
                if isinstance(item, SentError):
                    item = item.error()
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            del items  # an exception that the caller keeps must not keep the iteration alive

    @staticmethod  # at interpreter exit functions of the module no longer exist
    def _raise_by_requests(items: Any) -> None:
        """Let the next request raise the error of a dead worker, where a training loop can catch it.

        By default torch raises it from a signal handler, in the middle of a training step or while Python exits.
        """
        if getattr(items, "_worker_pids_set", False):
            torch._C._remove_worker_pids(id(items))
            items._worker_pids_set = False

    def end(self) -> None:
        """End the worker processes now, even if they are still referred to; the next iteration starts new ones."""
        self._leave_workers_of_others()
        iterator, self.data_loader._iterator = self.data_loader._iterator, None
        if iterator is not None:
            iterator._shutdown_workers()  # type: ignore[attr-defined] # only iterators with workers are kept

    def _leave_workers_of_others(self) -> None:
        """Forget the workers of the process from which this one was forked; this one starts new ones."""
        if self._owner != os.getpid():
            _of_others.append(self.data_loader._iterator)  # kept, because its end would end them
            self.data_loader._iterator, self._owner = None, os.getpid()

    def pids(self) -> list[int]:
        """Return the PIDs of the running workers."""
        return [worker.pid for worker in getattr(self.data_loader._iterator, "_workers", ())]


_of_others: list[Any] = []


def _end_by_kill(popen: Any) -> None:
    """Make `terminate` kill a worker, which ignores SIGTERM; without a cycle, which would keep its descriptors."""
    kill = weakref.WeakMethod(popen.kill)

    def terminate() -> None:
        if (living := kill()) is not None:
            living()

    popen.terminate = terminate


def check_sendable(workers: Workers, **objects: Any) -> None:
    """Raise ConfigError if workers with this start method cannot receive these objects of the user."""
    method = workers.start_method
    if not workers.count or method == "fork":
        return
    main = sys.modules["__main__"]
    is_script, file = getattr(main, "__spec__", None) is None, getattr(main, "__file__", None)
    if is_script and file is not None and not os.path.exists(file):
        again = f"workers that are started by {method!r} run the training script again, and {file} is not a file"
        raise ConfigError(f"{again}: write it into one, and {_GUARD}")
    for name, value in objects.items():
        where = f"workers that are started by {method!r}"
        remedy = (
            "define it in a separate module and import it from there, or pass num_workers=Workers(..., "
            "multiprocessing_context='fork')"
        )
        try:
            sent = bytes(ForkingPickler.dumps(value))
        except Exception as error:  # pickling can raise nearly any exception
            raise ConfigError(f"{name} cannot be sent to {where} ({error}); {remedy}") from None
        # As in multiprocessing: a notebook and `python -c` have no file that a worker could run.
        is_interactive = is_script and file is None
        if is_interactive and any(argument == "__main__" for _, argument, _ in pickletools.genops(sent)):
            raise ConfigError(f"{name} is defined in this session, where {where} do not find it; {remedy}")


@contextlib.contextmanager
def _starting(workers: Workers) -> Iterator[None]:
    """Protect the worker processes that the body starts, and their helper processes, from signals to the job."""
    if not workers.count or workers.start_method == "fork":
        if workers.count:
            import numpy.random  # noqa: F401 - torch seeds it in each worker, which would import it
        with held_back():
            yield
        return
    with held_back():
        resource_tracker.ensure_running()
    if workers.start_method == "forkserver":
        others, ours = forkserver._forkserver._preload_modules, f"{__package__}.fork_server"  # type: ignore[attr-defined]
        forkserver.set_forkserver_preload([*others, *({ours} - {*others})])
        forkserver.ensure_running()
    with held_back():
        yield


def _exit_codes(items: Any) -> list[int | None]:
    """Return the exit codes of an iteration's workers; empty if the iteration has not begun."""
    return [worker.exitcode for worker in getattr(items, "_workers", ())]


def _is_death(error: RuntimeError) -> bool:
    """Return whether an error of the DataLoader says that a worker or the pinning thread died."""
    return str(error).startswith(("DataLoader worker (pid", "Pin memory thread"))


def _cause_of_death(codes: Sequence[int | None], error: RuntimeError) -> ShardflowError:
    """Return the error for workers with these exit codes, which are None for running workers."""
    if _RUN_AGAIN in codes:
        return ConfigError(_UNGUARDED)
    signals = {signal.Signals(-code).name for code in codes if code is not None and code < 0}
    remedy = "The state is still right: save it and start again"
    if not signals and (ended := sorted({code for code in codes if code})):
        reason = f"it ended with exit code {ended[0]}, and said why on its standard error"
        if ended[0] == 1:  # an exception before it could send one
            reason += f"; if it was not forked, it ran the training script again: {_GUARD}"
    elif not signals or signals & {"SIGKILL", "SIGBUS"}:
        reason = "the usual reasons are too little memory or too small a /dev/shm"
    elif sent := sorted(signals & {each.name for each in FOR_THE_JOB}):
        reason = (
            f"{sent[0]} ended it: Slurm sends such signals to all processes of a job (--signal, the time limit), and "
            "Kubernetes when the grace period of a pod begins; workers ignore them once they have started"
        )
    else:
        reason = f"native code crashed there ({', '.join(sorted(signals))}): a library that a transform calls, perhaps"
    message = str(error).rstrip(". ")
    return WorkerError(f"{message}; {reason}. {remedy}")


def send_errors(items: Iterator[Any]) -> Iterator[Any]:
    """Send errors through the queue as values, so that they arrive as they were raised."""
    try:
        yield from items
    except GeneratorExit:  # must be first: at interpreter exit the name in the next clause no longer exists
        raise
    except ShardflowError as error:
        yield error
    except Exception as error:
        yield error if get_worker_info() is None else SentError(error)


def exit_with_parent(pid: int) -> None:
    """Make this process end at once when process `pid` ends. Linux reports that without polling (`pidfd_open(2)`).

    torch's own watchdog checks whether the parent process has changed. With the start method "forkserver" the parent is
    the fork server, which lives as long as any worker: after a SIGKILL of the training process both would run forever.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(1)
    except OSError:
        return  # a kernel before 5.3, or a sandbox: torch's watchdog remains

    def exit_when_readable() -> None:
        select.select([descriptor], [], [])
        os._exit(1)

    threading.Thread(target=exit_when_readable, name="shardflow-parent-watch", daemon=True).start()


def _start_worker(owner: int, worker: int) -> None:  # noqa: ARG001 - torch passes the worker's number
    gc.freeze()  # a collection would touch, and so copy, all pages that the fork inherited: 30,000
    exit_with_parent(owner)
    ignore()


def _unchanged(item: Any) -> Any:
    return item
