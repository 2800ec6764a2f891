"""Real ranks for the tests: processes of one gloo group."""

from __future__ import annotations

import datetime
import multiprocessing
import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

DEADLINE_S = 120


def launch(work: Callable[..., Any], world_size: int, *arguments: Any) -> list[Any]:
    """Run `work(*arguments)` on every rank of a group and return what each rank returned.

    Raises:
        torch.multiprocessing.ProcessRaisedException: A rank failed; the others were ended.
        TimeoutError: A rank hangs; all were ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        group = torch.multiprocessing.start_processes(
            _rank, (world_size, folder, work, arguments), nprocs=world_size, join=False, start_method="forkserver"
        )
        deadline = time.monotonic() + DEADLINE_S
        while not group.join(timeout=1):
            if time.monotonic() > deadline:
                for process in group.processes:
                    process.kill()
                raise TimeoutError(f"{work.__name__} on {world_size} ranks did not end within {DEADLINE_S} s")
        return [pickle.loads(Path(folder, f"{rank}").read_bytes()) for rank in range(world_size)]


def _rank(rank: int, world_size: int, folder: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # as in a rank that torchrun started
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=DEADLINE_S / 2),  # a rank that makes a step less than the others fails here
    )
    try:
        Path(folder, f"{rank}").write_bytes(pickle.dumps(work(*arguments)))
        dist.barrier()
    finally:
        dist.destroy_process_group()
