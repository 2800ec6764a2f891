from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import shardflow
from shardflow.loading.worker_pool import WorkerQueue, with_queues
from tests.helpers.making import make_dataset


def queue() -> WorkerQueue:
    """A queue as the DataLoader makes it."""
    return with_queues(None).Queue()  # type: ignore[return-value]


def threads() -> int:
    """How many threads of this process send for queues."""
    return sum(thread.name.startswith("QueueFeederThread") for thread in threading.enumerate())


def test_small_messages_need_no_thread() -> None:
    """What the process that made the queue puts arrives in its order, without a thread that sends it."""
    through, before = queue(), threads()
    for number in range(100):
        through.put((number, None))
    assert [through.get(timeout=5)[0] for _ in range(100)] == [*range(100)]
    assert threads() == before


@pytest.mark.parametrize("size", [10, 10_000])
def test_putting_never_blocks(size: int) -> None:
    """More than a pipe holds, and messages larger than its pages, are put at once, and arrive whole and in order."""
    through = queue()
    messages = [(number, "x" * size) for number in range(200_000 // size)]
    for message in messages:
        through.put(message)
    assert [through.get(timeout=5) for _ in messages] == messages
    through.put("after the thread began")
    assert through.get(timeout=5) == "after the thread began"


def test_an_empty_queue_says_so_in_time() -> None:
    """Waiting for a message ends after the time that was given, with the error that the DataLoader expects."""
    with pytest.raises(Exception, match=r"^$") as caught:
        queue().get(timeout=0.01)
    assert type(caught.value).__name__ == "Empty"


def test_a_loader_has_no_threads_that_send(tmp_path: Path) -> None:
    """The training process of a loader with workers has no thread for each of them, and ends them all the same."""
    before, children = threads(), {*multiprocessing.active_children()}
    loader = shardflow.Loader(make_dataset(tmp_path / "set", [24]), batch_size=4, num_workers=2)
    batches: Any = iter(loader)
    next(batches)
    assert threads() == before
    loader.close()
    assert {*multiprocessing.active_children()} <= children


@pytest.mark.parametrize("workers", [0, 1])
def test_a_profiled_loader_has_an_entry_per_batch(tmp_path: Path, workers: int) -> None:
    """torch's profiler names the time that each batch takes, as for any DataLoader, also if it starts in an epoch."""
    dataset = make_dataset(tmp_path / "set", [64])
    loader = shardflow.Loader(dataset, batch_size=16, num_workers=workers, fields=("label",))
    batches = iter(loader)
    next(batches)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert len(list(batches)) == 3
    assert sum("DataLoader" in event.name for event in profile.events()) >= 3
