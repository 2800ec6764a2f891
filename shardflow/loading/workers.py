"""Receiving batches from the DataLoader: its errors become ours, and arrive where the caller can catch them."""

from __future__ import annotations

import weakref
from collections.abc import Generator
from typing import Any

import torch
import webdataset as wds

from shardflow.errors import ShardflowError, WorkerError

from .shared_memory import forget


def receive_batches(batches: wds.WebLoader) -> Generator[Any, None, None]:
    """Yield what the workers made.

    Raises:
        ShardflowError: What a worker sent as a value.
        WorkerError: A worker died. Noticed within five seconds, which is how often the DataLoader looks.
    """
    items = iter(batches)
    try:
        for item in items:
            _take_charge(batches.pipeline[0]._iterator)
            if isinstance(item, ShardflowError):
                raise item
            yield item
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise WorkerError(
            f"{str(error).rstrip('. ')}; the usual reasons are too little memory or too small a /dev/shm. The state is "
            "still right: save it and start again"
        ) from error
    finally:
        items.close()


def end_workers(batches: wds.WebLoader) -> None:
    """End the worker processes now, whoever still holds a reference to them; the next iteration starts new ones."""
    loader = batches.pipeline[0]
    workers, loader._iterator = loader._iterator, None
    if workers is not None:
        workers._shutdown_workers()


def _take_charge(workers: Any) -> None:
    """Do what is due when the first batch of new workers arrives.

    torch raises a worker's death from a signal handler, in whatever line the training step just is. Without that, the
    next batch that is asked for raises it, which is where a loop can catch it.
    """
    if getattr(workers, "_worker_pids_set", False):
        torch._C._remove_worker_pids(id(workers))
        workers._worker_pids_set = False
        weakref.finalize(workers, forget, {worker.pid for worker in workers._workers})
