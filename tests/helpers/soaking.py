"""The soak: a training reads a dataset from a real S3 server for many epochs, and everything happens to it.

Requests meet faults; workers and the training itself are killed; the clock is set; the disk of the cache, which is
smaller than the dataset, is filled and freed. The seed decides what happens when, as far as real processes allow.
Promised are the batches of the directory, each sample once in each epoch, progress within minutes, and that nothing
grows. The training is not killed in the second half, so that a slow leak shows there.

It needs a mount namespace of its own, for the disk and for a /dev/shm that no other process uses: see `command`. Where
that is refused, no disk is filled; without a C compiler, no clock is set. S3 refuses requests of a clock that is more
than 15 minutes wrong, so the clock stays within that.

    python -m tests.helpers.soaking --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import faulthandler
import json
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

import shardflow
from shardflow.errors import WorkerError
from tests.helpers.folders import cached_bytes
from tests.helpers.making import make_dataset
from tests.helpers.s3_proxy import Proxy, proxying
from tests.helpers.s3_server import running
from tests.helpers.weather import ANY, Weather

SHARDS, SHARD_SAMPLES, CACHED_SHARDS = 24, 8, 8
TOLERANCES = {
    "descriptors": 8,
    "threads": 3,
    "main_bytes": 8 << 20,
    "workers_bytes": 8 << 20,
    "shm_bytes": 256 << 10,
    "cache_bytes": 512 << 10,
    "temporary": 1,
}
"""By how much each median may rise over a soak of any length: allocators settle, transfers overlap, a cache whose
disk is full is empty, and workers make the last slots in shared memory when they need them."""
FEW_SAMPLES = 8
TOLERANCES_OF_FEW = {**TOLERANCES, "descriptors": 20, "threads": 8, "workers_bytes": 24 << 20, "temporary": 10}
"""The same for at most so many samples, where each median is of one or two. A worker that replaces a killed one has
that much less than one that has read a whole epoch, and each shard that is open while the disk is full is a temporary
file. A leak of one descriptor or file per shard rises faster."""

_EVENTS = ("worker killed",) * 3 + ("clock set",) * 3 + ("disk filled or freed",) * 2 + ("training killed",)
_POLL_S = 0.02
_BLOCKED_S = 150.0  # longer than any epoch, with several requests that hang
_CLOCK_S = 800  # the clock is at most so wrong: less than the 15 minutes that S3 tolerates
_CLOCK_SOURCE = Path(__file__).with_name("set_clock.c")
_DISK_BYTES = 4 << 20
_WIDTH = 10


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The resources of the training process and its workers after an epoch."""

    epoch: int
    life: int  # how often the training was killed before
    seconds: int  # since the soak began
    clock_s: int  # by how much the clock of the training is wrong
    descriptors: int
    threads: int
    main_bytes: int  # anonymous memory, without what malloc keeps free
    workers_bytes: int
    shm_bytes: int  # of files in /dev/shm, and of shared memory without a name
    cache_bytes: int  # on the disk, also of files that have been deleted and are still open or mapped
    temporary: int  # files: partial downloads, locks, and those in the temporary directory
    requests: int = 0
    faults: int = 0
    events: int = 0


class Soak:
    """One run; `run` raises an AssertionError where a promise is broken."""

    def __init__(self, folder: Path, *, share: float, pause: int, seed: int, isolated: bool) -> None:
        self.folder, self.rng, self.pause = folder, random.Random(seed), pause
        self.counts: Counter[str] = Counter()
        self.weather = Weather(ANY, share, seed)
        self._clock = folder / "clock"
        self._set_clock(0)
        self._clock_library = folder / "set_clock.so"
        if compiler := shutil.which("cc"):
            built = [compiler, "-O2", "-shared", "-fPIC", "-o", self._clock_library, _CLOCK_SOURCE, "-ldl"]
            subprocess.run(built, check=True)
        self._disk = folder / "disk"
        for path in (self._disk, folder / "tmp"):
            path.mkdir()
        self._is_isolated = isolated

    def run(self, *, epochs: int, every: int) -> Iterator[Sample]:
        """Run the training, and yield a sample every so many epochs."""
        local = make_dataset(self.folder / "set", [SHARD_SAMPLES] * SHARDS)
        with contextlib.ExitStack() as stack:
            if self._is_isolated:
                stack.enter_context(_mounted(self._disk, _DISK_BYTES))
                stack.enter_context(_mounted(Path("/dev/shm"), 1 << 30))
            server = stack.enter_context(running(self.folder / "weed"))
            proxy = stack.enter_context(proxying(server.endpoint))
            url = server.put("soak", local)
            proxy.rules.append(self.weather)
            arguments = (local, url, server.options(proxy.endpoint), self.folder, epochs)
            for sample in self._supervise(arguments, epochs, proxy):
                if sample.epoch % every == 0:
                    yield sample

    def _supervise(self, arguments: tuple[Any, ...], epochs: int, proxy: Proxy) -> Iterator[Sample]:
        """Start the training, harm it, and start it again, until it has done its epochs; yield a sample of each."""
        began = heard = time.monotonic()
        epoch, events = 0, self._events()
        training, said = self._start(arguments)
        next_event_at = self.rng.randint(1, 2 * self.pause)  # counted in requests, so that a slow machine has no more
        try:
            while epoch < epochs:
                if said.poll(_POLL_S):
                    try:
                        measured = said.recv()
                    except EOFError:
                        training.join()
                        raise AssertionError(f"the training ended with status {training.exitcode}") from None
                    epoch, heard = measured["epoch"], time.monotonic()
                    proxy.log.clear()
                    yield Sample(
                        life=self.counts["training killed"],
                        seconds=round(heard - began),
                        clock_s=round(measured.pop("time") - time.time()),
                        requests=self.weather.seen,
                        faults=self.weather.met.total(),
                        events=self.counts.total(),
                        **measured,
                    )
                    continue
                if time.monotonic() - heard > _BLOCKED_S:
                    os.kill(training.pid, signal.SIGUSR1)
                    time.sleep(1)
                    raise AssertionError(f"the training did not end epoch {epoch + 1} within {_BLOCKED_S:.0f} s")
                if self.weather.seen < next_event_at:
                    continue
                event = next(events)
                next_event_at = self.weather.seen + self.rng.randint(1, 2 * self.pause)
                if event != "training killed":
                    self._harm(event, training.pid)
                elif 0 < epoch < epochs // 2:
                    self.counts[event] += 1
                    training.kill()
                    training.join()
                    said.close()
                    training, said = self._start(arguments)
            training.join(60)
            assert training.exitcode == 0, f"the training ended with status {training.exitcode}"
        finally:
            training.kill()
            training.join()
            said.close()

    def _events(self) -> Iterator[str]:
        while True:
            yield from self.rng.sample(_EVENTS, len(_EVENTS))

    def _start(self, arguments: tuple[Any, ...]) -> tuple[SpawnProcess, Connection]:
        context = multiprocessing.get_context("spawn")
        far, said = context.Pipe(duplex=False)
        training = context.Process(target=_train, args=(*arguments, said))
        before = dict(os.environ)
        os.environ["TMPDIR"] = str(self.folder / "tmp")
        if self._clock_library.exists():
            os.environ.update({"LD_PRELOAD": str(self._clock_library), "CLOCK_OFFSET": str(self._clock)})
        try:
            training.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        said.close()
        return training, far

    def _set_clock(self, offset_s: int) -> None:
        with open(self._clock, "ab"), open(self._clock, "r+b") as file:  # in place: it is mapped
            file.write(struct.pack("=q", offset_s))

    def _harm(self, event: str, training: int) -> None:
        if event == "worker killed":
            workers = _workers(training)
            if not workers:
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(self.rng.choice(workers)), signal.SIGKILL)
        elif event == "clock set":
            if not self._clock_library.exists():
                return
            self._set_clock(self.rng.randint(-_CLOCK_S, _CLOCK_S))
        else:
            if not self._is_isolated:
                return
            ballast = self._disk / "ballast"
            event = "disk freed" if ballast.exists() else "disk filled"
            if event == "disk freed":
                ballast.unlink()
            else:
                with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(1024))
        self.counts[event] += 1


@contextlib.contextmanager
def _mounted(path: Path, size: int) -> Iterator[None]:
    """Mount a disk of `size` bytes, in memory, while the body runs."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def growth(samples: Sequence[Sample]) -> dict[str, int]:
    """Return by how much the median of each figure has risen, from the first third of the samples to the last.

    What the training process holds counts from when that was killed last. A sample right after a death, with fewer
    threads, is low, and counts for the threads alone.
    """
    last = [sample for sample in samples if sample.life == samples[-1].life]
    alive = [sample for sample in last if sample.threads > max(each.threads for each in last) - 4]
    risen = {}
    for name in TOLERANCES:
        chosen = samples if name in ("shm_bytes", "cache_bytes", "temporary") else last if name == "threads" else alive
        third = max(1, len(chosen) // 3)
        values = [getattr(sample, name) for sample in chosen]
        risen[name] = statistics.median_low(values[-third:]) - statistics.median_low(values[:third])
    return risen


def tolerances(samples: Sequence[Sample]) -> dict[str, int]:
    """Return by how much each figure may rise in these samples."""
    return TOLERANCES if len(samples) > FEW_SAMPLES else TOLERANCES_OF_FEW


def leaks(samples: Sequence[Sample]) -> dict[str, int]:
    """Return the figures that have risen by more than is tolerated."""
    tolerated = tolerances(samples)
    return {name: rise for name, rise in growth(samples).items() if rise > tolerated[name]}


# The training


def _train(local: Path, url: str, options: dict[str, Any], folder: Path, epochs: int, said: Connection) -> None:
    """Train, from the checkpoint where there is one."""
    faulthandler.register(signal.SIGUSR1)
    limit = CACHED_SHARDS * max(path.stat().st_size for path in local.glob("train/*.tar"))
    cache, checkpoint = folder / "disk/cache", folder / "checkpoint"
    shuffle = shardflow.Shuffle(buffer=8, streams=2)
    common: dict[str, Any] = {"batch_size": 8, "shuffle": shuffle, "decoder": shardflow.decoders.CenterCrop(64)}
    # A worker that was spawned would import torch again after each kill.
    workers = shardflow.Workers(2, multiprocessing_context="fork")
    cached = shardflow.Cache(cache, limit)
    far = shardflow.Loader(url, storage_options=options, cache=cached, num_workers=workers, **common)
    near = shardflow.Loader(local, num_workers=0, **common)
    list(near)  # opens all files, so that workers which are forked sooner or later inherit the same descriptors
    state, labels = far.state_dict(), []
    if checkpoint.exists():
        state, labels = json.loads(checkpoint.read_text())
    while state["epoch"] < epochs:
        epoch = state["epoch"]
        far.load_state_dict(state)
        near.load_state_dict(state)
        try:
            for numbers in _equal_batches(far, near):
                labels += numbers
                state = far.state_dict()
                _save(checkpoint, [state, labels])
        except WorkerError:
            continue  # from the last batch that arrived
        assert sorted(labels) == list(range(SHARDS * SHARD_SAMPLES)), f"epoch {epoch}: not each sample once"
        held = cached_bytes(cache)
        assert held <= limit, f"epoch {epoch}: {held} bytes in a cache of {limit}"
        state, labels = far.state_dict(), []
        _save(checkpoint, [state, labels])
        said.send({"epoch": state["epoch"], "time": time.time(), **_measured(folder)})


def _equal_batches(far: shardflow.Loader, near: shardflow.Loader) -> Iterator[list[int]]:
    """Yield the labels of each batch. In a function, so that no batch is left when workers are forked."""
    for number, ((images, labels), (expected, _)) in enumerate(zip(far, near, strict=True)):
        assert torch.equal(images, expected), f"epoch {far.epoch}, batch {number}: other pixels"
        yield labels.tolist()


def _save(path: Path, content: Any) -> None:
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(content))
    unfinished.rename(path)


def _workers(training: int) -> list[str]:
    """Return the processes that the training has forked; not those that multiprocessing started for itself."""
    try:
        children = Path(f"/proc/{training}/task/{training}/children").read_text().split()
        command = Path(f"/proc/{training}/cmdline").read_bytes()
    except FileNotFoundError:
        return []
    workers = []
    for pid in children:
        with contextlib.suppress(FileNotFoundError):
            if Path(f"/proc/{pid}/cmdline").read_bytes() == command:
                workers.append(pid)
    return workers


def _measured(folder: Path) -> dict[str, int]:
    """Return the resources of this process and its workers; one may be killed meanwhile."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc: free memory of which it keeps more or less is no leak
        libc.malloc_trim(0)
    cache = folder / "disk/cache"
    found: Counter[str] = Counter()
    main, cached = str(os.getpid()), _listed(cache, "*/*")
    shm = _listed(Path("/dev/shm"), "*") if (folder / "disk").is_mount() else {}
    for pid in [main, *_workers(int(main))]:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found["descriptors"] += len(os.listdir(f"/proc/{pid}/fd"))
            found["threads"] += len(os.listdir(f"/proc/{pid}/task"))
            found["main_bytes" if pid == main else "workers_bytes"] += _anonymous_bytes(pid)
            shm |= _held(pid, "/dev/shm/")
            cached |= _held(pid, f"{cache}/")
    patterns = ("disk/cache/partial/*", "disk/cache/locks/*", "tmp/shardflow-*")
    temporary = sum(1 for pattern in patterns for _ in folder.glob(pattern))
    return {**found, "shm_bytes": sum(shm.values()), "cache_bytes": sum(cached.values()), "temporary": temporary}


def _anonymous_bytes(pid: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()  # without this one where the process was just killed
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def _held(pid: str, folder: str) -> dict[int, int]:
    """Return the sizes of all files of a folder, deleted ones too, that a process has open or mapped, by inode."""
    held: dict[int, int] = {}
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():  # see proc_pid_maps(5)
        addresses, _, offset, _, inode, *path = line.split(maxsplit=5)
        if path and path[0].startswith(folder):
            begin, end = (int(address, 16) for address in addresses.split("-"))
            held[int(inode)] = max(held.get(int(inode), 0), int(offset, 16) + end - begin)
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(entry).startswith(folder):
                status = entry.stat()
                held[status.st_ino] = min(status.st_size, 512 * status.st_blocks)  # slots leave gaps in their file
    return held


def _listed(folder: Path, pattern: str) -> dict[int, int]:
    listed: dict[int, int] = {}
    for path in folder.glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            listed[status.st_ino] = status.st_size
    return listed


# The command


def command(*options: str) -> list[str]:
    """Return the command that runs the simulation, isolated where this system allows that."""
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    plain = [sys.executable, "-m", "tests.helpers.soaking", *options]
    try:
        refused = subprocess.run([*namespace, "true"], stderr=subprocess.DEVNULL, check=False).returncode
    except FileNotFoundError:
        refused = 1
    return plain if refused else [*namespace, *plain, "--isolated"]


def main() -> int:
    """Run the simulation once, print its table, and return whether anything grew."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--faults", type=float, default=0.05, help="share of the requests that meet one")
    parser.add_argument("--pause", type=int, default=40, help="requests between two other events, on average")
    parser.add_argument("--every", type=int, default=1, help="epochs between two samples")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--isolated", action="store_true", help="it may mount: it has a mount namespace of its own")
    chosen = parser.parse_args()
    samples = []
    print(" | ".join(f"{field.name.replace('_bytes', ' kB'):>{_WIDTH}}" for field in dataclasses.fields(Sample)))
    with tempfile.TemporaryDirectory(prefix="shardflow-soak-") as folder:
        soak = Soak(Path(folder), share=chosen.faults, pause=chosen.pause, seed=chosen.seed, isolated=chosen.isolated)
        for sample in soak.run(epochs=chosen.epochs, every=chosen.every):
            samples.append(sample)
            print(_row(sample), flush=True)
    for counts in (soak.counts, soak.weather.met):
        print(", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none")
    leaked, tolerated = leaks(samples), tolerances(samples)
    for name, rise in growth(samples).items():
        print(f"{name:14} rose by {rise:,}, tolerated {tolerated[name]:,}{': LEAK' if name in leaked else ''}")
    return 1 if leaked else 0


def _row(sample: Sample) -> str:
    values = [value // 1000 if name.endswith("_bytes") else value for name, value in asdict(sample).items()]
    return " | ".join(f"{value:>{_WIDTH},}" for value in values)


if __name__ == "__main__":
    sys.exit(main())
