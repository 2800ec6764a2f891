"""Clients of S3: each function returns one that fetches blobs.

That one is called with the blobs, each with key, size and SHA-256, and a folder, and yields the file of each when it is
complete. A process imports only the client that it measures, because its memory is measured as well.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

Blob = dict[str, Any]
Fetch = Callable[[list[Blob], Path], Iterator[Path]]


def open_shardflow(bucket: str, variant: str) -> Fetch:
    """shardflow: four ranges of 8 MiB in flight, every blob checked against its SHA-256.

    `variant` is the number of blobs fetched at once: four stand for the look-ahead of two workers.
    """
    from shardflow.storage.remote import remote_storage

    storage = remote_storage(f"s3://{bucket}")

    def fetch(blobs: list[Blob], folder: Path) -> Iterator[Path]:
        def get(blob: Blob) -> Path:
            target = folder / blob["key"].replace("/", "-")
            storage.get(blob["key"], target, size=blob["size"], sha256=blob["sha256"])
            return target

        with ThreadPoolExecutor(int(variant)) as threads:
            yield from threads.map(get, blobs)

    return fetch


def open_s3fs(bucket: str, _: str) -> Fetch:
    """s3fs: `get_file`, with its defaults."""
    import s3fs

    client = s3fs.S3FileSystem()
    return _one_by_one(lambda blob, target: client.get_file(f"{bucket}/{blob['key']}", str(target)))


def open_boto3(bucket: str, _: str) -> Fetch:
    """boto3: `download_file`, which is s3transfer with its defaults: ten ranges of 8 MiB in flight."""
    import boto3

    client = boto3.client("s3")
    return _one_by_one(lambda blob, target: client.download_file(bucket, blob["key"], str(target)))


def open_s3torchconnector(bucket: str, _: str) -> Fetch:
    """s3torchconnector: each blob read from front to back, as its datasets do."""
    from s3torchconnector import S3ClientConfig, S3MapDataset

    def fetch(blobs: list[Blob], folder: Path) -> Iterator[Path]:
        objects = S3MapDataset.from_objects(
            [f"s3://{bucket}/{blob['key']}" for blob in blobs],
            region=os.environ["AWS_REGION"],
            endpoint=os.environ["AWS_ENDPOINT_URL"],
            s3client_config=S3ClientConfig(force_path_style=True),
        )
        for number in range(len(blobs)):
            target = folder / "blob"
            with open(target, "wb") as file:
                shutil.copyfileobj(objects[number], file, 1 << 20)
            yield target

    return fetch


def open_obstore(bucket: str, _: str) -> Fetch:
    """obstore with shardflow's ranges, condition and check: what is left of the difference is the client."""
    import obstore
    from obstore.store import S3Store

    from shardflow.storage.remote import PIECE_BYTES, PIECES

    store = S3Store(
        bucket,
        endpoint=os.environ["AWS_ENDPOINT_URL"],
        region=os.environ["AWS_REGION"],
        client_options={"allow_http": True},
    )
    threads = ThreadPoolExecutor(PIECES)

    def pieces(key: str) -> Iterator[Any]:
        first = obstore.get(store, key, options={"range": (0, PIECE_BYTES)})
        size, tag = first.meta["size"], first.meta["e_tag"]

        def piece(start: int) -> Any:
            options = {"range": (start, min(start + PIECE_BYTES, size)), "if_match": tag}
            return obstore.get(store, key, options=options).bytes()

        starts, window = iter(range(PIECE_BYTES, size, PIECE_BYTES)), deque[Future[Any]]()
        window.append(threads.submit(first.bytes))
        while window:
            window.extend(threads.submit(piece, start) for start in itertools.islice(starts, PIECES - len(window)))
            yield window.popleft().result()

    def get(blob: Blob, target: Path) -> None:
        digest = hashlib.sha256()
        with open(target, "wb") as file:
            for data in pieces(blob["key"]):
                digest.update(data)
                file.write(data)
        assert digest.hexdigest() == blob["sha256"], f"{blob['key']}: wrong bytes"

    return _one_by_one(get)


def _one_by_one(get: Callable[[Blob, Path], Any]) -> Fetch:
    def fetch(blobs: list[Blob], folder: Path) -> Iterator[Path]:
        for blob in blobs:
            get(blob, folder / "blob")
            yield folder / "blob"

    return fetch
