"""Files on a local disk: created whole, verified, locked, synced; OSErrors become the project's errors."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import hashlib
import logging
import os
import select
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from shardflow.errors import AccessDeniedError, DatasetExistsError, IntegrityError, NotFoundError, StoreError

from . import transfers
from .retry import Attempts, Failure, RetryPolicy, one_wait

T = TypeVar("T")
_log = logging.getLogger(__name__)

COPY_BYTES = 1 << 20
LOCK_TIMEOUT_S = 2.0
_POLL_S = 0.02
COPY_AGAIN = (
    "the copy is damaged, or belongs to another dataset: copy it again from an intact one; "
    "if a tar was rewritten, index it again (`shardflow index`)"
)
"""The remedy for a file whose bytes differ from the manifest's digest."""

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1

_SHARED = {
    0x6969,  # NFS
    0x0BD00BD0,  # Lustre
    0x65735546,  # FUSE
    0xFF534D42,  # CIFS
    0xFE534D42,  # SMB 2
    0x00C36400,  # Ceph
    0x19830326,  # BeeGFS
    0x47504653,  # GPFS
    0x01021997,  # 9P
    0x5346414F,  # AFS
}
"""Types of file systems, see statfs(2), on which other machines can write, or whose server can fail."""

_PASSING = {errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN, errno.EREMOTEIO}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF}  # NFS locks only files open for writing
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
_NO_FLAGS = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[IO[bytes]]:
    """Create a file for writing, which must not exist; remove it if the body fails."""
    with map_os_errors(target):
        file = open(target, "xb")  # noqa: SIM115 - closed below, where a failure removes the file
        try:
            with file:
                yield file
        except BaseException:
            target.unlink(missing_ok=True)
            raise


def write_verified(chunks: Iterable[bytes], file: IO[bytes], url: str, *, size: int, sha256: str) -> None:
    """Write chunks from the start of a file; IntegrityError if their total size or SHA-256 differs."""
    file.seek(0)
    file.truncate()
    digest, done = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        file.write(chunk)
        done += len(chunk)
        if done > size:
            break
    if done != size:
        found = f"more than {size}" if done > size else str(done)
        raise IntegrityError(f"{url}: expected {size} bytes, found {found}; {COPY_AGAIN}")
    if digest.hexdigest() != sha256:
        raise IntegrityError(f"{url}: expected SHA-256 {sha256}, found {digest.hexdigest()}; {COPY_AGAIN}")


class map_os_errors:  # noqa: N801 - used as a function is, like contextlib.suppress
    """Turn errors of the operating system into the project's errors, which name the path.

    Not a generator: in Python 3.12 a generator that replaces an exception leaves a cycle that keeps files open.
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
    remedy = "check the disk"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free some space and run the same command again"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        remedy = "raise the limit of open files (`ulimit -n`)"
    elif may_pass(error, path):
        remedy = "check the server of its file system, and the network"
    return StoreError(f"{place}: {error.strerror or error}; {remedy}")


def _place(error: OSError, path: Path) -> str:
    """Return the path that an error names, as text; `path` if the error does not name one."""
    return os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(path)


@functools.lru_cache(maxsize=1 << 10)  # keeps the answer for when the server fails
def is_shared(directory: Path) -> bool:
    """Return whether a directory is on a file system of several machines or of another process, or of unknown type."""
    status = ctypes.create_string_buffer(512)  # the structure, whose first word is the type
    is_unknown = ctypes.CDLL(None).statfs(os.fsencode(directory), status) != 0
    return is_unknown or ctypes.c_long.from_buffer(status).value & 0xFFFFFFFF in _SHARED


def may_pass(error: BaseException | None, path: Path) -> bool:
    """Return whether opening a file again may cure an error: its server fails, or has replaced the file."""
    code = error.errno if isinstance(error, OSError) else None
    return code in _PASSING or (code == errno.EIO and (is_shared(path.parent) or is_shared(path)))


def reread(path: Path, read: Callable[[], T], passed_s: float = 0.0) -> T:
    """Return the result of a `read` that opens a path; repeat it while the server of the file system fails.

    The `passed_s` seconds before the call count towards the timeout.

    Raises:
        DeadlineError: The server failed for longer than a wait may take.
        StoreError: The path cannot be read.
    """
    policy = RetryPolicy()
    with one_wait() as wait:
        wait.add(passed_s)
        wait.leave_quarter(policy.idle_timeout_s)
        attempts = Attempts(policy)
        while True:
            try:
                with map_os_errors(path):
                    return read()
            except StoreError as error:
                if not may_pass(error.__cause__, path):
                    raise
                pause_s = attempts.pause_s(Failure(error=error, retry=True), wait.idle_s())
                _log.warning("%s; reading it again in %.1f s", error, pause_s)
            transfers.pause(pause_s)


def is_folder(entry: os.DirEntry[Any]) -> bool:
    """Return whether an entry is a directory, or a link to one. A link to itself is listed as a file."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(COPY_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def flock(descriptor: int) -> bool:
    """Lock a file or directory without waiting; return False if another process holds the lock.

    Return True on a file system without locks: there, and where each machine has its own locks, callers need more.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


@contextlib.contextmanager
def lock_directory(path: Path, *, timeout_s: float | None = None) -> Iterator[int]:
    """Lock a directory; yield the descriptor that holds the lock.

    A process that inherits the descriptor holds the lock too. So the lock of a killed writer stays until its last
    worker has ended, and no worker publishes a file at the same time as the next writer. The timeout gives such workers
    time to end.
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
    """Wait before checking a file or a lock again.

    `time.sleep` waits for a point in time, and raises EINVAL where a tool that fakes the clock finds it in the past.
    """
    select.select([], [], [], seconds)


def publish(temporary: Path, final: Path, *, create_only: bool = False) -> None:
    """Give a file its final name in one step; with `create_only`, raise FileExistsError if that name exists.

    An NFS server that crashes may report an error for an operation that it completed, see link(2) and rename(2).
    """
    own = temporary.stat()
    try:
        (_create if create_only else os.replace)(temporary, final)
    except (FileExistsError, FileNotFoundError):
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(final.stat(), own):
                return
        raise


def move(source: Path, target: Path) -> None:
    """Move a file, also to another disk."""
    try:
        publish(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(source, target)


def _create(temporary: Path, final: Path) -> None:
    """Give a file a name that must be free.

    Without hard links, as on FAT and on some user-space or network file systems, `renameat2` renames the file only if
    the new name is free. Without that flag, exclusive creation claims the name, and for a moment the file is empty. A
    process that is killed in that moment leaves it empty.
    """
    try:
        os.link(temporary, final)
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    try:
        _rename_new(os.fsencode(temporary), os.fsencode(final))
        return
    except OSError as error:
        if error.errno not in _NO_FLAGS:
            raise
    with open(final, "xb"):
        pass
    try:
        publish(temporary, final)
    except BaseException:
        final.unlink()
        raise


def _rename_new(old: bytes, new: bytes) -> None:
    """Rename a file unless the new name exists: Linux's renameat2 with RENAME_NOREPLACE, which Python lacks."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if renameat2(_AT_FDCWD, old, _AT_FDCWD, new, _RENAME_NOREPLACE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), os.fsdecode(new))


def sync_to_disk(path: Path) -> None:
    """Sync a file, or the entries of a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():  # SMB syncs only files
            raise
    finally:
        os.close(descriptor)
