"""The Storage interface: named blobs below one root, the files of a dataset.

Names are relative paths with forward slashes. A published blob appears whole under its final name, or not at all. A
killed writer can leave files whose names begin with `TEMPORARY`, but never half a blob.

Behaviour is added by wrapping: rereading wrong bytes, the cache, the roots of a virtual dataset, and the tests'
counters and faults are Storages too, see `wrapper`. All of them pass `tests/storage/test_conformance.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from shardflow.errors import IntegrityError

MAX_READ_BYTES = 1 << 28
"""Default limit of `Storage.read`: twice the manifest of 500,000 shards, which has 128 MB."""

IDLE_TIMEOUT_S = 60.0
"""The default of `Storage.idle_timeout_s`."""

TEMPORARY = ".tmp-"
"""The beginning of the names, without folders, of files that are being written."""


class BlobTooLargeError(IntegrityError):
    """A blob exceeds the limit for reading it whole.

    Attributes:
        size: Size in bytes.
        sha256: The SHA-256 in its metadata; "" if the storage has none.
    """

    size = 0
    sha256 = ""

    @classmethod
    def of(cls, url: str, size: int, most_bytes: int, sha256: str = "") -> BlobTooLargeError:
        """Return the error of a blob."""
        message = f"{url} has {size:,} bytes; the limit for such a file is {most_bytes:,}"
        error = cls(f"{message}; if it is damaged, restore it; otherwise leave it out")
        error.size, error.sha256 = size, sha256
        return error


class BlobVersion(NamedTuple):
    """The state of a blob, so that all its parts can be read from the same version."""

    size: int  # in bytes; -1 in a listing of a server that does not send it
    tag: str = ""  # changes with the content; "" if the storage has none
    modified_ns: int | None = None  # time of publication since 1970, by the storage's clock; None if unknown
    metadata: Mapping[str, str] = {}  # of blobs written by shardflow to S3, GCS or Azure: `sha256`, `writer`


class Writer(NamedTuple):
    """The right to write to a storage, from `exclusive_writer`."""

    staging: Path  # a local directory for unfinished files; on a local disk, the root of the storage
    lock: int  # the descriptor of the kernel's lock on it; processes that inherit it hold the lock too
    is_exclusive: bool  # whether all other writers are kept out; otherwise a lock in the storage must do this


class Storage(Protocol):
    """Named blobs below one root.

    Every method may be called from any thread, also in forked processes, and again after it failed. A failure is a
    StoreError, IntegrityError or DatasetExistsError, and permanent: requests that are worth a retry have been retried.
    """

    def __str__(self) -> str:
        """Return the root for messages, without credentials and query."""
        ...

    @property
    def idle_timeout_s(self) -> float:
        """The longest wait without progress, in seconds: `deadline_s` of the storage_options."""
        ...

    def url(self, name: str) -> str:
        """Return the name of a blob for messages."""
        ...

    def local_path(self, name: str) -> Path | None:
        """Return the path of a blob on this machine, for reading; None if it is remote. "" stands for the root.

        The blob need not exist: no disk or server is accessed.
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
        """Return the bytes of a blob from `start` to `stop`, unverified; fewer if the blob ends before.

        Raises:
            NotFoundError: The blob does not exist. An empty range may be returned without a request.
            StoreError: By its tag and size, the blob is not the requested `version`.
        """
        ...

    def version(self, name: str) -> BlobVersion | None:
        """Return size and tag of a blob, for `read_range` and `put`; None if it does not exist.

        Get the version, read, then replace the blob with this tag: this succeeds only if the blob did not change.
        """
        ...

    def get(self, name: str, target: Path, *, size: int, sha256: str) -> None:
        """Copy a blob of known content into a new local file, without syncing it; remove the file after an error.

        Raises:
            IntegrityError: The blob has another size or SHA-256, also after several reads over a network.
            NotFoundError: The blob does not exist.
            StoreError: The blob cannot be read, or the file exists or cannot be written.
        """
        ...

    def put(self, name: str, content: bytes | Path, *, new: bool = False, replaces: str | None = None) -> None:
        """Publish a blob: only if it is `new`, or `replaces` the one with this tag, or without a condition.

        A local file as content is moved; after an error it may be gone too. Publish without a condition only names
        outside committed datasets. If several writers publish under the same condition at once, exactly one succeeds.

        Raises:
            DatasetExistsError: The condition does not hold. Nothing is changed.
            StoreError: A tag was given, but the storage has no conditional writes.
        """
        ...

    def listing(self, *, most: int | None = None) -> dict[str, BlobVersion]:
        """Return all blobs and leftovers, sorted by name; empty if the root does not exist.

        With `most`, about that many are returned; none from a server without paging. A virtual storage leaves out the
        tars in its roots.
        """
        ...

    def remove(self, name: str) -> None:
        """Delete a blob or a leftover. A missing one is not an error."""
        ...

    def abort_uploads(self, names: Collection[str]) -> None:
        """Abort unfinished uploads of these blobs, which killed writers leave open in some storages.

        Uploads of live writers fail too, so call this only when no upload of these names is needed.
        """
        ...

    def exclusive_writer(self) -> AbstractContextManager[Writer]:
        """Keep other writers of this machine out within the context, and provide a staging directory.

        A local root is created if it does not exist, and locked. For other storages a temporary directory is created,
        which needs room for the files that are written at the same time.

        Raises:
            StoreError: Another process writes here, or the directory cannot be created.
        """
        ...
