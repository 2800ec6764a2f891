"""Stores for tests that are reached over no network but are as far away: they count, dawdle and fail as told."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from shardflow.errors import TransientError
from shardflow.storage.local import LocalStorage


class CountingStore:
    """What a reader needs of a store, served from a directory, by copying alone.

    Args:
        root: The dataset.
        log: A file that gets a line for each blob that is read, from any process.
        delay_s: How long a transfer takes.
        before: Called with the name of each blob before its transfer; what it raises is the transfer's failure.
    """

    def __init__(
        self, root: Path, log: Path, *, delay_s: float = 0.0, before: Callable[[str], None] | None = None
    ) -> None:
        self._storage, self._log, self._delay_s, self.before = LocalStorage(root), log, delay_s, before

    def __str__(self) -> str:
        return f"far://{self._storage}"

    def url(self, name: str) -> str:
        """How messages name a blob."""
        return f"far:/{self._storage.path(name)}"

    def read(self, name: str) -> bytes:
        """A small blob."""
        self._begin(name)
        return self._storage.read(name)

    def size(self, name: str) -> int | None:
        """The size of a blob."""
        return self._storage.size(name)

    def get(self, name: str, target: Path, *, size: int, sha256: str) -> None:
        """A blob, copied."""
        self._begin(name)
        time.sleep(self._delay_s)
        self._storage.get(name, target, size=size, sha256=sha256)

    def _begin(self, name: str) -> None:
        with open(self._log, "a") as log:
            log.write(f"{name}\n")
        if self.before is not None:
            self.before(name)

    def taken(self) -> Counter[str]:
        """How often each blob has been read so far."""
        return Counter(self._log.read_text().split()) if self._log.exists() else Counter()

    def put(self, name: str, data: bytes) -> None:
        """Not served."""
        raise NotImplementedError(name, data)

    put_new = put

    def upload(self, name: str, source: Path) -> None:
        """Not served."""
        raise NotImplementedError(name, source)

    def names(self) -> list[str]:
        """The names of all blobs."""
        return self._storage.names()

    def remove(self, name: str) -> None:
        """Not served."""
        raise NotImplementedError(name)

    def sole_writer(self) -> None:
        """Not served."""
        raise NotImplementedError


class SlowStore(CountingStore):
    """A store whose tars come in steps: so many bytes of them, changed or not, and the rest when it is told."""

    def __init__(self, root: Path, log: Path) -> None:
        super().__init__(root, log)
        self.first_bytes = 0
        self.change: Callable[[bytearray], None] = lambda _: None
        self.fails = False
        self.begun, self.go_on = threading.Event(), threading.Event()

    def get(self, name: str, target: Path, *, size: int, sha256: str) -> None:
        """A blob, in two steps."""
        data = bytearray((self._storage.path(name)).read_bytes())
        self.change(data)
        target.write_bytes(data[: self.first_bytes])
        self.begun.set()
        assert self.go_on.wait(30)
        target.unlink()
        if self.fails:
            raise TransientError(f"{name} failed")
        super().get(name, target, size=size, sha256=sha256)
