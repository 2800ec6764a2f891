"""Staging directories: temporary local directories in which files become whole before they are published."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from shardflow.errors import NotFoundError

from .local_files import is_shared, lock_directory, map_os_errors

_PREFIX = f"shardflow-staging-{os.getuid()}-"


@contextlib.contextmanager
def temporary_staging() -> Iterator[tuple[Path, int]]:
    """Provide a temporary directory and the descriptor of the lock on it; remove those that killed processes left."""
    remove_abandoned()
    while True:
        with map_os_errors(Path(tempfile.gettempdir())):
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with contextlib.ExitStack() as held:
            # Another process may remove the directory as abandoned before it is locked.
            try:
                lock = held.enter_context(lock_directory(folder))
            except NotFoundError:
                continue
            if folder.is_dir() and os.path.samestat(folder.stat(), os.fstat(lock)):
                try:
                    yield folder, lock
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                return


def remove_abandoned() -> None:
    """Remove the temporary directories that killed processes of this user left, as far as possible.

    Not those on a file system of several machines, which do not see each other's locks.
    """
    with contextlib.suppress(OSError):
        if is_shared(Path(tempfile.gettempdir())):
            return
        for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            # Such as: a process holds the directory; another process removes it at this moment.
            with contextlib.suppress(OSError):
                if not folder.is_symlink() and folder.stat().st_uid == os.getuid():
                    with lock_directory(folder, timeout_s=0):
                        shutil.rmtree(folder, ignore_errors=True)
