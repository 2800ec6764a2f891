"""The usual suspects: what keeps loaders slow on many machines, each looked for here, and each with its remedy."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from shardflow import native
from shardflow.dataset.dataset import Split
from shardflow.loading.loader import Loader
from shardflow.loading.topology import usable_cores

_SMALL_SHARD, _LARGE_SHARD = 4_000_000, 4_000_000_000
_MANY_SHARDS = 64


class Suspect(NamedTuple):
    """Something that is likely to cost speed: a name for scripts, and a line with the remedy for people."""

    name: str
    line: str


def usual_suspects(loader: Loader, *, shared_bytes: int) -> list[Suspect]:
    """Return what is likely to cost this loader speed, or to end it.

    Args:
        loader: With the settings that it is to run with.
        shared_bytes: The most shared memory that its batches take.
    """
    return [
        *_shared_memory(shared_bytes),
        *_threads(),
        *_fork(loader),
        *_pinning(loader),
        *_kernel(),
        *_shards(loader.split),
        *_storage(loader.split),
    ]


def _shared_memory(needed: int) -> Iterator[Suspect]:
    if not os.path.isdir("/dev/shm"):
        return
    # What the loader has taken already counts as free: this is asked while it may be running.
    total = shutil.disk_usage("/dev/shm").total
    if needed > total:
        yield Suspect(
            "shared memory",
            f"batches may take {needed / 1e9:.1f} GB of /dev/shm, which has {total / 1e9:.1f} GB: enlarge it "
            "(docker run --shm-size=16g, in Kubernetes an emptyDir of medium Memory), or lower num_workers or "
            "prefetch_factor",
        )


def _threads() -> Iterator[Suspect]:
    threads, cores = torch.get_num_threads(), usable_cores()
    if threads > cores:
        yield Suspect(
            "threads",
            f"torch uses {threads} threads, and this rank may use {cores} cores: call torch.set_num_threads({cores}), "
            "or set OMP_NUM_THREADS to that",
        )


def _fork(loader: Loader) -> Iterator[Suspect]:
    context = loader.data_loader.multiprocessing_context
    method = context.get_start_method() if context is not None else torch.multiprocessing.get_start_method()
    if not loader.data_loader.num_workers or method != "fork":
        return
    remedy = "pass multiprocessing_context='forkserver' to the loader"
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield Suspect(
            "fork", f"CUDA was initialised before the workers are forked; if a transform uses it they fail: {remedy}"
        )
    others = [thread.name for thread in threading.enumerate() if not thread.daemon and thread.name != "MainThread"]
    if others:
        yield Suspect(
            "fork",
            f"{len(others)} other threads run while workers are forked ({', '.join(others[:3])}): clients and locks "
            f"that they hold break in the workers; open them after the fork, or {remedy}",
        )


def _pinning(loader: Loader) -> Iterator[Suspect]:
    if loader.data_loader.pin_memory and not torch.cuda.is_available():
        yield Suspect(
            "pin_memory", "pin_memory=True, but there is no GPU: leave the argument out, it follows the machine"
        )
    if torch.cuda.is_available() and not loader.data_loader.pin_memory:
        yield Suspect("pin_memory", "pin_memory=False, but there is a GPU: leave the argument out, copies then overlap")


def _kernel() -> Iterator[Suspect]:
    if not native.available():
        yield Suspect(
            "native kernel",
            f"the native decoder is not active ({native.why()}): apt install gcc libjpeg-dev, then install shardflow "
            "again; it takes half the time of the general one",
        )


def _shards(split: Split) -> Iterator[Suspect]:
    sizes = [shard.bytes for shard in split.shards]
    mean = sum(sizes) / len(sizes)
    if mean < _SMALL_SHARD and len(sizes) > _MANY_SHARDS:
        yield Suspect(
            "small shards",
            f"{len(sizes):,} shards of {mean / 1e6:.1f} MB: opening them costs more than reading them; pack again with "
            "a larger --shard-samples",
        )
    if max(sizes) > _LARGE_SHARD:
        yield Suspect(
            "large shards",
            f"a shard of {max(sizes) / 1e9:.1f} GB: ranks wait for whole shards, and the cache holds few of them; pack "
            "again with a smaller --shard-samples",
        )


def _storage(split: Split) -> Iterator[Suspect]:
    size = sum(shard.bytes for shard in split.shards)
    if split.reader.cache is not None:
        if split.reader.cache.limit_bytes < size:
            yield Suspect(
                "cache",
                f"the cache may hold {split.reader.cache.limit_bytes / 1e9:.1f} GB, the split has {size / 1e9:.1f} GB: "
                "every epoch fetches it anew; raise its limit",
            )
        place = Path(split.reader.cache.directory)
    else:
        place = Path(split.reader.url(0))
    if rotates(place):
        yield Suspect(
            "rotating disk",
            f"{place} lies on a disk that says it rotates: fine once in memory ({size / 1e9:.1f} GB); else put it on "
            "an SSD, or read in fewer streams with Shuffle(lanes=1)",
        )


def rotates(path: Path, sysfs: Path = Path("/sys")) -> bool:
    """Return whether a file lies on a rotating disk, as far as the kernel says; False where it does not.

    Args:
        path: A file, or a directory.
        sysfs: Where sysfs is mounted.
    """
    try:
        device = os.stat(path).st_dev
        block = (sysfs / "dev/block" / f"{os.major(device)}:{os.minor(device)}").resolve(strict=True)
    except OSError:
        return False  # a network or memory file system, or a path that is not there
    for place in (block, block.parent):  # a partition's queue is that of its disk
        flag = place / "queue/rotational"
        if flag.exists():
            return flag.read_text().strip() == "1"
    return False
