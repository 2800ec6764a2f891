"""shardflow: with its native kernel and without."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from . import SHARD_SAMPLES, WORKERS


def pack(source: Path, destination: Path, variant: str) -> None:
    """`variant` is "kernel" or "no-kernel"."""
    if variant == "no-kernel":
        _hide_kernel(destination.with_name("without-kernel"))
    import shardflow
    from shardflow import native

    if native.available() != (variant == "kernel"):
        raise RuntimeError(f"native kernel available: {native.available()}")
    shardflow.pack(source, destination, workers=WORKERS, shard_samples=SHARD_SAMPLES)


def pictures(destination: Path) -> Iterator[tuple[str, bytes]]:
    """The receipts say which original became which sample."""
    import shardflow

    receipts = sorted(destination.glob("train/*.json"))
    sources = [source for receipt in receipts for source in json.loads(receipt.read_bytes())["sources"]]
    for source, sample in zip(sources, shardflow.open(destination)["train"], strict=True):
        yield Path(source).stem, sample["jpg"]


def _hide_kernel(folder: Path) -> None:
    """Put a copy of the package without its binary before the installed one, for the worker processes as well."""
    spec = find_spec("shardflow")
    if not folder.exists() and spec is not None and spec.origin is not None:
        shutil.copytree(Path(spec.origin).parent, folder / "shardflow", ignore=shutil.ignore_patterns("*.so"))
    sys.path.insert(0, str(folder))
