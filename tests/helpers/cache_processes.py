"""The cache under real processes: readers, fetchers and evictors share a directory, and everything happens to them.

They are killed, stopped and let go on; files are flipped, cut, deleted, taken away and replaced by directories. The
seed decides what happens when, as far as real processes allow. They run as another user where this one is root, because
a mode forbids root nothing. Promised are the right bytes, no error, progress within seconds, and the limit.

    python -m tests.helpers.cache_processes --seconds 10 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import gc
import logging
import mmap
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import shardflow
from shardflow.dataset.open_dataset import Split
from shardflow.errors import StoreError
from shardflow.storage.cache import Cache
from shardflow.storage.local import LocalStorage
from shardflow.storage.local_files import map_os_errors
from tests.helpers.cache_schedules import SAMPLES, SHARDS, World, block, cut, flip

ROLES = ("read", "read", "read", "stream", "stream", "fetch", "fetch", "prune")
BLOCKED_S = 30.0
"""Longer than any reader waits: for two stuck locks, and for its turn on a busy machine."""

_OTHER_USER = 65534
_PR_SET_PDEATHSIG = 1  # see prctl(2)
_SIGNALS = ["kill"] * 3 + ["stop"] * 2
_FILES = ["flip"] * 12 + ["delete"] * 4 + ["cut", "cut", "block", "chmod", "chown", "unblock", "unblock"]
_PHASES = (
    ("*/*", 0.02, _FILES + _SIGNALS),
    ("blobs/*", 0.02, ["flip"] * 10 + _FILES + _SIGNALS),  # what is stuck stays so
    ("blobs/*", 0.3, ["flip", "unblock", "stop", "stop"]),
)
"""Which files are harmed, how long it is quiet at most between two events (in seconds), and their kinds."""


class _Slot(ctypes.Structure):
    """What an actor tells the simulation, in shared memory."""

    _fields_ = [("began", ctypes.c_double), ("operations", ctypes.c_long)]


class _Actor:
    """A process of the simulation, and those that take its place when it is killed."""

    def __init__(self, role: str, slot: _Slot) -> None:
        self.role, self.slot = role, slot
        self.pid = 0
        self.starts_at = 0.0  # when there is none
        self.goes_on_at = 0.0  # when it is stopped; 0 when it is not
        self.went_on_at = 0.0


class Simulation:
    """One run; `run` raises an AssertionError where a promise is broken."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.seed, self.rng, self.folder = seed, random.Random(seed), folder
        self.directory = folder / "home/cache"
        self.directory.parent.mkdir()
        self.world = World(folder)
        self.counts: Counter[str] = Counter()
        self._flipped: dict[Path, float] = {}  # file → when
        self.most_bytes = 0
        self.longest_s = 0.0
        shared = mmap.mmap(-1, 4096)
        slots = (_Slot * len(ROLES)).from_buffer(shared, 64)
        self._ends = ctypes.c_bool.from_buffer(shared)
        self.actors = [_Actor(role, slot) for role, slot in zip(ROLES, slots, strict=True)]
        self._is_root = os.geteuid() == 0
        if self._is_root:
            os.chown(self.directory.parent, _OTHER_USER, -1)

    def run(self, seconds: float) -> None:
        """Let the processes run for so long, and check what they leave."""
        warm = Cache(self.folder / "warm")  # imports what processes without rights cannot import
        self._read_shard(Split(_Far(self.world), "train", self.world.shards, warm), 0, random.Random())
        list(shardflow.samples(f"local://{self.world.root}", cache=warm))
        now = time.monotonic()
        ends_at, next_phase_at, next_event_at = now + seconds, now, now
        try:
            while (now := time.monotonic()) < ends_at:
                self._look_after()
                if now >= next_phase_at:
                    files, pause_s, kinds = self.rng.choice(_PHASES)
                    next_phase_at = now + self.rng.uniform(2, 20)
                if now >= next_event_at:
                    self._disturb(files, self.rng.choice(kinds))
                    next_event_at = now + self.rng.uniform(0, pause_s)
                time.sleep(0.005)
            self._ends.value = True
            for actor in self.actors:
                self._let_go_on(actor)
            while any(actor.pid for actor in self.actors):
                self._look_after()
                time.sleep(0.01)
        finally:
            for actor in self.actors:
                if actor.pid:
                    os.kill(actor.pid, signal.SIGKILL)
                    os.waitpid(actor.pid, 0)
        self._wait_for_end()

    def summary(self) -> str:
        """Return what happened."""
        done = Counter[str]()
        for actor in self.actors:
            done[actor.role] += actor.slot.operations
        counts = ", ".join(f"{name} {count:,}" for name, count in sorted((done + self.counts).items()))
        held = f"{self.most_bytes:,} bytes at most in a cache of {self.world.limit_bytes:,}"
        return f"{counts}; {held}; the longest operation took {self.longest_s:.1f} s"

    # The simulation

    def _look_after(self) -> None:
        """Start, continue and reap processes, and check the promises."""
        now = time.monotonic()
        for actor in self.actors:
            if not actor.pid:
                if now >= actor.starts_at and not self._ends.value:
                    actor.pid = self._fork(self._work, actor)
                    actor.went_on_at = now
                continue
            if actor.goes_on_at and now >= actor.goes_on_at:
                self._let_go_on(actor)
            pid, status = os.waitpid(actor.pid, os.WNOHANG)
            if pid:
                actor.pid, actor.goes_on_at = 0, 0.0
                actor.starts_at = now + self.rng.uniform(0, 0.5)
                killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
                assert killed or status == 0, self._failure(f"{actor.role} ended with status {status}")
            elif actor.slot.began and not actor.goes_on_at:
                waited = now - max(actor.slot.began, actor.went_on_at)
                self.longest_s = max(self.longest_s, waited)
                if waited > BLOCKED_S:
                    os.kill(actor.pid, signal.SIGUSR1)
                    time.sleep(1)
                    raise AssertionError(self._failure(f"{actor.role} waited for {waited:.0f} s"))
        held = 0
        for path in self.directory.glob("blobs/*"):
            with contextlib.suppress(FileNotFoundError):
                held += path.lstat().st_size
        self.most_bytes = max(self.most_bytes, held)
        # An actor that deletes locks deletes reservations.
        most = self.world.limit_bytes * (1 + len(self.actors) / SHARDS)
        assert held <= most, self._failure(f"{held} bytes in a cache of {self.world.limit_bytes}")

    def _disturb(self, files: str, kind: str) -> None:
        if kind in ("kill", "stop"):
            running = [actor for actor in self.actors if actor.pid and not actor.goes_on_at]
            if len(running) < len(self.actors) // 2:
                return
            actor = self.rng.choice([actor for actor in running if actor.pid in _lock_holders()] or running)
            os.kill(actor.pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
            if kind == "stop":
                actor.goes_on_at = time.monotonic() + self.rng.choice([0.1, 1.0, 8.0, 20.0])
        elif self.rng.random() < 0.002:
            kind = "delete all"
            shutil.rmtree(self.directory, ignore_errors=True)
        else:
            found = [
                path
                for path in self.directory.glob("*/*" if kind == "unblock" else files)
                if path.is_dir() == (kind == "unblock")
            ]
            if not found:
                return
            path, now = self.rng.choice(sorted(found)), time.monotonic()
            if kind == "flip":  # a reader gives a file up whose third copy is damaged, too
                if now < self._flipped.get(path, 0) + 1:
                    return
                self._flipped[path] = now
            with contextlib.suppress(OSError):
                self._harm(kind, path)
        self.counts[kind] += 1

    def _harm(self, kind: str, path: Path) -> None:
        if kind == "chown" and self._is_root:
            os.chown(path, 0, 0)
            path.chmod(0o600)
        elif kind in ("chmod", "chown"):
            path.chmod(0)
        else:
            harm: dict[str, Callable[[], object]] = {
                "flip": lambda: flip(path, self.rng),
                "cut": lambda: cut(path, self.rng),
                "block": lambda: block(path, self.rng),
                "delete": path.unlink,
                "unblock": path.rmdir,
            }
            harm[kind]()

    def _let_go_on(self, actor: _Actor) -> None:
        if actor.goes_on_at:
            os.kill(actor.pid, signal.SIGCONT)
            actor.goes_on_at, actor.went_on_at = 0.0, time.monotonic()

    def _failure(self, what: str) -> str:
        told = "".join(path.read_text() for path in self.folder.glob("failures/*"))
        return f"seed {self.seed}: {what}\n{self.summary()}\n{told}"

    def _wait_for_end(self) -> None:
        """Let a process find the cache as good as new."""
        for path in self.directory.glob("*/*"):
            if path.is_dir():
                path.rmdir()
        status = os.waitpid(self._fork(self._check_end, self.actors[0]), 0)[1]
        assert status == 0, self._failure("the cache is not as it should be in the end")

    # The processes

    def _fork(self, work: Callable[[_Actor], None], actor: _Actor) -> int:
        (self.folder / "failures").mkdir(exist_ok=True)
        seed = self.rng.random()
        if pid := os.fork():
            return pid
        status = 1
        try:
            logging.disable()
            with open(self.folder / f"failures/{os.getpid()}", "w") as told:
                faulthandler.register(signal.SIGUSR1, told)
                if self._is_root:
                    os.setgroups([])
                    os.setgid(_OTHER_USER)
                    os.setuid(_OTHER_USER)
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # also one that is stopped ends then
                try:
                    self.rng.seed(seed)
                    work(actor)
                    status = 0
                except BaseException:
                    traceback.print_exc(file=told)
            if status == 0:
                with contextlib.suppress(OSError):
                    os.truncate(told.name, 0)
        finally:
            os._exit(status)

    def _work(self, actor: _Actor) -> None:
        descriptors = len(os.listdir("/proc/self/fd"))
        cache = Cache(self.directory, self.world.limit_bytes)
        split = Split(_Far(self.world), "train", self.world.shards, cache)
        while not self._ends.value:
            actor.slot.began = time.monotonic()
            if actor.role == "stream":
                self._stream(actor, split)
            elif actor.role == "read":
                self._read_shard(split, self.rng.randrange(SHARDS), self.rng)
            elif actor.role == "fetch":
                with contextlib.suppress(StoreError):  # a file in its way that cannot be removed
                    split.reader.fetch(self.rng.randrange(SHARDS), stall_timeout_s=self.rng.choice([0.0, 60.0]))
            elif self.rng.random() < 0.5:
                cache.prune(self.rng.randrange(self.world.limit_bytes))
            else:
                cache.prune_damaged()
            actor.slot.began = 0.0
            actor.slot.operations += 1
            time.sleep(self.rng.uniform(0, 0.5 if actor.role == "prune" else 0.01))
        if actor.role == "stream":  # its transfers go on for a while
            return
        del split
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == descriptors, "descriptors are left open"
        for _ in range(100):  # the thread that touches locks ends soon
            if threading.active_count() > 1:
                time.sleep(0.1)
        assert threading.active_count() == 1, f"threads are left: {threading.enumerate()}"

    def _read_shard(self, split: Split, shard: int, rng: random.Random) -> None:
        sequential = rng.random() < 0.5
        for record in rng.sample(range(SAMPLES), SAMPLES):
            for attempt in range(3):
                sample = split.reader.read(shard, record, sequential=sequential)
                parts = {part: bytes(payload) for part, payload in sample.parts.items()}
                if (sample.key, parts) == self.world.samples[shard][record]:
                    break
                # A bit may be flipped right after it was checked; the next check finds that.
                assert attempt < 2, f"wrong bytes: shard {shard}, record {record}"
        if rng.random() < 0.3:
            split.reader.close(shard)

    def _stream(self, actor: _Actor, split: Split) -> None:
        """Read an epoch as a loader does: in its order, with threads that prefetch, from a storage that retries."""
        assert split.reader.cache is not None
        cache = Cache(self.directory, self.world.limit_bytes)
        stream = shardflow.samples(f"local://{self.world.root}", cache=cache, seed=self.rng.randrange(100))
        for sample in stream:
            shard, record = map(int, sample["__key__"])
            parts = {part: data for part, data in sample.items() if not part.startswith("__")}
            if parts != self.world.samples[shard][record][1]:
                self._read_shard(split, shard, self.rng)  # see there
            actor.slot.began = time.monotonic()

    def _check_end(self, actor: _Actor) -> None:  # noqa: ARG002 - as `_work`
        cache = Cache(self.directory, self.world.limit_bytes)
        split = Split(_Far(self.world), "train", self.world.shards, cache)
        for shard in range(SHARDS):
            self._read_shard(split, shard, self.rng)
        cache.prune_damaged()
        held = sum(blob.bytes for blob in cache.blobs())
        assert held <= self.world.limit_bytes, f"{held} bytes in a cache of {self.world.limit_bytes}"
        assert len(cache.blobs()) >= SHARDS // 2, "the cache does not keep files"
        cache.prune(0)
        left = [str(path) for path in self.directory.glob("*/*")]
        assert not left, f"left: {left}"


def _lock_holders() -> set[int]:
    """Return the processes that hold a lock of any file: see proc_locks(5)."""
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return {int(fields[4]) for fields in lines if fields[1] == "FLOCK"}


class _Far:
    """The dataset as a remote storage, whose downloads take a while."""

    idle_timeout_s = 60.0

    def __init__(self, world: World) -> None:
        self._storage = LocalStorage(world.root)

    def url(self, name: str) -> str:
        return f"far://{name}"

    def local_path(self, name: str) -> Path | None:  # noqa: ARG002 - the protocol's
        return None

    def read(self, name: str, **_: object) -> bytes:
        time.sleep(random.choice([0, 0.01]))
        return self._storage.read(name)

    def get(self, name: str, target: Path, **_: object) -> None:
        data = self._storage.read(name)
        with map_os_errors(target), open(target, "xb") as file:
            for begin in range(0, len(data), 1024):
                time.sleep(random.choice([0, 0, 0, 0.02, 0.1]))
                file.write(data[begin : begin + 1024])
                file.flush()


def run_processes(seconds: float, seed: int) -> str:
    """Run the simulation for so long; return what happened. It forks, so it must be called before threads start."""
    with tempfile.TemporaryDirectory(prefix="shardflow-cache-") as name:
        os.chmod(name, 0o711)
        simulation = Simulation(Path(name), seed)
        simulation.run(seconds)
        return simulation.summary()


def main() -> int:
    """Run the simulation once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    print(run_processes(chosen.seconds, chosen.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
