"""s3torchconnector: each blob read from front to back, as its datasets do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from s3torchconnector import S3ClientConfig, S3MapDataset


def open_client(bucket: str, _: str) -> Callable[[list[dict[str, Any]], Path], Iterator[Path]]:
    """Return a function that fetches blobs."""

    def fetch(blobs: list[dict[str, Any]], folder: Path) -> Iterator[Path]:
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
