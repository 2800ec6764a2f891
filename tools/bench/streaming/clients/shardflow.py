"""shardflow's store: four ranges of 8 MiB in flight, every blob checked against its SHA-256."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from shardflow.storage.remote import RemoteStorage


def open_client(bucket: str, variant: str) -> Callable[[list[dict[str, Any]], Path], Iterator[Path]]:
    """`variant` says how many blobs are fetched at once; the look-ahead of two workers has four each."""
    store = RemoteStorage(f"s3://{bucket}")

    def fetch(blobs: list[dict[str, Any]], folder: Path) -> Iterator[Path]:
        def one(blob: dict[str, Any]) -> Path:
            target = folder / blob["key"].replace("/", "-")
            store.get(blob["key"], target, size=blob["size"], sha256=blob["sha256"])
            return target

        with ThreadPoolExecutor(int(variant)) as threads:
            yield from threads.map(one, blobs)

    return fetch
