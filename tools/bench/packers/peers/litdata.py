"""LitData's optimize."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import litdata

from . import WORKERS, files
from .resizing import RESIZERS


def _item(path: str, variant: str) -> dict[str, Any]:
    label = int(Path(path).parent.name == "portrait")
    return {"image": RESIZERS[variant](path), "name": Path(path).stem, "label": label}


def pack(source: Path, destination: Path, variant: str) -> None:
    """`variant` names the resizer. Forked workers, because fresh ones import PyTorch first."""
    litdata.optimize(
        fn=functools.partial(_item, variant=variant),
        inputs=files(source),
        output_dir=str(destination),
        chunk_bytes="64MB",
        num_workers=WORKERS,
        start_method="fork",
    )


def pictures(destination: Path) -> Iterator[tuple[str, bytes]]:
    """The names were written along."""
    for sample in litdata.StreamingDataset(str(destination)):
        yield sample["name"], sample["image"]
