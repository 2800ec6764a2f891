"""Small real datasets for the tests: photo-like JPEGs, written with the core alone and not by packing."""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from shardflow import shardindex, ustar
from shardflow.manifest import FILE_NAME, Manifest, Shard
from shardflow.store import LocalStore


@functools.lru_cache(maxsize=4096)
def jpeg(number: int, width: int = 48, height: int = 40, quality: int = 90) -> bytes:
    """Return a photo-like JPEG: smooth shades, an edge and some noise, all depending on `number`."""
    rng = np.random.default_rng(number)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / rng.uniform(5, 20) + y / rng.uniform(5, 20) + rng.uniform(0, 6)) for _ in range(3)]
    pixels = np.stack(waves, -1)
    pixels = 128 + 90 * pixels + 40 * (x * rng.uniform(-1, 1) + y * rng.uniform(-1, 1) > 5)[..., None]
    pixels += rng.normal(0, 6, pixels.shape)
    buffer = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def write_shard(store: LocalStore, name: str, samples: Sequence[tuple[str, Mapping[str, bytes]]]) -> Shard:
    """Write a tar and its index, and return the shard's line in a manifest."""
    tar, rows = bytearray(), []
    for record, (key, parts) in enumerate(samples):
        for part in sorted(parts):
            payload = parts[part]
            tar += ustar.header(f"{key}.{part}", len(payload))
            rows.append(shardindex.make_row(record, part, len(tar), payload))
            tar += payload + bytes(ustar.padding(len(payload)))
    tar += ustar.END
    index = shardindex.to_bytes(shardindex.from_rows(rows))
    store.put(name, bytes(tar))
    store.put(name.replace(".tar", ".npy"), index)
    return Shard(
        name=name,
        samples=len(samples),
        bytes=len(tar),
        sha256=hashlib.sha256(tar).hexdigest(),
        index_sha256=hashlib.sha256(index).hexdigest(),
    )


def make_dataset(root: Path, splits: Mapping[str, Sequence[int]] | Sequence[int], *, labelled: bool = True) -> Path:
    """Write a dataset with shards of the given numbers of samples, and return its path.

    Sample n of a split has the key `{n:09}` and the label n, so that what a loader delivered can be counted.
    """
    store = LocalStore(root)
    if not isinstance(splits, Mapping):
        splits = {"train": splits}
    lines, most = {}, 0
    for split, sizes in splits.items():
        number, shards = 0, []
        for ordinal, size in enumerate(sizes):
            samples = []
            for n in range(number, number + size):
                parts = {"jpg": jpeg(n % 97, 48 + n % 3, 40 + n % 5)}
                if labelled:
                    parts["cls"] = str(n).encode()
                samples.append((f"{n:09}", parts))
            shards.append(write_shard(store, f"{split}/{ordinal:06}.tar", samples))
            number += size
        lines[split], most = tuple(shards), max(most, number)
    classes = tuple(f"class{n}" for n in range(most)) if labelled else None
    store.put_new(FILE_NAME, Manifest(splits=lines, classes=classes, inputs=most).to_bytes())
    return root
