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
from shardflow._signals import held_back
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


def test_interrupts_while_workers_start_or_begin_an_epoch(dataset: Path) -> None:
    """Two interrupts at any time leave a loader that yields each sample of the epoch once, and a process that ends."""
    code = f"""
import os, signal, threading, time, shardflow

def slow(image):
    time.sleep(0.002)
    return image

def interrupted(delay):  # from another thread, as in a notebook
    timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        for batch in loader:
            pass
        timer.join()
        time.sleep(1)
    except KeyboardInterrupt:
        return

loader = shardflow.Loader(
    {str(dataset)!r}, batch_size=2, tail="short", transform=slow, num_workers=2, fields=("image", "label")
)
for step in range(9):
    interrupted(0.01 * step)
    interrupted(0.002 * step)
    labels = [label for _, labels in loader for label in labels.tolist()]
    assert sorted(labels) == list(range({sum(SIZES)})), labels
print("ended")
"""
    command = [python(), "-c", code]
    run = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, start_new_session=True, timeout=100)
    assert (run.returncode, run.stdout) == (0, "ended\n"), run.stderr


def test_a_signal_that_another_thread_gets_is_held_back() -> None:
    """A signal for which another thread runs is handled after the processes have started, by the handler of before."""
    begin, sent, handler = threading.Event(), threading.Event(), signal.getsignal(signal.SIGINT)

    def send() -> None:
        begin.wait()
        os.kill(os.getpid(), signal.SIGINT)
        sent.set()

    threading.Thread(target=send).start()
    ended = False
    with pytest.raises(KeyboardInterrupt), held_back():  # noqa: PT012 - the error comes at its end
        begin.set()
        sent.wait()
        ended = True
    assert ended
    assert signal.getsignal(signal.SIGINT) is handler
