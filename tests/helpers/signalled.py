"""A training run that saves its state at each signal and ends at SIGTERM, for `python -m tests.helpers.signalled`.

Arguments: the dataset, a folder and a start method. It says "ready PIDS" where it waits for a signal, PIDS its workers.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

import shardflow
from shardflow._signals import FOR_THE_JOB

WAIT_EVERY = 4

come = threading.Event()
number = 0


def note(signum: int, frame: object) -> None:  # noqa: ARG001 - the signature of a handler
    """Be the handler of a training script: leave the rest to the loop."""
    global number
    number = signum
    come.set()


def say(*words: str) -> None:
    """Write a line to the test."""
    sys.stdout.write(f"{' '.join(words)}\n")
    sys.stdout.flush()


def strike_workers_at_their_start() -> None:
    """Send all signals to workers before they have run a line of ours; those of a fork server are safe later."""
    start = DataLoader._get_iterator

    def start_and_strike(loader: Any) -> Any:
        iterator = start(loader)
        for worker in iterator._workers:
            for signum in FOR_THE_JOB:
                os.kill(worker.pid, signum)
        return iterator

    DataLoader._get_iterator = start_and_strike  # type: ignore[method-assign]


def main(url: str, folder: str, method: str) -> None:
    """Train, that is write the labels of each step to a log."""
    torch.set_num_threads(1)
    for signum in FOR_THE_JOB:
        signal.signal(signum, note)
    if method != "forkserver":
        strike_workers_at_their_start()
    multiprocessing.set_forkserver_preload(["shardflow.loading.loader"])
    # A worker that is spawned imports torch by itself.
    workers = shardflow.Workers(1 if method == "spawn" else 2, prefetch_factor=1, multiprocessing_context=method)
    decoder = shardflow.decoders.RandomResizedCrop(8)
    loader = shardflow.Loader(url, batch_size=2, tail="short", decoder=decoder, num_workers=workers, seed=3)
    state = Path(folder, "state")
    waits = len(FOR_THE_JOB)
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
        waits = 0
    with Path(folder, "log").open("a") as log:
        for step, (_, labels) in enumerate(loader, 1):
            log.write(json.dumps(labels.tolist()) + "\n")
            if step % WAIT_EVERY == 0 and waits:
                waits -= 1
                say("ready", *map(str, loader._pool.pids()))
                come.wait()
                come.clear()
                state.write_text(json.dumps(loader.state_dict()))
                say(signal.Signals(number).name)
                if number == signal.SIGTERM:
                    sys.exit(128 + number)


if __name__ == "__main__":
    main(*sys.argv[1:])
