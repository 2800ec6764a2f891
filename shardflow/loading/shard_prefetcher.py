"""Shard prefetching: threads fetch shards into the cache before the batches that need them, which the plan knows.

The threads only save time. If they fail to fetch a shard, its reader tries again, so a lasting error is raised by the
batch that needs the shard.

All workers of a rank prefetch the same list of shards, and the locks of the cache divide the work among them: a shard
that another process is fetching is skipped and tried again later.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator

from shardflow.dataset.open_dataset import Split
from shardflow.errors import ShardflowError
from shardflow.order.epochs import ShardSpan
from shardflow.storage.cache import Cache, FetchResult
from shardflow.storage.cache_eviction import RENEW_S

from .distributed import local_ranks

logger = logging.getLogger(__name__)

IN_FLIGHT = 8
"""Shards that all workers of a rank together fetch at once: as many as a rank has streams by default, so that the
first batch waits for one transfer instead of several in a row."""


_BATCHES_BEHIND = 8
"""The most batches that a worker may lag behind another worker of its rank: batches are assigned in turn."""


@contextlib.contextmanager
def prefetching(
    split: Split, needs: Iterator[ShardSpan], *, workers: int, period: int, sources: int = 1
) -> Iterator[Callable[[int, int], None]]:
    """Fetch shards in the background until the body ends; yield `ShardPrefetcher.advance`, to be called per batch.

    All `workers` of a rank prefetch the same shards, and after `period` positions all shards are needed again. Shards
    that are read in place are not fetched. `sources` is the number of sources that share the cache's limit.
    """
    cache = split.reader.cache
    if cache is None:
        yield lambda *_: None
        return
    prefetcher = ShardPrefetcher(split, cache, needs, workers, period, sources)
    try:
        yield prefetcher.advance
    finally:
        prefetcher.stop()


class ShardPrefetcher:
    """Fetches the shards of one iteration."""

    def __init__(
        self, split: Split, cache: Cache, needs: Iterator[ShardSpan], workers: int, period: int, sources: int = 1
    ) -> None:
        self._split, self._cache, self._needs, self._period = split, cache, needs, period
        # An open shard keeps its disk space after its eviction: a cache smaller than the split would exceed its limit.
        self._keep_open = sum(split.shards.bytes.tolist()) <= cache.limit_bytes
        # Prefetched shards are evicted last, so half of the limit is safe. But if not all shards fit, prefetching takes
        # room from shards that stay until the next epoch. Shards that are needed now are always fetched.
        budget = cache.limit_bytes // 2
        if not self._keep_open:
            few = 2 * IN_FLIGHT * int(split.shards.bytes.max())
            budget = min(budget, max(few, cache.limit_bytes // 16))
        self._budget_bytes = budget // local_ranks() // sources
        self._spans = Counter[int]()  # shard → its unfinished spans: at most one a stream
        self._read = deque[tuple[int, int]]()  # (position, shard) of shards that other workers may still read
        self._workers = workers
        self._next, self._begun = next(needs, None), False
        self._unfinished: list[tuple[int, int]] = []  # a heap of (end, shard)
        self._unfinished_bytes = 0
        self._changed = threading.Condition()  # guards the attributes below
        self._queue: deque[int] = deque()
        self._busy: deque[int] = deque()
        self._stopped = False
        threading.Thread(target=self._renew, name="shardflow-renew", daemon=True).start()
        for _ in range(max(1, IN_FLIGHT // workers)):
            # Daemons, and never joined: neither an epoch nor the process waits for a transfer that is not needed.
            threading.Thread(target=self._run, name="shardflow-prefetch", daemon=True).start()

    def advance(self, position: int, stop: int) -> None:
        """Mark everything before `position` as read, and everything before `stop` as needed now, in the reading thread.

        Shards that only later batches need are prefetched after the first call.
        """
        while self._unfinished and self._unfinished[0][0] <= position:
            _, shard = heapq.heappop(self._unfinished)
            self._spans[shard] -= 1
            if not self._spans[shard]:
                del self._spans[shard]
                self._unfinished_bytes -= int(self._split.shards.bytes[shard])
                self._read.append((position, shard))
            if not self._keep_open:
                self._split.reader.close(shard)
        margin = _BATCHES_BEHIND * self._workers * (stop - position)
        while self._read and self._read[0][0] + margin <= position:
            shard = self._read.popleft()[1]
            self._split.reader.finish(shard)
            self._split.columns.finish(shard)
        admitted = []
        while (need := self._next) is not None:
            size = 0 if need.shard in self._spans else int(self._split.shards.bytes[need.shard])
            fits = self._unfinished_bytes + size <= self._budget_bytes and need.begin < position + self._period
            if need.begin >= stop and not (fits and self._begun):
                break
            heapq.heappush(self._unfinished, (need.end, need.shard))
            self._spans[need.shard] += 1
            self._unfinished_bytes += size
            admitted.append(need.shard)
            self._next = next(self._needs, None)
        self._begun = True
        if admitted:
            self._cache.warn_if_exceeded(self._unfinished_bytes)
            with self._changed:
                self._queue.extend(admitted)
                self._changed.notify_all()

    def stop(self) -> None:
        """Start no further transfers; transfers in progress continue to their end."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _renew(self) -> None:
        while not self._stopped:
            with contextlib.suppress(ShardflowError):  # readers raise what matters
                self._split.reader.renew()
                self._split.columns.renew()
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, timeout=RENEW_S)

    def _run(self) -> None:
        while (shard := self._next_shard()) is not None:
            try:
                self._split.columns.fetch(shard)
                fetched = self._split.reader.fetch(shard)
            except ShardflowError as error:
                logger.debug("prefetching failed, the reader will try again: %s", error)
                with self._changed:
                    self._changed.wait_for(lambda: self._stopped, timeout=1.0)
                continue
            if fetched is FetchResult.BUSY:
                with self._changed:
                    self._busy.append(shard)

    def _next_shard(self) -> int | None:
        """Wait for a shard to fetch and return it; None after `stop`."""
        with self._changed:
            while not self._stopped:
                if self._queue:
                    return self._queue.popleft()
                if self._busy:
                    self._changed.wait(timeout=0.1)
                    self._queue.extend(self._busy)
                    self._busy.clear()
                else:
                    self._changed.wait()
            return None
