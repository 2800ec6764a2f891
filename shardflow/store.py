"""The store: where a dataset's files lie.

A store holds named blobs below one root. Names use forward slashes. What a writer publishes appears whole under its
final name, or not at all; a crash can leave files whose names start with `TEMPORARY`, never a half-written blob.
Directories are served here, everything else by `remote`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from .errors import (
    AccessDeniedError,
    ConfigError,
    DatasetExistsError,
    IntegrityError,
    NotFoundError,
    StoreError,
)

TEMPORARY = ".tmp-"
_LOCK_PATIENCE_S = 2.0
_COPY_BYTES = 1 << 20


class Listed(NamedTuple):
    """What a listing says of a blob: its size in bytes, and a tag that changes with its content; "" where none does."""

    size: int
    tag: str = ""


class Store(Protocol):
    """Named blobs below one root.

    Every method may be called from any thread, and in a process forked from the one that made the store. Whatever fails
    raises a StoreError or one of its kinds, IntegrityError or DatasetExistsError; what may be tried again has been.
    """

    def __str__(self) -> str:
        """Return the root as messages show it: never with credentials or a query."""
        ...

    def url(self, name: str) -> str:
        """Return how messages name a blob."""
        ...

    def read(self, name: str) -> bytes:
        """Return a blob: for small ones.

        Raises:
            NotFoundError: There is none of that name.
        """
        ...

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes of a blob from `start` to `stop`, fewer where it ends before. They are not checked.

        Raises:
            NotFoundError: There is none of that name; of a range that is empty a store may not find that out.
        """
        ...

    def size(self, name: str) -> int | None:
        """Return the size of a blob in bytes, None when there is none."""
        ...

    def modified_ns(self, name: str) -> int | None:
        """Return when a blob was published, by the store's own clock, in ns since 1970; None where it does not say.

        Raises:
            NotFoundError: There is none of that name.
        """
        ...

    def get(self, name: str, target: Path, *, size: int, sha256: str) -> None:
        """Copy a blob of known content into a local file that must not exist yet. It is not synced to the disk.

        Raises:
            IntegrityError: The blob has another size or SHA-256, also when it was read anew.
            NotFoundError: There is none of that name.
            StoreError: It could not be read, or the file not be written. As after any error, no file is left.
        """
        ...

    def put(self, name: str, data: bytes) -> None:
        """Publish a blob, in place of any of that name. Only for what no committed dataset names yet."""
        ...

    def put_new(self, name: str, data: bytes) -> None:
        """Publish a blob that must not exist yet.

        Raises:
            DatasetExistsError: There is one of that name; it is untouched.
        """
        ...

    def upload(self, name: str, source: Path) -> None:
        """Publish a local file as a blob, in place of any of that name: whole, or not at all. The file is used up."""
        ...

    def names(self) -> list[str]:
        """Return the names of all blobs and leftovers, sorted."""
        ...

    def listing(self) -> dict[str, Listed]:
        """Return name → size and tag of all blobs and leftovers, sorted by name."""
        ...

    def remove(self, name: str) -> None:
        """Delete a blob or a leftover, if there is one."""
        ...

    def close_uploads(self, names: Collection[str]) -> None:
        """Give up the uploads of these blobs that writers which were killed have left open, where a store has such.

        Those of writers at work cannot be told from them, and fail: so only when nothing of these names is needed.
        """
        ...


class LocalStore:
    """Files below a directory. Safe to use from several processes at once."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def __str__(self) -> str:
        return str(self.root)

    def path(self, name: str) -> Path:
        """Return where a blob lies."""
        return self.root / name

    def url(self, name: str) -> str:
        """Return how messages name a blob: its path."""
        return str(self.path(name))

    def read(self, name: str) -> bytes:
        """Return a blob.

        Raises:
            NotFoundError: There is none of that name.
        """
        with translated(self.path(name)):
            return self.path(name).read_bytes()

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes of a blob from `start` to `stop`, fewer where it ends before."""
        with translated(self.path(name)), open(self.path(name), "rb") as file:
            file.seek(start)
            return file.read(max(0, stop - start))

    def size(self, name: str) -> int | None:
        """Return the size of a blob in bytes, None when there is none."""
        with translated(self.path(name)):
            try:
                return self.path(name).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def modified_ns(self, name: str) -> int:
        """Return when a blob was published, in ns since 1970."""
        with translated(self.path(name)):
            return self.path(name).stat().st_mtime_ns

    def get(self, name: str, target: Path, *, size: int, sha256: str) -> None:
        """Copy a blob of known content into a new file. A disk is read once: a second look would see the same cache."""
        with translated(self.path(name)), open(self.path(name), "rb") as file:
            chunks = iter(lambda: file.read(_COPY_BYTES), b"")
            with new_file(target) as descriptor:
                receive(chunks, descriptor, self.url(name), size=size, sha256=sha256)

    def put(self, name: str, data: bytes) -> None:
        """Publish a blob, in place of any of that name. Only for what no committed dataset names yet."""
        with self.writing(name) as temporary:
            temporary.write_bytes(data)

    def put_new(self, name: str, data: bytes) -> None:
        """Publish a blob that must not exist yet.

        Raises:
            DatasetExistsError: There is one of that name; it is untouched.
        """
        with self.writing(name, create_only=True) as temporary:
            temporary.write_bytes(data)

    def upload(self, name: str, source: Path) -> None:
        """Publish a local file: where it lies on the same disk, by its mere name."""
        with self.writing(name) as temporary:
            shutil.move(source, temporary)

    @contextlib.contextmanager
    def writing(self, name: str, *, create_only: bool = False) -> Iterator[Path]:
        """Lend a temporary path; when the body ends well, its file is made durable and published as `name`."""
        final = self.path(name)
        temporary = final.with_name(f"{TEMPORARY}{final.name}.{secrets.token_hex(4)}")
        with translated(final):
            final.parent.mkdir(parents=True, exist_ok=True)
            try:
                yield temporary
                _sync(temporary)
                if create_only:
                    os.link(temporary, final)
                else:
                    os.replace(temporary, final)
                _sync(final.parent)
            except FileExistsError as error:
                raise DatasetExistsError(f"{final} exists already; nothing is ever overwritten") from error
            finally:
                temporary.unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Return the names of all blobs and leftovers, sorted."""
        with translated(self.root):
            found = (Path(folder, file) for folder, _, files in os.walk(self.root) for file in files)
            return sorted(path.relative_to(self.root).as_posix() for path in found)

    def listing(self) -> dict[str, Listed]:
        """Return name → size of all blobs and leftovers, sorted by name."""
        sizes = ((name, self.size(name)) for name in self.names())
        return {name: Listed(size) for name, size in sizes if size is not None}

    def remove(self, name: str) -> None:
        """Delete a blob or a leftover, if there is one."""
        with translated(self.path(name)):
            self.path(name).unlink(missing_ok=True)

    def close_uploads(self, names: Collection[str]) -> None:
        """Do nothing: on a disk, what was left half done is among the names."""

    @contextlib.contextmanager
    def sole_writer(self, *, patience_s: float = _LOCK_PATIENCE_S) -> Iterator[int]:
        """Hold the root for one writing process; the value is the descriptor that holds it.

        The lock is the kernel's (`flock` on the directory itself), so it leaves no file. A process that inherits the
        descriptor holds the lock as well, and it ends with the last of them: while a worker of a writer that was killed
        is still about to publish something, nobody else starts. Such a worker needs a moment to go, hence the patience.

        Raises:
            StoreError: Another process holds it.
        """
        with translated(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
            deadline = time.monotonic() + patience_s
            try:
                while True:
                    try:
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError as error:
                        if time.monotonic() > deadline:
                            message = f"another process is writing to {self.root}; wait, or choose another destination"
                            raise StoreError(message) from error
                        time.sleep(0.02)
                yield descriptor
            finally:
                os.close(descriptor)


def open_store(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Store:
    """Return the store behind a path or URL.

    Args:
        url: A path, a `file:` URL, or a URL of any scheme that fsspec serves: `s3://bucket/prefix`.
        storage_options: What fsspec's file system of that scheme takes (`endpoint_url`, `key`, `anon`, …). What is not
            said here comes from where its client looks by itself: environment, profiles, instance roles.

    Raises:
        ConfigError: The URL's scheme is not served, or there are options for a directory.
    """
    text = os.fspath(url)
    if is_remote(text):
        from .remote import RemoteStore  # here alone, because it brings the clients of the clouds along

        return RemoteStore(text, storage_options)
    if storage_options:
        raise ConfigError(
            f"{text}: storage_options are for URLs such as s3://bucket/prefix; leave them out for a directory"
        )
    return LocalStore(plain(text))


def plain(url: str | os.PathLike[str]) -> str:
    """Return a `file:` URL as the path that it means, and anything else as it is."""
    text = os.fspath(url)
    return unquote(urlsplit(text).path) if text.startswith("file:") else text


def is_remote(url: str | os.PathLike[str]) -> bool:
    """Whether a path or URL leads elsewhere than to a directory."""
    text = os.fspath(url)
    return "://" in text and not text.startswith("file:")


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[int]:
    """Lend a descriptor of a new file; when the body fails, the file is gone."""
    with translated(target):
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            yield descriptor
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)


def receive(chunks: Iterable[bytes], descriptor: int, url: str, *, size: int, sha256: str) -> None:
    """Write chunks from the start of a file, and check what they are together.

    Raises:
        IntegrityError: They are not the bytes that were promised.
    """
    os.ftruncate(descriptor, 0)
    digest, done = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        view = memoryview(chunk)
        while view:
            written = os.pwrite(descriptor, view, done)
            view, done = view[written:], done + written
        if done > size:
            break
    remedy = "the copy is damaged, or belongs to another dataset: copy it again from a sound one"
    if done != size:
        found = f"more than {size}" if done > size else str(done)
        raise IntegrityError(f"{url}: expected {size} bytes, found {found}; {remedy}")
    if digest.hexdigest() != sha256:
        raise IntegrityError(f"{url}: expected SHA-256 {sha256}, found {digest.hexdigest()}; {remedy}")


@contextlib.contextmanager
def translated(place: Path) -> Iterator[None]:
    """Turn the operating system's errors into the project's own, naming the place."""
    try:
        yield
    except StoreError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"{error.filename or place} does not exist; check the path") from error
    except PermissionError as error:
        raise AccessDeniedError(f"{error.filename or place}: permission denied; check the owner and mode") from error
    except DatasetExistsError:
        raise
    except OSError as error:
        remedy = "free some space and run the same command again" if error.errno == errno.ENOSPC else "check the disk"
        raise StoreError(f"{error.filename or place}: {error.strerror or error}; {remedy}") from error


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits, without reading it whole into memory."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_COPY_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
