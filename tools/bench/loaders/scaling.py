"""How the loader's CPU time per image changes as batches, workers, shards and datasets grow: flat is the goal.

Each row changes one thing of a loader with two workers, batches of 64, shards of 500 and a dataset of 4,000. Larger
datasets are the same files again under other names, so that what grows is what has to be planned and opened.

    python tools/bench/loaders/scaling.py DATASET
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch
from measure import cpu_s

from shardflow import Loader
from shardflow.dataset.dataset import open_dataset
from shardflow.formats import manifest
from shardflow.packing import shard_writer

IMAGES = 6400
BATCHES, WORKERS, SHARDS, SIZES = (16, 64, 256, 640), (0, 1, 2, 4), (50, 500, 2000), (4_000, 100_000, 2_000_000)


def resharded(source: Path, target: Path, shard_samples: int) -> Path:
    """Write the samples of a dataset into shards of another size."""
    (target / "train").mkdir(parents=True)
    samples = list(open_dataset(source)["train"])
    shards = []
    for number, first in enumerate(range(0, len(samples), shard_samples)):
        chosen = samples[first : first + shard_samples]
        data = b"".join(
            shard_writer.sample(f"{first + at:09d}", {part: sample[part] for part in ("cls", "jpg")})
            for at, sample in enumerate(chosen)
        )
        shards.append(_written(target, f"train/{number:06d}", data, len(chosen)))
    _seal(target, shards)
    return target


def repeated(source: Path, target: Path, samples: int) -> Path:
    """Make a dataset of so many samples from the shards of a smaller one, as links."""
    (target / "train").mkdir(parents=True)
    opened = open_dataset(source)["train"]
    shards = []
    for number in range(samples * len(opened.shards) // len(opened)):
        shard = opened.shards[number % len(opened.shards)]
        name = f"train/{number:06d}.tar"
        os.link(source / shard.name, target / name)
        os.link(source / shard.index_name, target / f"train/{number:06d}.npy")
        shards.append(
            manifest.Shard(
                name=name,
                samples=shard.samples,
                bytes=shard.bytes,
                sha256=shard.sha256,
                index_sha256=shard.index_sha256,
            )
        )
    _seal(target, shards)
    return target


def _written(target: Path, name: str, data: bytes, samples: int) -> manifest.Shard:
    fragment = target / "fragment"
    fragment.write_bytes(data)
    piece = shard_writer.Fragment(name="fragment", samples=samples, size=len(data), crc32=zlib.crc32(data))
    made = shard_writer.assemble(target / f"{name}.tar", [(fragment, piece)])
    fragment.unlink()
    (target / f"{name}.npy").write_bytes(made.index)
    return manifest.Shard(
        name=f"{name}.tar",
        samples=samples,
        bytes=made.size,
        sha256=made.sha256,
        index_sha256=hashlib.sha256(made.index).hexdigest(),
    )


def _seal(target: Path, shards: list[manifest.Shard]) -> None:
    samples = sum(shard.samples for shard in shards)
    sealed = manifest.Manifest(splits={"train": tuple(shards)}, classes=("all",), recipe={}, tools={}, inputs=samples)
    (target / manifest.FILE_NAME).write_bytes(sealed.to_bytes())


def measured(url: Path, *, batch_size: int = 64, workers: int = 2, epochs: int = 3) -> float:
    """Return the CPU time per image in µs of all processes; median over epochs of 6,400 images or so."""
    steps = IMAGES // batch_size
    loader = Loader(
        url,
        batch_size=batch_size,
        num_workers=workers,
        samples_per_epoch=steps * batch_size,
    )
    for _ in loader:
        pass
    spent = []
    for _ in range(epochs):
        before = cpu_s(os.getpid())
        for _ in loader:
            pass
        spent.append(1e6 * (cpu_s(os.getpid()) - before) / (steps * batch_size))
    return statistics.median(spent)


def rows(source: Path, scratch: Path) -> Iterator[tuple[str, list[str], list[float]]]:
    """Yield what changes, its values, and the CPU times."""
    base = resharded(source, scratch / "base", 500)
    yield "batch size", list(map(str, BATCHES)), [measured(base, batch_size=size) for size in BATCHES]
    yield "workers", list(map(str, WORKERS)), [measured(base, workers=count) for count in WORKERS]
    folders = [base if size == 500 else resharded(source, scratch / f"shards{size}", size) for size in SHARDS]
    yield "samples per shard", [f"{size:,}" for size in SHARDS], [measured(folder) for folder in folders]
    folders = [repeated(base, scratch / f"size{size}", size) for size in SIZES]
    yield "samples in the dataset", [f"{size:,}" for size in SIZES], [measured(folder) for folder in folders]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=given.url.parent) as scratch:  # beside it, so that links are possible
        for what, values, times in rows(given.url, Path(scratch)):
            print(f"| {what} | {' | '.join(values)} |")
            print(f"| µs per image | {' | '.join(f'{time:.0f}' for time in times)} |", flush=True)


if __name__ == "__main__":
    main()
