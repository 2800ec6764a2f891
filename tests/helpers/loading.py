"""For tests of loading: labels of batches, splits without files, waiting, and scripts in interpreters of their own."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardflow.dataset.open_dataset import Split
from shardflow.formats.annotations import Annotations
from shardflow.formats.shard import Shard
from shardflow.geometry.objects import CroppedBoxes
from shardflow.loading.annotation_fields import AnnotationFields
from shardflow.loading.batch_sampler import WholeBatches
from shardflow.loading.column_fields import ColumnFields
from shardflow.loading.decoders.standard_crops import CenterCrop
from shardflow.loading.facts import split_facts
from shardflow.loading.source import Source
from shardflow.loading.worker_settings import Workers
from shardflow.order.epochs import Epochs
from shardflow.order.mixture import Shares
from shardflow.order.rank_partition import RankPartition
from shardflow.storage.local import LocalStorage

PROJECT = Path(__file__).parents[2]


def labels(batches: Any) -> list[int]:
    """Return the labels of all batches, each of images and labels, in order."""
    return [label for _, numbers, *_ in batches for label in numbers.tolist()]


def unread_split(sizes: list[int]) -> Split:
    """Return a split of shards that nothing reads."""
    shards = (
        Shard(name=f"{number:06}.tar", samples=size, bytes=512, sha256="0" * 64, index_sha256="0" * 64)
        for number, size in enumerate(sizes)
    )
    return Split(LocalStorage(Path()), "train", tuple(shards))


def epochs_of(
    split: Split, *, seed: int = 0, samples_per_epoch: int | None = None, sampler: Any = None, **facts: Any
) -> Epochs:
    """Return the epochs of a split without labels, as a loader has them; `facts` are its arguments."""
    return Epochs(split_facts(split, None, **facts), sampler, seed=seed, samples_per_epoch=samples_per_epoch)


def whole_batches(split: Split, epochs: Epochs, partition: RankPartition) -> WholeBatches:
    """Return the batches of one source, as a loader has them."""
    annotations = AnnotationFields((), Annotations(), CroppedBoxes())
    source = Source(
        split=split,
        fields=("key",),
        epochs=epochs,
        partition=partition,
        decoder=CenterCrop(),
        annotations=annotations,
        columns=ColumnFields((), split, {}, None, epochs.drawn),
    )
    return WholeBatches([source], Shares([1]))


def with_workers(options: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of a loader, in which those of its workers may stand by themselves."""
    names = ("prefetch_factor", "persistent_workers", "pin_memory", "multiprocessing_context")
    chosen = {name: value for name, value in options.items() if name in names}
    others = {name: value for name, value in options.items() if name not in names}
    return {**others, "num_workers": Workers(options.get("num_workers"), **chosen)} if chosen else others


def until(condition: Callable[[], bool], seconds: float = 10) -> bool:
    """Return whether a condition came true in time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def prefetching_threads() -> int:
    """Return how many threads of this process fetch shards ahead."""
    return sum(thread.name == "shardflow-prefetch" for thread in threading.enumerate())


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a new interpreter, which finds this project."""
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=90, cwd=PROJECT)


def open_files(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open, deleted ones too, or mapped, sorted."""
    found = set(re.findall(rf"{re.escape(str(folder))}/\S*", Path("/proc/self/maps").read_text()))
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            path = os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")
            found |= {path} if path.startswith(f"{folder}/") else set()
    return sorted(found)
