"""The Storage interface: the place where the files of a dataset lie.

A storage holds named blobs below one root. Names are relative paths with forward slashes. A blob that is published
appears whole under its final name, or does not appear. A writer that is killed can leave files whose names have
the form of `LEFTOVER`; it never leaves half a blob.

Behaviour is added by wrapping: rereading wrong bytes, the cache, the roots of a virtual dataset, and the tests'
counters and faults are Storages too; see `wrapper`. Every one passes the tests in `tests/storage/test_conformance.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from shardflow.errors import IntegrityError

MAX_READ_BYTES = 1 << 28
"""The most bytes that `Storage.read` returns by default: twice the manifest of 500,000 shards, which has 128 MB."""

IDLE_TIMEOUT_S = 60.0
"""The default of `Storage.idle_timeout_s`."""

TEMPORARY = ".tmp-"
LEFTOVER = re.compile(r"\.tmp-.+\.[0-9a-f]{8}")
"""The names, without their folders, of files that are being published. No other file is taken for one of ours."""


class BlobTooLargeError(IntegrityError):
    """A blob is larger than one that is read whole may be.

    Attributes:
        size: In bytes.
        sha256: With which it was stored; "" if the storage does not tell before it is read.
    """

    size = 0
    sha256 = ""

    @classmethod
    def of(cls, url: str, size: int, most_bytes: int, sha256: str = "") -> BlobTooLargeError:
        """Return the error of a blob."""
        message = f"{url} has {size:,} bytes; {most_bytes:,} is the most for such a file"
        error = cls(f"{message}; if it is damaged, restore it; otherwise leave it out")
        error.size, error.sha256 = size, sha256
        return error


class BlobVersion(NamedTuple):
    """The state of a blob at a request, so that all its parts can be read from the same version."""

    size: int  # in bytes; -1 in a listing of a server that does not send it
    tag: str = ""  # changes with the content; "" where the storage has none
    modified_ns: int | None = None  # of the publication, by the clock of the storage, since 1970; None if unknown
    metadata: Mapping[str, str] = {}  # of blobs written here to S3, GCS or Azure: `sha256`, `writer`


class Writer(NamedTuple):
    """The right to write to a storage, as `exclusive_writer` grants it."""

    staging: Path  # a local directory for files that are not finished; on a local disk, the root of the storage itself
    lock: int  # the descriptor of the kernel's lock on that directory; a process that inherits it holds the lock too
    is_exclusive: bool  # whether it keeps all writers out; where other machines can write, a lock in the storage has to


class Storage(Protocol):
    """Named blobs below one root.

    Every method may be called from any thread, and in a process that was forked from the one that made the storage.
    Every method may be called again after it failed. A failure is a StoreError or a subclass, IntegrityError or
    DatasetExistsError. It is permanent: requests that were worth a retry have been retried.
    """

    def __str__(self) -> str:
        """Return the root as messages show it: without credentials and query."""
        ...

    @property
    def idle_timeout_s(self) -> float:
        """The longest wait for this storage without progress, in seconds: `deadline_s` of the storage_options."""
        ...

    def url(self, name: str) -> str:
        """Return the name of a blob for messages."""
        ...

    def local_path(self, name: str) -> Path | None:
        """Return the path of a blob on this machine, None where it has none. It asks nothing of the disk or a server.

        The blob need not exist. The path is for reading. "" stands for the root.
        """
        ...

    def read(self, name: str, *, most_bytes: int = MAX_READ_BYTES) -> bytes:
        """Return the content of a blob that fits into memory.

        Raises:
            BlobTooLargeError: The blob has more than `most_bytes`.
            NotFoundError: The blob does not exist.
        """
        ...

    def read_range(self, name: str, start: int, stop: int, *, version: BlobVersion | None = None) -> bytes:
        """Return the bytes of a blob from `start` to `stop`, fewer where the blob ends before. They are not verified.

        Raises:
            NotFoundError: The blob does not exist. An empty range may be returned without asking for the blob.
            StoreError: The blob is not the `version` that was asked for, as far as its tag and size tell.
        """
        ...

    def version(self, name: str) -> BlobVersion | None:
        """Return size and tag of a blob, for `read_range` and `put`; None if it does not exist.

        Ask for the version, then read, then replace what has the tag: it succeeds only if all three met one blob.
        """
        ...

    def get(self, name: str, target: Path, *, size: int, sha256: str) -> None:
        """Copy a blob of known content into a new local file, which is not synced to the disk.

        Raises:
            IntegrityError: The blob has another size or SHA-256. Over a network, it was read several times.
            NotFoundError: The blob does not exist.
            StoreError: The blob cannot be read, or the file exists or cannot be written. After any error, the file
                that was being written is removed.
        """
        ...

    def put(self, name: str, content: bytes | Path, *, new: bool = False, replaces: str | None = None) -> None:
        """Publish a blob: one that must be `new`, or that `replaces` the one with this tag, or any existing one.

        The content can be a local file, which is moved: afterwards it is gone, after an error perhaps too.

        Without a condition, only for names that no committed dataset holds. If several writers publish under the same
        condition at once, exactly one succeeds.

        Raises:
            DatasetExistsError: The condition does not hold: the blob exists, or the one with the tag is gone. Nothing
                is changed.
            StoreError: A tag was given, and such storage has no conditional writes.
        """
        ...

    def listing(self, *, most: int | None = None) -> dict[str, BlobVersion]:
        """Return all blobs and leftovers by name, sorted; nothing where the root does not exist.

        With `most`, not many more than so many, the first found; none from a server that has no pages.

        A virtual storage leaves out the tars in its roots.
        """
        ...

    def remove(self, name: str) -> None:
        """Delete a blob or a leftover. A missing one is not an error."""
        ...

    def abort_uploads(self, names: Collection[str]) -> None:
        """Abort the unfinished uploads of these blobs, where a storage has such: killed writers leave them open.

        Uploads of live writers look the same and fail. So call this only when no upload of these names is needed.
        """
        ...

    def exclusive_writer(self) -> AbstractContextManager[Writer]:
        """Keep other writers of this machine out while the context runs, and provide a staging directory.

        A local root is created if it does not exist, and locked. For any other storage a temporary directory is
        created; it needs room for the files that are written at the same time.

        Raises:
            StoreError: Another process writes here, or the directory cannot be created.
        """
        ...
