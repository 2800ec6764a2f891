"""Small real datasets for the tests: photo-like JPEGs, written with the core alone and not by packing."""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from shardflow.dataset.column_files import FilesOfColumn, Values
from shardflow.formats import quarantine, shard_index, ustar
from shardflow.formats.annotations import Annotations
from shardflow.formats.manifest import FILE_NAME, Manifest, from_bytes
from shardflow.formats.quarantine import Quarantined
from shardflow.formats.shard import Shard
from shardflow.storage.local import LocalStorage

Sample = tuple[str, Mapping[str, bytes]]  # its key, and its parts


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


def write_shard(storage: LocalStorage, name: str, samples: Sequence[Sample]) -> Shard:
    """Write a tar and its index, and return the shard's line in a manifest."""
    tar, rows = bytearray(), []
    for record, (key, parts) in enumerate(samples):
        for part in sorted(parts):
            payload = parts[part]
            tar += ustar.header(f"{key}.{part}", len(payload))
            rows.append(shard_index.make_row(record, part, len(tar), payload))
            tar += payload + bytes(ustar.padding(len(payload)))
    tar += ustar.END
    index = shard_index.to_bytes(shard_index.from_rows(rows))
    storage.put(name, bytes(tar))
    storage.put(name.replace(".tar", ".npy"), index)
    return Shard(
        name=name,
        samples=len(samples),
        bytes=len(tar),
        sha256=hashlib.sha256(tar).hexdigest(),
        index_sha256=hashlib.sha256(index).hexdigest(),
    )


def write_dataset(
    root: Path,
    splits: Mapping[str, Sequence[Sequence[Sample]]],
    *,
    classes: tuple[str, ...] | None = None,
    inputs: int | None = None,
    annotations: Annotations | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> Path:
    """Write a dataset of the given samples, shard by shard of each split, and return its path.

    It was made of `inputs`; of as many as there are samples where nothing is said.
    """
    storage = LocalStorage(root)
    lines = {
        split: tuple(write_shard(storage, f"{split}/{number:06}.tar", samples) for number, samples in enumerate(shards))
        for split, shards in splits.items()
    }
    if inputs is None:
        inputs = sum(shard.samples for shards in lines.values() for shard in shards)
    declared = annotations or Annotations()
    manifest = Manifest(splits=lines, classes=classes, inputs=inputs, annotations=declared, recipe=recipe or {})
    storage.put(FILE_NAME, manifest.to_bytes(), new=True)
    return root


def make_dataset(
    root: Path,
    splits: Mapping[str, Sequence[int]] | Sequence[int],
    *,
    labelled: bool = True,
    undecodable: Collection[int] = (),
) -> Path:
    """Write a dataset with shards of the given numbers of samples, and return its path.

    Sample n of a split has the key `{n:09}` and the label n, so that what a loader delivered can be counted. The images
    of the `undecodable` samples were packed with zeros in place of their headers.
    """
    if not isinstance(splits, Mapping):
        splits = {"train": splits}
    shards: dict[str, list[list[Sample]]] = {}
    for split, sizes in splits.items():
        numbers = iter(range(sum(sizes)))
        shards[split] = [
            [_sample(n, labelled, n in undecodable) for n in itertools.islice(numbers, size)] for size in sizes
        ]
    most = max(sum(sizes) for sizes in splits.values())
    classes = tuple(f"class{n}" for n in range(most)) if labelled else None
    return write_dataset(root, shards, classes=classes, inputs=most)


def write_tables(root: Path, shards: int, samples: int) -> dict[str, npt.NDArray[Any]]:
    """Write a dataset of indexes and a column of scores, without tars; return class, width and score of each sample.

    Its manifest names another column, "absent", whose files do not exist.
    """
    rng, total = np.random.default_rng(0), shards * samples
    facts: dict[str, npt.NDArray[Any]] = {"class": rng.integers(0, 10, total), "width": rng.integers(256, 1024, total)}
    facts["score"] = rng.random(total, dtype=np.float32)
    names = tuple(f"c{n}" for n in range(10))
    checksums = np.array([zlib.crc32(b"%d" % n) for n in range(10)], dtype=np.uint32)
    storage, column, entries = LocalStorage(root), FilesOfColumn("score", "float32"), []
    for number in range(shards):
        here = slice(number * samples, (number + 1) * samples)
        rows = np.zeros((samples, 2), shard_index.DTYPE)
        rows["record"], rows["part"] = np.arange(samples)[:, None], (b"cls", b"jpg")
        rows["size"], rows["crc32"][:, 0] = (1, 900), checksums[facts["class"][here]]
        rows["width"][:, 1], rows["height"][:, 1] = facts["width"][here], 256
        index = shard_index.to_bytes(rows.reshape(-1))
        sealed = {"sha256": "0" * 64, "index_sha256": hashlib.sha256(index).hexdigest()}
        shard = Shard(name=f"train/{number:06}.tar", samples=samples, bytes=3072 * samples, **sealed)
        values = Values(facts["score"][here], np.ones(samples, dtype=np.bool_))
        for name, data in ((shard.index_name, index), column.add("train", shard, values)):
            storage.put(name, data)
        entries.append(shard)
    columns = {"score": column.column(), "absent": replace(column.column(), stem="absent")}
    made = Manifest(splits={"train": tuple(entries)}, inputs=total, classes=names, columns=columns)
    storage.put(FILE_NAME, made.to_bytes(), new=True)
    return facts


def _sample(number: int, labelled: bool, undecodable: bool) -> Sample:
    label = {"cls": str(number).encode()} if labelled else {}
    image = jpeg(number % 97, 48 + number % 3, 40 + number % 5)
    return f"{number:09}", {"jpg": image[:2] + bytes(198) + image[200:] if undecodable else image, **label}


def write_quarantine(dataset: Path, bad: Sequence[Quarantined]) -> None:
    """Make a dataset one that has these further inputs in quarantine."""
    made = from_bytes((dataset / FILE_NAME).read_bytes())
    (dataset / FILE_NAME).write_bytes(replace(made, inputs=made.samples + len(bad)).to_bytes())
    (dataset / quarantine.FILE_NAME).write_bytes(quarantine.to_bytes(bad))


def flip(path: Path, *positions: int) -> None:
    """Turn a bit over in each of these bytes of a file."""
    data = bytearray(path.read_bytes())
    for position in positions:
        data[position] ^= 1
    path.write_bytes(data)


NINE_SIZES = [(64, 64), (60, 44), (44, 60), (90, 40), (40, 90), (51, 50), (80, 33), (33, 80), (64, 48)]
"""Widths and heights of the images of `make_shapes`: image n has size n * 7 % 9."""


def make_shapes(url: Path) -> Path:
    """Make a dataset of 90 images of nine shapes in three shards; the label of a sample is its number."""
    samples = [(f"{n:03}", {"jpg": jpeg(n, *NINE_SIZES[n * 7 % 9]), "cls": b"%d" % n}) for n in range(90)]
    shards = [samples[:40], samples[40:55], samples[55:]]
    return write_dataset(url, {"train": shards}, classes=tuple(map(str, range(90))))
