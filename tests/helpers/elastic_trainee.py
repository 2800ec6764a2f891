"""An epoch for torchrun whose nodes come and go: from the last checkpoint on, to places where it waits for the test.

    torchrun --nnodes 1:2 ... -m tests.helpers.elastic_trainee DATASET FOLDER

NODE names the node. The node "lost" stops after some steps until it is killed, and a node that is alone until torchrun
ends its rank because another one has come. FOLDER/log has a line for each start and for each step of each rank.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.helpers.training import make_loader, make_net, seen, train

SAVE_EVERY = 3
STOP_AFTER = 5
"""Steps: not a multiple of the above, so that what came after the last checkpoint is lost."""


def stop(path: Path, *pids: int) -> None:
    """Write process numbers to a file, and wait for the end."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(" ".join(map(str, pids)))
    unfinished.rename(path)
    while True:
        signal.pause()


def main(url: Path, folder: Path) -> None:
    """Train what is left of the epoch."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, alone, node = dist.get_rank(), dist.get_world_size() == 1, os.environ["NODE"]
    net, loader = make_net(), make_loader(url, batch_size=2, tail="short", num_workers=1)
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint)
        net.load_state_dict(state["net"])
        loader.load_state_dict(state["loader"])

    def write(**line: object) -> None:
        with (folder / "log").open("a") as log:
            log.write(json.dumps(line) + "\n")

    if rank == 0:
        write(world=dist.get_world_size(), begins=loader.state_dict()["position"])
    dist.barrier()
    for number, step in zip(itertools.count(1), train(loader, net), strict=False):
        state = loader.state_dict()
        write(position=state["position"], labels=seen([step]))
        if number % SAVE_EVERY == 0 and rank == 0:
            torch.save({"net": net.state_dict(), "loader": state}, folder / "unfinished")
            (folder / "unfinished").rename(checkpoint)
        if number == STOP_AFTER and (alone or node == "lost"):
            stop(folder / ("alone.pids" if alone else "lost.pids"), os.getpid(), *loader._pool.pids())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
