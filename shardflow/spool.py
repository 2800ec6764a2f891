"""The spool: the local directory where files become whole before they are published."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .errors import StoreError
from .store import LocalStore, Store, translated

_PREFIX = f"shardflow-spool-{os.getuid()}-"


@contextlib.contextmanager
def spool_for(store: Store) -> Iterator[tuple[Path, int]]:
    """Lend the directory for one destination, and the descriptor of the lock on it, for as long as it is written to.

    A local destination is its own spool, locked against other writers. For any other a temporary directory is made
    (in TMPDIR; it needs room for the shards being worked on), and those that killed processes left are removed.

    Raises:
        StoreError: Another process writes to the destination, or the directory cannot be made.
    """
    if isinstance(store, LocalStore):
        with store.sole_writer() as lock:
            yield store.root, lock
        return
    temporary = Path(tempfile.gettempdir())
    with translated(temporary):
        for left in temporary.glob(f"{_PREFIX}*"):
            _remove_if_left(left)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    with LocalStore(folder).sole_writer() as lock:
        try:
            yield folder, lock
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_if_left(folder: Path) -> None:
    """Remove a spool that nobody holds."""
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        return
    with contextlib.suppress(StoreError), LocalStore(folder).sole_writer(patience_s=0):
        shutil.rmtree(folder, ignore_errors=True)
