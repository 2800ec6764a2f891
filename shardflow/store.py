"""The store: where a dataset's files lie, and the only module that knows how to reach them.

A store holds named blobs below one root. Names use forward slashes. What a writer publishes appears whole under its
final name, or not at all; a crash can leave files whose names start with `TEMPORARY`, never a half-written blob.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .errors import AccessDeniedError, ConfigError, DatasetExistsError, NotFoundError, StoreError

TEMPORARY = ".tmp-"
_LOCK_PATIENCE_S = 2.0


class LocalStore:
    """Files below a directory. Safe to use from several processes at once."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def __str__(self) -> str:
        return str(self.root)

    def path(self, name: str) -> Path:
        """Return where a blob lies."""
        return self.root / name

    def read(self, name: str) -> bytes:
        """Return a blob.

        Raises:
            NotFoundError: There is none of that name.
        """
        with translated(self.path(name)):
            return self.path(name).read_bytes()

    def size(self, name: str) -> int | None:
        """Return the size of a blob in bytes, None when there is none."""
        with translated(self.path(name)):
            try:
                return self.path(name).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

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

    def remove(self, name: str) -> None:
        """Delete a blob or a leftover, if there is one."""
        with translated(self.path(name)):
            self.path(name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def sole_writer(self) -> Iterator[int]:
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
            deadline = time.monotonic() + _LOCK_PATIENCE_S
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


def open_store(url: str | os.PathLike[str]) -> LocalStore:
    """Return the store behind a path or URL.

    Raises:
        ConfigError: The URL's scheme is not served.
    """
    text = os.fspath(url)
    if text.startswith("file:"):
        return LocalStore(unquote(urlsplit(text).path))
    if "://" in text:
        raise ConfigError(f"{text}: only local directories are served so far; copy the dataset to a disk first")
    return LocalStore(text)


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


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
