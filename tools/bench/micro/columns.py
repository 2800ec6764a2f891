"""The CPU time of a sample with and without a column: a million samples, embeddings of 768 numbers. 6 GB of disk.

Small JPEGs, so that the column weighs as much as it can. CPU time of the training process and its workers together; an
epoch with another order each time, over a warm disk.
"""

from __future__ import annotations

import io
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from PIL import Image

import shardflow
from bench.loaders.peers.recipe import BATCH, WORKERS
from bench.report import markdown
from bench.usage import epoch_us, medians

SHARDS, SAMPLES, WIDTH = 100, 10_000, 768


def measure(url: str, rounds: int) -> str:
    """Return the table."""
    torch.set_num_threads(1)
    dataset = _dataset(Path(url).parents[1] / "columns")
    decoder = shardflow.decoders.CenterCrop(32)
    kinds = {"number alone": ("index",), "image": ("image",)}
    runs = {}
    for name, fields in kinds.items():
        for more in ((), ("embedding",)):
            loader = shardflow.Loader(
                dataset, batch_size=BATCH, decoder=decoder, fields=(*fields, *more), num_workers=WORKERS
            )
            runs[name, bool(more)] = partial(epoch_us, loader)
    spent = medians(runs, rounds)
    rows = []
    for name in kinds:
        bare, full = (spent[name, more] for more in (False, True))
        rows.append([name, f"{bare:.1f}", f"{full:.1f}", f"{full - bare:.1f}"])
    return markdown(("fields", "CPU-µs/sample", f"and [{WIDTH}] float32", "of the column"), rows)


def _dataset(folder: Path) -> Path:
    """Return a dataset with a column of embeddings; it is made once."""
    if not (folder / "set/shardflow.json").exists():
        buffer = io.BytesIO()
        Image.effect_noise((32, 32), 60).convert("RGB").save(buffer, "JPEG", quality=80)
        folder.mkdir(parents=True, exist_ok=True)
        for shard in range(SHARDS):
            with tarfile.open(folder / f"{shard:03}.tar", "w") as tar:
                for number in range(shard * SAMPLES, (shard + 1) * SAMPLES):
                    member = tarfile.TarInfo(f"{number:07}.jpg")
                    member.size = buffer.getbuffer().nbytes
                    tar.addfile(member, io.BytesIO(buffer.getvalue()))
        shardflow.index(folder, folder / "set")
    if "embedding" not in shardflow.open(folder / "set").manifest.columns:
        keys = [f"{number:07}" for number in range(SHARDS * SAMPLES)]
        flat = pa.array(np.random.default_rng(0).standard_normal(len(keys) * WIDTH, dtype=np.float32))
        table = pa.table({"key": keys, "embedding": pa.FixedSizeListArray.from_arrays(flat, WIDTH)})
        shardflow.columns.add(folder / "set", table, key="key")
    return folder / "set"
