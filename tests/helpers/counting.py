"""Storages that behave as remote ones without a network: they count reads, delay them, and fail on demand."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shardflow.errors import TransientError
from shardflow.storage.interface import MAX_READ_BYTES, BlobVersion, Writer
from shardflow.storage.local import LocalStorage
from shardflow.storage.local_files import map_os_errors
from shardflow.storage.staging import temporary_staging
from shardflow.storage.wrapper import StorageWrapper


class CountingStorage(StorageWrapper):
    """A directory as a remote storage: no blob has a local path, and every read is counted.

    Args:
        root: The directory.
        log: A file that gets a line for each blob that is read, from any process.
        delay_s: Duration of a transfer.
        before: Called with the name of each blob before it is read; an error that it raises is the error of the read.
    """

    def __init__(
        self, root: Path, log: Path, *, delay_s: float = 0.0, before: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(LocalStorage(root))
        self._log, self._delay_s, self.before = log, delay_s, before

    def __str__(self) -> str:
        return f"far:/{self._inner}"

    def url(self, name: str) -> str:
        return f"{self}/{name}"

    def local_path(self, name: str) -> Path | None:  # noqa: ARG002 - the protocol's
        return None

    def read(self, name: str, *, most_bytes: int = MAX_READ_BYTES) -> bytes:
        self._count(name)
        return super().read(name, most_bytes=most_bytes)

    def read_range(self, name: str, start: int, stop: int, *, version: BlobVersion | None = None) -> bytes:
        self._count(name)
        return super().read_range(name, start, stop, version=version)

    def get(self, name: str, target: Path, *, size: int, sha256: str) -> None:
        self._count(name)
        time.sleep(self._delay_s)
        super().get(name, target, size=size, sha256=sha256)

    @contextmanager
    def exclusive_writer(self) -> Iterator[Writer]:
        with temporary_staging() as (folder, lock):
            yield Writer(folder, lock, is_exclusive=False)

    def reads(self) -> Counter[str]:
        """Return how often each blob has been read so far."""
        return Counter(self._log.read_text().split()) if self._log.exists() else Counter()

    def _count(self, name: str) -> None:
        with open(self._log, "a") as log:
            log.write(f"{name}\n")
        if self.before is not None:
            self.before(name)


class SlowStorage(CountingStorage):
    """A storage whose tars arrive in two steps: the first bytes, changed or not, and on a signal the rest."""

    def __init__(self, root: Path, log: Path) -> None:
        super().__init__(root, log)
        self.first_bytes = 0
        self.change: Callable[[bytearray], None] = lambda _: None
        self.fails = False
        self.begun, self.go_on = threading.Event(), threading.Event()

    def get(self, name: str, target: Path, *, size: int, sha256: str) -> None:
        data = bytearray(self._inner.read(name))
        self.change(data)
        with map_os_errors(target), open(target, "xb") as file:
            file.write(data[: self.first_bytes])
        self.begun.set()
        assert self.go_on.wait(30)
        target.unlink()
        if self.fails:
            raise TransientError(f"{name} failed")
        super().get(name, target, size=size, sha256=sha256)
