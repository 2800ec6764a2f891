"""boto3: `download_file`, which is s3transfer with its defaults: ten ranges of 8 MiB in flight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3


def open_client(bucket: str, _: str) -> Callable[[list[dict[str, Any]], Path], Iterator[Path]]:
    """Return a function that fetches blobs."""
    client = boto3.client("s3")

    def fetch(blobs: list[dict[str, Any]], folder: Path) -> Iterator[Path]:
        for blob in blobs:
            target = folder / "blob"
            client.download_file(bucket, blob["key"], str(target))
            yield target

    return fetch
