"""s3fs: `get_file`, as it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import s3fs


def open_client(bucket: str, _: str) -> Callable[[list[dict[str, Any]], Path], Iterator[Path]]:
    """Return a function that fetches blobs."""
    client = s3fs.S3FileSystem()

    def fetch(blobs: list[dict[str, Any]], folder: Path) -> Iterator[Path]:
        for blob in blobs:
            target = folder / "blob"
            client.get_file(f"{bucket}/{blob['key']}", str(target))
            yield target

    return fetch
