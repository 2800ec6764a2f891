"""Worker processes: the DataLoader that runs a pipeline, how its batches and errors arrive, and how workers end.

Everything that touches private parts of torch's DataLoader is in this file.
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import re
import select
import threading
import weakref
from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from shardflow.errors import ConfigError, ShardflowError, WorkerError

from .shared_memory import forget


class WorkerPool:
    """Runs a pipeline in worker processes, which are kept from epoch to epoch, or in this process.

    The arguments are those of `Loader`; `pin_memory` None pins where there is a GPU.
    """

    def __init__(
        self,
        pipeline: IterableDataset[Any],
        *,
        num_workers: int,
        prefetch_factor: int,
        pin_memory: bool | None,
        multiprocessing_context: Any,
    ) -> None:
        methods = multiprocessing.get_all_start_methods()
        if num_workers and isinstance(multiprocessing_context, str) and multiprocessing_context not in methods:
            raise ConfigError(
                f"multiprocessing_context must be one of {', '.join(methods)}, found {multiprocessing_context!r}"
            )
        self.data_loader: DataLoader[Any] = DataLoader(
            pipeline,
            batch_size=None,
            collate_fn=_unchanged,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor if num_workers else None,
            persistent_workers=num_workers > 0,
            pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
            multiprocessing_context=multiprocessing_context if num_workers else None,
            worker_init_fn=functools.partial(_start_worker, os.getpid()),
            # A generator of its own: creating an iterator draws from it, and must not disturb the user's random state.
            generator=torch.Generator(),
        )

    def batches(self) -> Generator[Any, None, None]:
        """Yield the pipeline's batches, as one iteration; raise errors sent with `send_errors`, and the workers' death.

        The DataLoader notices within five seconds that a worker died, or the thread that pins batches.
        """
        items = iter(self.data_loader)
        try:
            for item in items:
                self._silence_signal_handler()
                if isinstance(item, ShardflowError):
                    raise item
                yield item
        except RuntimeError as error:
            if not re.search("DataLoader worker|Pin memory thread", str(error)):
                raise
            raise WorkerError(
                f"{str(error).rstrip('. ')}; the usual reasons are too little memory or too small a /dev/shm. "
                "The state is still right: save it and start again"
            ) from error
        finally:
            del items  # an exception that the caller keeps must not keep the iteration alive

    def end(self) -> None:
        """End the worker processes now, whatever still refers to them; the next iteration starts new ones."""
        iterator, self.data_loader._iterator = self.data_loader._iterator, None
        if iterator is not None:
            iterator._shutdown_workers()  # type: ignore[attr-defined] # only iterators with workers are kept

    def pids(self) -> list[int]:
        """Return the process numbers of the workers that run now."""
        return [worker.pid for worker in getattr(self.data_loader._iterator, "_workers", ())]

    def _silence_signal_handler(self) -> None:
        """Make the loader's next request raise a worker's death, which is where a training loop can catch it.

        By default torch raises it from a signal handler, in whatever line the training step is executing.
        """
        iterator: Any = self.data_loader._iterator
        if getattr(iterator, "_worker_pids_set", False):
            torch._C._remove_worker_pids(id(iterator))
            iterator._worker_pids_set = False
            weakref.finalize(iterator, forget, set(self.pids()))


def send_errors(items: Iterator[Any]) -> Iterator[Any]:
    """Send the project's own errors through the queue as values, so that they arrive as they were raised."""
    try:
        yield from items
    except GeneratorExit:  # must be first: at interpreter exit the name in the next clause no longer exists
        raise
    except ShardflowError as error:
        yield error


def exit_with_parent(pid: int) -> None:
    """Make this process end at once when process `pid` does. Linux reports that without polling (`pidfd_open(2)`).

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
    gc.freeze()  # collecting what a fork inherited would touch, and so copy, all of it: 30,000 pages
    exit_with_parent(owner)


def _unchanged(item: Any) -> Any:
    return item
