"""A training run for torchrun that goes on from its last checkpoint; in its first attempt a rank is killed mid-epoch.

    torchrun ... -m tests.helpers.trainee DATASET FOLDER ATTEMPT

Each rank writes a line to FOLDER/log for every step that it finished.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

import shardflow
from tests.helpers.training import make_loader, make_net, train

EPOCHS = 2
SAVE_EVERY = 3
KILLED = {"attempt": 0, "rank": 1, "epoch": 1, "position": 30}
FAILING = {"attempt": 2, "rank": 1, "epoch": 0}
"""Where a worker is killed."""


def run() -> None:
    """Train."""
    url, folder, attempt = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net, loader = make_net(), make_loader(url, batch_size=2, tail="short", num_workers=2)
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint)
        net.load_state_dict(state["net"])
        loader.load_state_dict(state["loader"])
    for epoch in range(loader.state_dict()["epoch"], EPOCHS):
        loader.set_epoch(epoch)
        for number, step in enumerate(train(loader, net), 1):
            state = loader.state_dict()
            line = {"attempt": attempt, "rank": rank, "epoch": epoch, "position": state["position"], **step._asdict()}
            with (folder / "log").open("a") as log:
                log.write(json.dumps(line) + "\n")
            if number % SAVE_EVERY == 0 and rank == 0:
                torch.save({"net": net.state_dict(), "loader": state}, folder / "unfinished")
                (folder / "unfinished").rename(checkpoint)
            if line.items() >= KILLED.items():
                os.kill(os.getpid(), signal.SIGKILL)
            if line.items() >= FAILING.items():
                os.kill(loader._pool.pids()[0], signal.SIGKILL)
    dist.destroy_process_group()


@record
def main() -> None:
    """Train, and leave the word to the rank that failed.

    A failed rank breaks the others' collectives. Were their errors recorded too, torchrun could read a file that it had
    cut short by ending its rank, and then torchrun itself fails, without a summary.
    """
    try:
        run()
    except (RuntimeError, OSError) as error:
        if not isinstance(error, shardflow.errors.ShardflowError):
            traceback.print_exc()
            time.sleep(60)  # torchrun ends this rank
        raise


if __name__ == "__main__":
    main()
