"""obstore in the window that shardflow's store has: the same ranges, the same condition, the same check.

What is left of the difference is the client.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store

from shardflow.storage.remote import PIECE_BYTES, PIECES


def open_client(bucket: str, _: str) -> Callable[[list[dict[str, Any]], Path], Iterator[Path]]:
    """Return a function that fetches blobs."""
    store = S3Store(
        bucket,
        endpoint=os.environ["AWS_ENDPOINT_URL"],
        region=os.environ["AWS_REGION"],
        client_options={"allow_http": True},
    )

    def pieces(key: str, threads: ThreadPoolExecutor) -> Iterator[Any]:
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

    def fetch(blobs: list[dict[str, Any]], folder: Path) -> Iterator[Path]:
        with ThreadPoolExecutor(PIECES) as threads:
            for blob in blobs:
                target, digest = folder / "blob", hashlib.sha256()
                with open(target, "wb") as file:
                    for data in pieces(blob["key"], threads):
                        digest.update(data)
                        file.write(data)
                assert digest.hexdigest() == blob["sha256"], f"{blob['key']}: wrong bytes"
                yield target

    return fetch
