"""Leftovers: the temporary files that killed commands have left on a disk.

Only files with names that shardflow gives are removed, only in the folders of a dataset, and only by the process that
has locked the destination: no other process writes such a file meanwhile.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from shardflow.formats.manifest import SPLITS
from shardflow.storage.interface import TEMPORARY
from shardflow.storage.local_files import map_os_errors

_FOLDERS = ("", "manifests", "removals", *SPLITS)
_FOLDERS_OF_ROOTS = re.compile(rf"bases|({'|'.join(SPLITS)})/\d+")
_NAME = re.compile(
    re.escape(TEMPORARY)
    + r"((ray|.+\.(npy|tar|parquet)|((shardflow|unfinished|quarantine)(-[0-9a-z]+)?|[0-9a-f]{64}|\d{6,})\.\w+)"
    + r"\.[0-9a-f]{8}"
    + r"|\d{6,}\.(tar|\d{9,}))"
)
"""Files that are being published, and the partial tars of a job."""


def remove_leftovers(root: Path | None) -> None:
    """Remove leftovers of killed commands below a locked directory; do nothing for None, a remote destination."""
    if root is None:
        return
    with map_os_errors(root):
        for folder, folders, files in os.walk(root):
            below = Path(folder).relative_to(root).as_posix().removeprefix(".")
            is_of_root = bool(_FOLDERS_OF_ROOTS.match(below))
            folders[:] = [
                name
                for name in folders
                if is_of_root or (place := f"{below}/{name}".lstrip("/")) in _FOLDERS or _FOLDERS_OF_ROOTS.match(place)
            ]
            for name in filter(_NAME.fullmatch, files):
                Path(folder, name).unlink(missing_ok=True)
