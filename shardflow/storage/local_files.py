"""Files on a local disk: created whole, verified, locked, synced; errors of the system become the project's own."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import select
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from shardflow.errors import AccessDeniedError, DatasetExistsError, IntegrityError, NotFoundError, StoreError

COPY_BYTES = 1 << 20
LOCK_TIMEOUT_S = 2.0
_POLL_S = 0.02
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[IO[bytes]]:
    """Open a file that must not exist for writing; remove it if the body fails."""
    with map_os_errors(target):
        file = open(target, "xb")  # noqa: SIM115 - closed below, where a failure removes the file
        try:
            with file:
                yield file
        except BaseException:
            target.unlink(missing_ok=True)
            raise


def write_verified(chunks: Iterable[bytes], file: IO[bytes], url: str, *, size: int, sha256: str) -> None:
    """Write chunks from the start of a file; IntegrityError if as a whole they have another size or SHA-256."""
    file.seek(0)
    file.truncate()
    digest, done = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        file.write(chunk)
        done += len(chunk)
        if done > size:
            break
    remedy = "the copy is damaged, or belongs to another dataset: copy it again from an intact one"
    remedy += "; of a tar that was written anew, make the index again (`shardflow index`)"
    if done != size:
        found = f"more than {size}" if done > size else str(done)
        raise IntegrityError(f"{url}: expected {size} bytes, found {found}; {remedy}")
    if digest.hexdigest() != sha256:
        raise IntegrityError(f"{url}: expected SHA-256 {sha256}, found {digest.hexdigest()}; {remedy}")


class map_os_errors:  # noqa: N801 - used as a function is, like contextlib.suppress
    """Turn errors of the operating system into the project's own, and name the path.

    No generator: in Python 3.12 one that replaces an exception leaves a cycle, in which its callers' files stay open.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, StoreError | DatasetExistsError):
            raise _own_error(error, self._path) from error


def _own_error(error: OSError, path: Path) -> StoreError:
    place = _place(error, path)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFoundError(f"{place} does not exist; check the path")
    if isinstance(error, PermissionError):
        return AccessDeniedError(f"{place}: permission denied; check the owner and mode")
    if isinstance(error, FileExistsError):
        return StoreError(f"{place} is a file, and no directory; choose another path")
    remedy = "free some space and run the same command again" if error.errno == errno.ENOSPC else "check the disk"
    return StoreError(f"{place}: {error.strerror or error}; {remedy}")


def _place(error: OSError, path: Path) -> str:
    """Return the path of an error, which is bytes where the call had bytes; the given one where it has none."""
    return os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(path)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(COPY_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def flock(descriptor: int) -> bool:
    """Lock a file or directory without waiting; return whether this succeeded."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def lock_directory(path: Path, *, timeout_s: float | None = None) -> Iterator[int]:
    """Lock a directory; yield the descriptor that holds the lock.

    A process that inherits the descriptor holds the lock too. So after a writer was killed, the lock stays until the
    last of its workers has ended, and none of them can publish a file beside the next writer. The timeout gives such
    workers time to end.
    """
    with map_os_errors(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        deadline = time.monotonic() + (LOCK_TIMEOUT_S if timeout_s is None else timeout_s)
        try:
            while not flock(descriptor):
                if time.monotonic() > deadline:
                    raise StoreError(f"another process is writing to {path}; wait, or choose another destination")
                pause(_POLL_S)
            yield descriptor
        finally:
            os.close(descriptor)


def pause(seconds: float) -> None:
    """Wait before the next look at a file or a lock.

    `time.sleep` waits for a point in time, and raises EINVAL where a tool that fakes the clock finds it in the past.
    """
    select.select([], [], [], seconds)


def publish_new(temporary: Path, final: Path) -> None:
    """Give a file its final name in one step, which fails with a FileExistsError if that exists.

    Not every file system has hard links: FAT, and some of those in user space or behind a network, rename a file only
    if the new name is free.
    """
    try:
        os.link(temporary, final)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        try:
            _rename_new(os.fsencode(temporary), os.fsencode(final))
        except OSError as refused:
            if refused.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            message = "its file system can neither link files nor rename one only if the new name is free"
            raise StoreError(f"{final}: {message}; write to another disk, and copy the dataset") from error


def _rename_new(old: bytes, new: bytes) -> None:
    """Rename a file unless the new name exists: Linux's renameat2 with RENAME_NOREPLACE, which Python lacks."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if renameat2(_AT_FDCWD, old, _AT_FDCWD, new, _RENAME_NOREPLACE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), os.fsdecode(new))


def sync_to_disk(path: Path) -> None:
    """Sync a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
