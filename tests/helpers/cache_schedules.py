"""Schedules of the cache: threads stand for processes, and one integer decides which of them goes on at each step.

A step ends before each operation on a file of the cache (an audit event) and when a thread sleeps. Time is simulated,
so that a schedule of minutes takes milliseconds. Between two steps files are flipped, cut, deleted or made unusable,
and threads are killed, which releases their locks and nothing else, or stopped. Each actor has a Cache of its own.

Whatever happens, readers find the right bytes, get no error, and wait for no more than seconds.

    python -m tests.helpers.cache_schedules --seconds 60 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import logging
import math
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import shardflow
from shardflow.dataset import reader as reader_module
from shardflow.dataset.open_dataset import Split
from shardflow.errors import StoreError
from shardflow.storage import cache as cache_module
from shardflow.storage import cache_directory, cache_eviction, retry
from shardflow.storage.cache import Cache
from shardflow.storage.local import LocalStorage
from shardflow.storage.local_files import map_os_errors
from tests.helpers.making import write_dataset

SHARDS, SAMPLES = 5, 2
CACHED_SHARDS = 3
BLOCKED_S = 40.0
"""Longer than any reader waits in simulated time: two stuck locks, and a few downloads of at most 3 seconds."""

_STEPS = {
    *("open", "fcntl.flock", "mmap.__new__", "os.listdir", "os.mkdir", "os.remove"),
    *("os.rename", "os.scandir", "os.truncate", "os.utime", "shutil.rmtree"),
}
_SIGNALS = ("flip", "kill", "stop", "stop")
_ALL = ("flip",) * 6 + ("cut", "delete", "delete", "block", "kill", "kill", "stop", "stop", "wipe")
"""What happens; without damage to the locks, those of stopped actors are in the way until others take over."""

_KEPT_EVENTS = 60
_LONGEST_STEPS = 50_000


class Killed(BaseException):
    """Ends the thread of an actor."""


class World:
    """A small dataset, and what its samples are."""

    def __init__(self, folder: Path) -> None:
        rng = random.Random(0)
        samples = [
            [(f"{shard}{n}", {"bin": rng.randbytes(300), "cls": b"%d" % shard}) for n in range(SAMPLES)]
            for shard in range(SHARDS)
        ]
        self.samples = samples
        self.root = write_dataset(folder / "set", {"train": samples})
        self.shards = shardflow.open(self.root).manifest.splits["train"]
        # An index is a fifth as large as its shard.
        self.limit_bytes = CACHED_SHARDS * max(shard.bytes for shard in self.shards)


class Actor:
    """A thread of a schedule, which stands for a process."""

    def __init__(self, schedule: Schedule, name: str, work: Callable[[Actor], None]) -> None:
        self.name, self.rng = name, random.Random(f"{schedule.seed} {name}")
        self.wake = threading.Semaphore(0)
        self.ready_at = self.began_at = self.stopped_s = 0.0
        self.is_done = self.is_killed = False
        self.locked: set[int] = set()  # descriptors
        self.thread = threading.Thread(target=schedule.run_actor, args=(self, work), name=name, daemon=True)


class Schedule:
    """One schedule: `run` raises an AssertionError where a promise is broken."""

    def __init__(self, world: World, seed: int, folder: Path) -> None:
        self.world, self.seed, self.rng, self.now = world, seed, random.Random(seed), 1e6
        self.directory = folder / "cache"
        self.events: list[str] = []
        self.error: BaseException | None = None
        self._over = threading.Semaphore(0)
        self._steps = self.kills = 0
        self._inside = False  # an operation of the schedule itself
        self._current: Actor | None = None
        # What happens, how often at a step, and how often another actor goes on, differ from schedule to schedule.
        self._kinds, self._harm = self.rng.choice(
            [(_SIGNALS, 0.003), (_SIGNALS, 0.01), (_SIGNALS, 0.03), (_ALL, 0.01), (_ALL, 0.03), (_ALL, 0.1)]
        )
        # Not for ever: those who wait make many steps, in which the stopped one that they wait for would be killed.
        self._events_left = self.rng.randrange(8) if self._kinds is _SIGNALS else _LONGEST_STEPS
        self._switch = self.rng.choice([0.1, 0.3, 0.8])
        works: list[Callable[[Actor], None]] = [self._read] * self.rng.randint(1, 3)
        works += [self._fetch] * self.rng.randint(0, 2) + [self._prune] * self.rng.randint(0, 1)
        self.actors = [Actor(self, f"{work.__name__[1:]}{number}", work) for number, work in enumerate(works)]

    def run(self) -> None:
        """Run the actors until all are done or killed, and check what they leave."""
        global _schedule
        descriptors = _descriptors()
        with _simulated(self):
            _schedule = self
            try:
                for actor in self.actors:
                    actor.thread.start()
                self._next(None)
                self._over.acquire()
            finally:
                _schedule = None
                for actor in self.actors:
                    actor.is_killed = True
                    actor.wake.release()
                    actor.thread.join(30)
        try:
            if self.error is not None:
                raise self.error
            assert not any(actor.thread.is_alive() for actor in self.actors), "a thread did not end"
            self._check_end()
            if not self.kills:  # the kernel closes those of a killed process
                assert _descriptors() <= descriptors, "descriptors are left open"
        except BaseException as error:
            trace = "\n  ".join(self.events[-_KEPT_EVENTS:])
            raise AssertionError(f"seed {self.seed}: {type(error).__name__}: {error}\n  {trace}") from error
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    # What actors do

    def _split(self) -> Split:
        cache = Cache(self.directory, self.world.limit_bytes)
        return Split(_Far(self), "train", self.world.shards, cache)

    def _read(self, actor: Actor) -> None:
        split = self._split()
        for _ in range(actor.rng.randint(2, 8)):
            shard, sequential = actor.rng.randrange(SHARDS), actor.rng.random() < 0.5
            self._begin(actor, f"reads shard {shard}")
            for record in range(SAMPLES):
                self._check(split, shard, record, sequential)
            self._end(actor)
            if actor.rng.random() < 0.5:
                split.reader.close(shard)
            if actor.rng.random() < 0.5:
                split.reader.finish(shard)
            if actor.rng.random() < 0.1:
                split.reader.renew()

    def _check(self, split: Split, shard: int, record: int, sequential: bool) -> None:
        sample = split.reader.read(shard, record, sequential=sequential)
        parts = {part: bytes(payload) for part, payload in sample.parts.items()}
        assert (sample.key, parts) == self.world.samples[shard][record], f"wrong bytes: shard {shard}, record {record}"

    def _fetch(self, actor: Actor) -> None:
        split = self._split()
        cache = split.reader.cache
        assert cache is not None
        for _ in range(actor.rng.randint(2, 8)):
            shard = self.world.shards[actor.rng.randrange(SHARDS)]
            self._begin(actor, f"fetches {shard.name}")
            with self._tolerated():
                cache.fetch(
                    shard.sha256,
                    shard.bytes,
                    lambda target, shard=shard: _Far(self).get(shard.name, target),  # type: ignore[misc]
                    stall_timeout_s=actor.rng.choice([0.0, 60.0]),
                )
            self._end(actor)

    def _prune(self, actor: Actor) -> None:
        cache = Cache(self.directory, self.world.limit_bytes)
        for _ in range(actor.rng.randint(1, 4)):
            self._begin(actor, "prunes")
            if actor.rng.random() < 0.5:
                cache.prune(actor.rng.randrange(self.world.limit_bytes))
            else:
                cache.prune_damaged()
            self._end(actor)
            self.sleep(actor.rng.uniform(0, 5))

    @contextlib.contextmanager
    def _tolerated(self) -> Iterator[None]:
        """Let a fetch fail where a file is in its way that cannot be removed: only readers work around it."""
        try:
            yield
        except StoreError:
            self._inside = True
            is_blocked = any(path.is_dir() for path in self.directory.glob("*/*"))
            self._inside = False
            if not is_blocked:
                raise

    def _begin(self, actor: Actor, what: str) -> None:
        self._note(f"{actor.name} {what}")
        actor.began_at, actor.stopped_s = self.now, 0.0

    def _end(self, actor: Actor) -> None:
        waited = self.now - actor.began_at - actor.stopped_s
        self._note(f"{actor.name} done after {waited:.1f} s")
        assert waited < BLOCKED_S, f"{actor.name} waited for {waited:.1f} s"
        if self._kinds is _SIGNALS:  # deleting locks deletes reservations
            self._check_limit()

    # What happens to them

    def _disturb(self) -> None:
        """Do some harm."""
        kind = self.rng.choice(self._kinds)
        if kind in ("kill", "stop"):
            alive = [actor for actor in self.actors if not (actor.is_done or actor.is_killed)]
            if not alive:
                return
            actor = self.rng.choice(alive)
            if kind == "stop":
                seconds = self.rng.choice([0.5, 5.0, 50.0, 500.0])
                actor.ready_at = max(actor.ready_at, self.now) + seconds
                actor.stopped_s += seconds
                self._note(f"{actor.name} is stopped for {seconds} s")
            elif len(alive) > 1:
                actor.is_killed = True
                self.kills += 1
                for descriptor in actor.locked:
                    with contextlib.suppress(OSError), open(os.devnull) as null:
                        if "/cache/locks/" in os.readlink(f"/proc/self/fd/{descriptor}"):
                            os.dup2(null.fileno(), descriptor)
                self._note(f"{actor.name} is killed")
            return
        if kind == "wipe":
            if self.rng.random() < 0.3:
                self._note("the directory is deleted")
                shutil.rmtree(self.directory, ignore_errors=True)
            return
        found = sorted(self.directory.glob("blobs/*" if self._kinds is _SIGNALS else "*/*"))
        if not found:
            return
        path = self.rng.choice(found)
        self._note(f"{kind}: {path.parent.name}/{path.name[:8]}")
        with contextlib.suppress(OSError):
            _HARM[kind](path, self.rng)

    # The steps

    def run_actor(self, actor: Actor, work: Callable[[Actor], None]) -> None:
        """Run the work of an actor: the body of its thread."""
        _actors[threading.get_ident()] = actor
        actor.wake.acquire()
        try:
            if not actor.is_killed:
                work(actor)
        except Killed:
            pass
        except BaseException as error:
            if not actor.is_killed:
                self._note(f"{actor.name}: {type(error).__name__}: {error}")
                self.error = self.error or error
        finally:
            actor.is_done = True
            del _actors[threading.get_ident()]
            if _schedule is self and not actor.is_killed:
                self._next(actor)

    def step(self, actor: Actor, event: str, arguments: tuple[Any, ...]) -> None:
        """End a step of an actor, before its next operation."""
        if self._inside or actor.is_killed:
            return
        if event == "fcntl.flock":
            for other in self.actors:
                other.locked.discard(arguments[0])
            actor.locked.add(arguments[0])
        elif event not in ("os.truncate", "os.utime") and str(self.directory) not in str(arguments[0]):
            return
        self._pass(actor)

    def sleep(self, seconds: float) -> None:
        """Let an actor wait."""
        actor = _actors.get(threading.get_ident())
        if actor is None or actor.is_killed:
            return
        actor.ready_at = max(actor.ready_at, self.now + seconds)
        self._pass(actor)

    def _pass(self, actor: Actor) -> None:
        """Let time pass, do harm, and let another actor go on, or the same."""
        self.now += 0.0005
        if self._events_left and self.rng.random() < self._harm:
            self._events_left -= 1
            self._inside = True
            try:
                self._disturb()
            finally:
                self._inside = False
        if self._next(actor):
            actor.wake.acquire()
        if actor.is_killed:
            raise Killed

    def _next(self, actor: Actor | None) -> bool:
        """Let an actor go on; return whether it is another than this one."""
        self._steps += 1
        alive = [other for other in self.actors if not (other.is_done or other.is_killed)]
        if self._steps > _LONGEST_STEPS:
            self.error = self.error or AssertionError("no end in sight")
        if not alive or self.error is not None:
            self._over.release()
            return True
        if all(other.ready_at > self.now for other in alive):
            self.now = min(other.ready_at for other in alive)
        ready = [other for other in alive if other.ready_at <= self.now]
        if actor in ready and self.rng.random() >= self._switch:
            return False
        chosen = self.rng.choice(ready)
        if chosen is actor:
            return False
        chosen.wake.release()
        return True

    def _note(self, event: str) -> None:
        self.events.append(f"{self.now - 1e6:8.3f} {event}")

    def _check_limit(self) -> None:
        self._inside = True
        held = sum(path.stat().st_size for path in self.directory.glob("blobs/*"))
        self._inside = False
        assert held <= self.world.limit_bytes, f"{held} bytes in a cache of {self.world.limit_bytes}"

    def _check_end(self) -> None:
        """Check that the cache is as good as new, once nothing happens any more."""
        for path in self.directory.glob("*/*"):
            if path.is_dir():
                path.rmdir()
        split = self._split()
        for shard in range(SHARDS):
            for record in range(SAMPLES):
                self._check(split, shard, record, sequential=False)
        cache = Cache(self.directory, self.world.limit_bytes)
        cache.prune_damaged()
        self._check_limit()
        cache.prune(0)
        left = [str(path) for path in self.directory.glob("*/*")]
        assert not left, f"left: {left}"


class _Far:
    """The dataset as a remote storage, whose downloads take a while and arrive in two halves."""

    idle_timeout_s = 60.0

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._storage = schedule, LocalStorage(schedule.world.root)

    def url(self, name: str) -> str:
        return f"far://{name}"

    def local_path(self, name: str) -> Path | None:  # noqa: ARG002 - the protocol's
        return None

    def read(self, name: str, **_: object) -> bytes:
        self._wait()
        return self._storage.read(name)

    def get(self, name: str, target: Path, **_: object) -> None:
        data = self._storage.read(name)
        with map_os_errors(target), open(target, "xb") as file:
            for half in (data[: len(data) // 2], data[len(data) // 2 :]):
                self._wait()
                file.write(half)
                file.flush()

    def _wait(self) -> None:
        actor = _actors.get(threading.get_ident())
        if actor is not None:
            self._schedule.sleep(actor.rng.choice([0.0, 0.01, 0.3, 1.5]))


def flip(path: Path, rng: random.Random) -> None:
    """Turn a bit over in a file, unless it is damaged already: CRC-32 is for single errors."""
    data = path.read_bytes()
    if data and (path.parent.name != "blobs" or hashlib.sha256(data).hexdigest() == path.name):
        position = rng.randrange(len(data))
        with open(path, "r+b") as file:
            os.pwrite(file.fileno(), bytes([data[position] ^ 1 << rng.randrange(8)]), position)


def cut(path: Path, rng: random.Random) -> None:
    """Replace a file by its beginning, as a crash of the host may leave it; those who have it mapped keep the whole."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[: rng.randrange(len(data) + 1)])


def block(path: Path, rng: random.Random) -> None:  # noqa: ARG001 - as the others
    """Put something in the place of a file that cannot be used, opened or deleted as a file."""
    path.unlink()
    path.mkdir()


_HARM: dict[str, Callable[[Path, random.Random], None]] = {
    "flip": flip,
    "cut": cut,
    "delete": lambda path, _: path.unlink(),
    "block": block,
}
_actors: dict[int, Actor] = {}
_schedule: Schedule | None = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _STEPS and _schedule is not None and (actor := _actors.get(threading.get_ident())) is not None:
        _schedule.step(actor, event, arguments)


@contextlib.contextmanager
def _simulated(schedule: Schedule) -> Iterator[None]:
    """Give the modules of the cache the clock and the randomness of a schedule."""
    clock: Any = SimpleNamespace(monotonic=lambda: schedule.now, time_ns=lambda: int(schedule.now * 1e9))
    timed: list[Any] = [cache_module, cache_directory, cache_eviction, retry]
    pausing: list[Any] = [cache_directory, cache_eviction, reader_module]
    pause = cache_directory.pause
    secrets, utime, touchers = cache_module.secrets, os.utime, cache_directory._touchers

    def simulated_utime(file: Any, *, ns: tuple[int, int] | None = None) -> None:
        utime(file, ns=(clock.time_ns() + 1, clock.time_ns()) if ns is None else ns)

    for module in timed:
        module.time = clock
    for module in pausing:
        module.pause = schedule.sleep
    cache_module.secrets = SimpleNamespace(token_hex=lambda n: schedule.rng.randbytes(n).hex())  # type: ignore[assignment]
    os.utime = simulated_utime  # type: ignore[assignment]
    # No thread may go on while its actor is stopped. No download is so slow that it has to show that it lives.
    untouched: Any = SimpleNamespace(touching=lambda _: contextlib.nullcontext())
    cache_directory._touchers = {os.getpid(): untouched}
    try:
        yield
    finally:
        for module in timed:
            module.time = time
        for module in pausing:
            module.pause = pause
        cache_module.secrets = secrets
        os.utime, cache_directory._touchers = utime, touchers


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def run_schedules(folder: Path, seed: int, schedules: int | None, seconds: float) -> int:
    """Run the schedules from this seed on, so many or for so long; return how many were run."""
    sys.addaudithook(_audit)  # for as long as the process lives
    world, done, ends_at = World(folder), 0, time.monotonic() + seconds
    while done != schedules and time.monotonic() < ends_at:
        Schedule(world, seed + done, folder).run()
        done += 1
    return done


def main() -> int:
    """Run schedules, so many or for so long."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedules", type=int)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule; the others follow")
    chosen = parser.parse_args()
    logging.disable()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        done = run_schedules(Path(folder), chosen.seed, chosen.schedules, chosen.seconds)
    print(f"{done:,} schedules from seed {chosen.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
