"""The spool: the local directory where files become whole before they are published."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from shardflow.errors import StoreError

from .local import LocalStorage
from .local_files import map_os_errors
from .storage import Storage

_PREFIX = f"shardflow-spool-{os.getuid()}-"


@contextlib.contextmanager
def staging_directory(storage: Storage) -> Iterator[tuple[Path, int]]:
    """Lend the directory for one destination, and the descriptor of the lock on it, for as long as it is written to.

    A local destination is its own spool, locked against other writers. For any other a temporary directory is made
    (in TMPDIR; it needs room for the shards being worked on), and those that killed processes left are removed.

    Raises:
        StoreError: Another process writes to the destination, or the directory cannot be made.
    """
    if isinstance(storage, LocalStorage):
        with storage.sole_writer() as lock:
            yield storage.root, lock
        return
    with temporary_staging() as lent:
        yield lent


@contextlib.contextmanager
def temporary_staging() -> Iterator[tuple[Path, int]]:
    """Lend a temporary directory and the descriptor of the lock on it, and remove those that killed processes left.

    Raises:
        StoreError: It cannot be made.
    """
    remove_abandoned()
    while True:
        with map_os_errors(Path(tempfile.gettempdir())):
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with LocalStorage(folder).sole_writer() as lock:
            # Before it was locked, another process may have taken it for one that was left.
            if folder.is_dir() and os.path.samestat(folder.stat(), os.fstat(lock)):
                try:
                    yield folder, lock
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                return


def remove_abandoned() -> None:
    """Remove the temporary directories that killed processes of this user have left, as far as that can be done."""
    with contextlib.suppress(OSError):
        for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            _remove_if_left(left)


def _remove_if_left(folder: Path) -> None:
    """Remove a spool that nobody holds."""
    with contextlib.suppress(StoreError, FileNotFoundError):  # somebody holds it, or removes it at this moment
        if not folder.is_symlink() and folder.stat().st_uid == os.getuid():
            with LocalStorage(folder).sole_writer(patience_s=0):
                shutil.rmtree(folder, ignore_errors=True)
