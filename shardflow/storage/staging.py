"""Staging directories: temporary local directories for files that are not yet published."""

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
    """Provide a temporary directory and the descriptor of its lock; remove directories of killed processes."""
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
    """Remove temporary directories left by killed processes of this user, as far as possible.

    On a shared file system none are removed, because machines do not see each other's locks.
    """
    with contextlib.suppress(OSError):
        if is_shared(Path(tempfile.gettempdir())):
            return
        for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            # For example, a process holds the lock, or another one just removed the directory.
            with contextlib.suppress(OSError):
                if not folder.is_symlink() and folder.stat().st_uid == os.getuid():
                    with lock_directory(folder, timeout_s=0):
                        shutil.rmtree(folder, ignore_errors=True)
