"""MosaicML's MDSWriter: a writer per process, their indexes merged, as its guide to parallel conversion shows."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

from streaming import MDSWriter, StreamingDataset
from streaming.base.util import merge_index

from . import WORKERS, files
from .resizing import RESIZERS


def _write(part: tuple[str, list[str], str]) -> None:
    folder, paths, variant = part
    with MDSWriter(out=folder, columns={"image": "bytes", "name": "str", "label": "int"}) as writer:
        for path in paths:
            label = int(Path(path).parent.name == "portrait")
            writer.write({"image": RESIZERS[variant](path), "name": Path(path).stem, "label": label})


def pack(source: Path, destination: Path, variant: str) -> None:
    """`variant` names the resizer."""
    paths = files(source)
    parts = [(str(destination / str(number)), paths[number::WORKERS], variant) for number in range(WORKERS)]
    with multiprocessing.Pool(WORKERS) as pool:
        pool.map(_write, parts, chunksize=1)
        pool.close()
        pool.join()
    merge_index(str(destination), keep_local=True)


def pictures(destination: Path) -> Iterator[tuple[str, bytes]]:
    """The names were written along."""
    for sample in StreamingDataset(local=str(destination), shuffle=False, batch_size=1):
        yield sample["name"], sample["image"]
