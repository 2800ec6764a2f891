from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import shardflow
from tests.helpers.loading import PROJECT, labels, until
from tests.helpers.making import make_dataset
from tests.helpers.warm_python import python

SIZES = [20, 9, 31, 7]

SENT = signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM
"""The last one ends the run."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 67 samples in four uneven shards, sample n labelled n."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", SIZES)


@contextlib.contextmanager
def start(url: Path, folder: Path, method: str) -> Iterator[subprocess.Popen[str]]:
    """Start the run, in a process group of its own."""
    command = [python(), "-m", "tests.helpers.signalled", str(url), str(folder), method]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, start_new_session=True) as run:
        try:
            yield run
        finally:
            run.kill()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_job_that_is_signalled_loses_no_sample(dataset: Path, tmp_path: Path, method: str) -> None:
    """Signals to a whole process group run the training process's own handlers, and its workers go on.

    The run saves its state at each, ends at SIGTERM and is started again: together the steps are those of one epoch.
    """
    with start(dataset, tmp_path, method) as run:
        assert run.stdout is not None
        seen = set()
        for number in SENT:
            said = run.stdout.readline()
            assert said.startswith("ready ")
            seen.add(said)
            workers = [int(pid) for pid in said.split()[1:]]
            os.killpg(os.getpgid(workers[0]), number)
            assert run.stdout.readline() == f"{number.name}\n"
        assert run.wait(60) == 128 + signal.SIGTERM
    assert len(seen) == 1, "workers were started anew"
    assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    with start(dataset, tmp_path, "fork") as again:
        assert again.wait(60) == 0
    log = [label for line in (tmp_path / "log").read_text().splitlines() for label in json.loads(line)]
    decoder = shardflow.decoders.RandomResizedCrop(8)
    whole = shardflow.Loader(dataset, batch_size=2, tail="short", decoder=decoder, num_workers=0, seed=3)
    assert log == labels(whole)
    assert sorted(log) == list(range(sum(SIZES)))


class Stuck:
    """A transform that never returns."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Wait without end, except for the first batch."""
        if int(torch.utils.data.get_worker_info().id):
            threading.Event().wait()
        return image


def test_a_worker_that_is_stuck_ends_when_the_loader_is_closed(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing waits for a worker only as long as torch's DataLoader does, though it ignores the SIGTERM after that."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    workers = shardflow.Workers(2, multiprocessing_context="fork")
    loader = shardflow.Loader(dataset, batch_size=2, transform=Stuck(), num_workers=workers)
    next(iter(loader))
    pids = loader._pool.pids()
    loader.close()
    # Asking for the children buries those that have ended.
    assert until(lambda: not any(child.pid in pids for child in multiprocessing.active_children()))


def test_an_interrupted_session_goes_on(dataset: Path) -> None:
    """An interrupt of a terminal or a notebook reaches the whole process group: the loop ends, the next one runs."""
    code = f"""
import os, signal, shardflow
loader = shardflow.Loader({str(dataset)!r}, batch_size=2, tail="short", num_workers=2, fields=("label",))
try:
    for number, (labels,) in enumerate(loader):
        if number == 3:
            os.killpg(0, signal.SIGINT)
except KeyboardInterrupt:
    loader.load_state_dict(loader.state_dict())
    rest = [labels.tolist() for labels, in loader]
    print(number, len(rest), len(loader))
"""
    command = [python(), "-c", code]
    run = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, start_new_session=True, timeout=60)
    assert run.stdout == "3 30 34\n", run.stderr
