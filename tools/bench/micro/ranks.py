"""A job of 1,024 ranks over 10^9 samples in 5·10^5 shards, by the real code on one machine.

The first table is what starting a rank costs: reading the manifest, planning an epoch, finding the first batch and all
shards that the rank will read. The second is what the bucket sees while all ranks fetch their first shards at once: a
simulation in virtual time of the requests, with the project's own retries, against a store that answers so many GETs a
second (S3: 5,500 for each prefix) and refuses the others with 503.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import itertools
import multiprocessing
import os
import resource
import selectors
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bench.report import markdown
from shardflow.dataset.open_dataset import Split
from shardflow.errors import DeadlineError, TransientError
from shardflow.formats.manifest import Manifest, from_bytes
from shardflow.formats.shard import Shard
from shardflow.loading.facts import split_facts
from shardflow.loading.shard_prefetcher import IN_FLIGHT
from shardflow.order.epochs import Epochs
from shardflow.order.rank_partition import RankPartition
from shardflow.storage.local import LocalStorage
from shardflow.storage.remote import PIECE_BYTES, PIECES
from shardflow.storage.retry import Failure, Retries, RetryPolicy

T = TypeVar("T")

RANKS, RANK, RANKS_PER_HOST, BATCH = 1024, 5, 8, 256
SHARDS, SHARD_SAMPLES, SHARD_BYTES = 500_000, 2000, 72_000_000
LATENCY_S, CONNECTION_BYTES_S, HOST_BYTES_S = 0.03, 90e6, 3e9
LIMITS = (5_500, 11_000, 22_000, 55_000)
"""GETs per second: one, two, four and ten prefixes of S3."""


def measure(rounds: int) -> str:
    """Return both tables; the figures hardly differ from round to round."""
    assert rounds
    return f"{start()}\n{burst()}"


def start() -> str:
    """Return the table of a rank's start."""
    lines: list[tuple[str, ...]] = []

    def step(what: str, do: Callable[[], T], note: Callable[[T], str] = lambda _: "") -> T:
        gc.collect()
        before, memory = time.process_time(), _resident_mb()
        result = do()
        spent = time.process_time() - before
        lines.append((what, f"{spent:.2f}", f"{_resident_mb() - memory:.0f}", note(result)))
        return result

    data = _manifest().to_bytes()
    manifest = step("read the manifest", lambda: from_bytes(data), lambda _: f"{len(data) / 1e6:.0f} MB")
    split = step("open the split", lambda: Split(LocalStorage(Path()), "train", manifest.splits["train"]))
    order = Epochs(split_facts(split, None), seed=0)
    streams = order.default_streams(RANKS)
    partition = RankPartition(length=order.length, batch_size=BATCH, rank=RANK, world_size=RANKS, tail="drop")
    first, _ = partition.positions(0, 0)
    step("plan the epoch, first batch", lambda: order.locate(0, first, streams), lambda _: f"{streams:,} streams")
    step(
        "all shards of the rank",
        lambda: sum(1 for _ in order.needs(0, 0, streams, RANK, RANKS)),
        lambda shards: f"{shards:,} of {SHARDS:,}",
    )
    lines.append(("a worker: which shards are needed, how large they are", *_forked(lambda: _look_through(split)), ""))
    lines.append(("peak of the process", "", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f}", ""))
    return markdown(("step", "CPU-s", "MB", ""), lines)


def _manifest() -> Manifest:
    def digest(what: str) -> str:
        return hashlib.sha256(what.encode()).hexdigest()

    shards = tuple(
        Shard(
            name=f"train/{number:06d}.tar",
            samples=SHARD_SAMPLES,
            bytes=SHARD_BYTES,
            sha256=digest(f"tar {number}"),
            index_sha256=digest(f"index {number}"),
        )
        for number in range(SHARDS)
    )
    return Manifest(splits={"train": shards}, inputs=SHARDS * SHARD_SAMPLES)


def _look_through(split: Split) -> None:
    """Do what the prefetcher of each worker does with all shards, and the renewal of what is in the cache."""
    assert "0" * 64 not in split.shards.contents
    assert sum(split.shards.bytes.tolist()) == SHARDS * SHARD_BYTES


def _forked(do: Callable[[], None]) -> tuple[str, str]:
    """Return the CPU seconds that something takes in a forked process, and the MB that are its own afterwards."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        before, memory = time.process_time(), _own_mb()
        do()
        sender.send((f"{time.process_time() - before:.2f}", f"{_own_mb() - memory:.0f}"))

    process = context.Process(target=run)
    process.start()
    found: tuple[str, str] = receiver.recv()
    process.join()
    return found


def _own_mb() -> float:
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_Dirty")) / 1e3


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


# ---- the burst ----


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which waiting takes no time."""

    def __init__(self) -> None:
        self.now = 0.0
        loop = self

        class Jump(selectors.SelectSelector):
            def select(self, timeout: float | None = None) -> Any:
                loop.now += timeout or 0.0
                return super().select(0)

        super().__init__(Jump())

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self.now


@dataclass
class Store:
    """A store that answers so many GETs a second, by a bucket of tokens of one second, and refuses the others."""

    limit: int
    answered: int = 0
    refused: int = 0
    tokens: float = field(init=False)
    filled: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = self.limit

    def admit(self, now: float) -> bool:
        """Count a GET, and return whether it is answered."""
        self.tokens = min(self.limit, self.tokens + (now - self.filled) * self.limit)
        self.filled = now
        if self.tokens < 1:
            self.refused += 1
            return False
        self.tokens -= 1
        self.answered += 1
        return True


def burst() -> str:
    """Return the table of what the bucket sees."""
    lines = []
    for limit in LIMITS:
        store, policy = Store(limit), RetryPolicy()
        loop = VirtualLoop()
        times = loop.run_until_complete(_all_ranks(store, policy))
        loop.close()
        given_up = sum(time_s is None for time_s in times)
        first = np.array([time_s for time_s in times if time_s is not None])
        shown = (f"{np.median(first):.1f}", f"{first.max():.1f}", str(given_up))
        lines.append((f"{limit:,}", f"{store.answered:,}", f"{store.refused:,}", f"{loop.now:.0f}", *shown))
    columns = ("GETs/s", "answered", "refused", "s in all", "first batch, median s", "slowest s", "ranks that gave up")
    return markdown(columns, lines)


async def _all_ranks(store: Store, policy: RetryPolicy) -> list[float | None]:
    hosts = [Host() for _ in range(RANKS // RANKS_PER_HOST)]
    ranks = (_first_shards(store, policy, hosts[rank // RANKS_PER_HOST]) for rank in range(RANKS))
    return await asyncio.gather(*ranks)


@dataclass
class Host:
    """A machine, whose network is shared by the transfers in progress."""

    transfers: int = 0

    async def receive(self, size: int) -> None:
        """Wait until so many bytes have arrived."""
        self.transfers += 1
        try:
            await asyncio.sleep(size / min(CONNECTION_BYTES_S, HOST_BYTES_S / self.transfers))
        finally:
            self.transfers -= 1


async def _first_shards(store: Store, policy: RetryPolicy, host: Host) -> float | None:
    """Fetch the first shards of a rank, and return when the head of each was there; None if one was given up."""
    try:
        heads = [_shard(store, policy, host) for _ in range(IN_FLIGHT)]
        return max(await asyncio.gather(*heads))
    except (TransientError, DeadlineError):
        return None


async def _shard(store: Store, policy: RetryPolicy, host: Host) -> float:
    """Fetch an index and a shard in pieces, as remote storage does; return when the first piece was there."""
    clock = asyncio.get_running_loop().time

    async def piece(size: int) -> float:
        async def request() -> None:
            await asyncio.sleep(LATENCY_S)
            if not store.admit(clock()):
                raise TransientError("503")
            await host.receive(size)

        refusal = Failure(error=TransientError("the server asks for fewer requests"), retry=True)
        await Retries(lambda *_: refusal, policy, str)(request, "shard")
        return clock()

    sizes: Iterator[int] = itertools.repeat(PIECE_BYTES, -(-SHARD_BYTES // PIECE_BYTES))
    window = asyncio.Semaphore(PIECES)

    async def within(size: int) -> float:
        async with window:
            return await piece(size)

    index = asyncio.ensure_future(piece(100_000))
    pieces = [asyncio.ensure_future(within(size)) for size in sizes]
    arrived = await asyncio.gather(index, *pieces)
    return max(arrived[:2])
