"""Look-ahead: threads that fetch shards into the cache before the batches that need them, because the plan is known.

What the threads do is only ever a favour. A shard that they did not get, for whatever reason, is fetched by whoever
reads it, and so the reader meets the error, if it is still there by then, in the batch that needs the shard.

All workers of a rank look ahead along the same list, and the locks of the cache deal the work out among them: a shard
that somebody else is fetching is passed over, and looked at again later.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from shardflow.dataset.dataset import Split
from shardflow.errors import ShardflowError
from shardflow.storage.cache import FetchResult

from .topology import local_ranks

logger = logging.getLogger(__name__)

IN_FLIGHT = 8
"""Shards that the workers of a rank fetch at a time, all together: as many as the default lanes of a rank, so that the
first batch waits for one transfer and not for several in a row."""

_RETRY_S = 0.1
_PAUSE_S = 1.0


class ShardSpan(NamedTuple):
    """A shard, and the positions of the epoch between which it is read."""

    shard: int
    begin: int
    end: int


@contextlib.contextmanager
def prefetching(
    split: Split, needs: Iterator[ShardSpan], *, workers: int, period: int
) -> Iterator[Callable[[int, int], None]]:
    """Fetch shards in the background until the body ends, which calls what it is lent as it reads on.

    Does nothing for shards that are read where they lie.

    Args:
        split: Whose shards.
        needs: In the order of their begin.
        workers: Processes of this rank that do the same.
        period: Positions after which everything is needed again.
    """
    cache = split.cache
    if cache is None:
        yield lambda *_: None
        return
    # What is ahead was used last and what is being read before that: with half of the limit, neither is evicted.
    ahead = ShardPrefetcher(
        split,
        needs,
        budget_bytes=cache.limit_bytes // 2 // local_ranks(),
        period=period,
        threads=max(1, IN_FLIGHT // workers),
        keep_mapped=sum(shard.bytes for shard in split.shards) <= cache.limit_bytes,
    )
    try:
        yield ahead.reach
    finally:
        ahead.stop()


class ShardPrefetcher:
    """Fetches the shards of one iteration.

    Args:
        split, needs, period: As above.
        budget_bytes: Of shards that are being read or will be next; those needed now are fetched in any case.
        threads: How many shards to fetch at a time.
        keep_mapped: Leave shards mapped that are no longer needed. Mapped ones keep their bytes on the disk after they
            were evicted, so that a cache smaller than the split would not be bounded.
    """

    def __init__(
        self,
        split: Split,
        needs: Iterator[ShardSpan],
        *,
        budget_bytes: int,
        period: int,
        threads: int,
        keep_mapped: bool,
    ) -> None:
        self._split, self._needs = split, needs
        self._budget_bytes, self._period, self._keep_mapped = budget_bytes, period, keep_mapped
        self._next, self._begun = next(needs, None), False
        self._unfinished: list[tuple[int, int]] = []  # a heap of (end, shard)
        self._unfinished_bytes = 0
        self._changed = threading.Condition()  # guards what follows
        self._todo: deque[int] = deque()
        self._busy: deque[int] = deque()
        self._stopped = False
        for _ in range(threads):
            # Daemons, and never joined: neither an epoch nor the process waits for a transfer that nobody needs.
            threading.Thread(target=self._run, name="shardflow-ahead", daemon=True).start()

    def reach(self, position: int, stop: int) -> None:
        """Say that all before `position` has been read, and all before `stop` is next; called in the thread that reads.

        What comes after the first batch is left alone until that has been made.
        """
        while self._unfinished and self._unfinished[0][0] <= position:
            _, shard = heapq.heappop(self._unfinished)
            self._unfinished_bytes -= self._split.shards[shard].bytes
            if not self._keep_mapped:
                self._split.let_go(shard)
        admitted = []
        while (need := self._next) is not None:
            size = self._split.shards[need.shard].bytes
            fits = self._unfinished_bytes + size <= self._budget_bytes and need.begin < position + self._period
            if need.begin >= stop and not (fits and self._begun):
                break
            heapq.heappush(self._unfinished, (need.end, need.shard))
            self._unfinished_bytes += size
            admitted.append(need.shard)
            self._next = next(self._needs, None)
        self._begun = True
        if admitted:
            with self._changed:
                self._todo.extend(admitted)
                self._changed.notify_all()

    def stop(self) -> None:
        """Begin no further transfer; those under way end by themselves."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _run(self) -> None:
        while (shard := self._take()) is not None:
            try:
                fetched = self._split.fetch(shard)
            except ShardflowError as error:
                logger.debug("left to the reader: %s", error)
                with self._changed:
                    self._changed.wait_for(lambda: self._stopped, _PAUSE_S)
            else:
                if fetched is FetchResult.BUSY:
                    with self._changed:
                        self._busy.append(shard)

    def _take(self) -> int | None:
        """Return a shard to fetch, waiting for one; None when there will be none."""
        with self._changed:
            while not self._stopped:
                if self._todo:
                    return self._todo.popleft()
                if self._busy:
                    self._changed.wait(_RETRY_S)
                    self._todo.extend(self._busy)
                    self._busy.clear()
                else:
                    self._changed.wait()
            return None
