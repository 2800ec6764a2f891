"""Checks for common causes of a slow loader on this machine, each with its remedy."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from shardflow import native
from shardflow.dataset.open_dataset import Split
from shardflow.loading.loader import Loader
from shardflow.loading.worker_settings import usable_cores

_SMALL_SHARD, _LARGE_SHARD = 4_000_000, 4_000_000_000
_MANY_SHARDS = 64

_VIRTUAL_DISK = re.compile(r"/(virtio\d+|vbd-\d+|virtual/block/(loop|nbd|rbd)\d+)")
"""Paths of virtual devices: virtio (KVM), Xen, loop and network devices."""

_VIRTUAL_VENDORS = ("QEMU", "Google", "VMware", "Msft", "VBOX")
"""SCSI disks of KVM, Google Cloud, VMware, Hyper-V with Azure, and VirtualBox."""


class Check(NamedTuple):
    """A check that failed: its name, for scripts, and one line with the problem and the remedy."""

    name: str
    message: str


def failed_checks(loader: Loader, *, shared_bytes: int) -> list[Check]:
    """Return likely reasons why a loader is slow or stops; `shared_bytes` is the memory that its batches take."""
    limits, hardware = _limits(shared_bytes), _hardware(loader)
    return [*limits, *_fork(loader), *hardware, *_shards(loader.split), *_storage(loader.split)]


def _limits(needed: int) -> Iterator[Check]:
    # The total, because a running loader may already use part of it.
    total = shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else needed
    if needed > total:
        yield Check(
            "shared memory",
            f"batches may take {needed / 1e9:.1f} GB of /dev/shm, which has {total / 1e9:.1f} GB; enlarge it "
            "(docker run --shm-size=16g; in Kubernetes an emptyDir with medium Memory), or lower num_workers or "
            "prefetch_factor",
        )
    threads, cores = torch.get_num_threads(), usable_cores()
    if threads > cores:
        yield Check(
            "threads",
            f"torch uses {threads} threads, but this rank may use {cores} cores; call torch.set_num_threads({cores}), "
            f"or set OMP_NUM_THREADS={cores}",
        )


def _fork(loader: Loader) -> Iterator[Check]:
    if not loader.num_workers or loader.workers.start_method != "fork":
        return
    remedy = "pass num_workers=Workers(..., multiprocessing_context='forkserver') to the loader"
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield Check(
            "fork", f"CUDA is initialised before the workers are forked, so transforms that use it will fail; {remedy}"
        )
    others = [thread.name for thread in threading.enumerate() if not thread.daemon and thread.name != "MainThread"]
    if others:
        threads = "another thread runs" if len(others) == 1 else f"{len(others)} other threads run"
        yield Check(
            "fork",
            f"{threads} while workers are forked ({', '.join(others[:3])}), so their clients and locks will not work "
            f"in the workers; create them after the fork, or {remedy}",
        )


def _hardware(loader: Loader) -> Iterator[Check]:
    if loader.workers.pin_memory and not torch.cuda.is_available():
        yield Check(
            "pin_memory", "pin_memory=True, but this machine has no GPU; omit the argument to pin only with a GPU"
        )
    if torch.cuda.is_available() and not loader.workers.pin_memory:
        yield Check(
            "pin_memory", "pin_memory=False, but this machine has a GPU; omit the argument, so that copies overlap"
        )
    if not native.available():
        reason = native.describe()
        yield Check("native kernel", f"the native kernel is not active; it halves the decoding time: {reason}")


def _shards(split: Split) -> Iterator[Check]:
    sizes = split.shards.bytes.tolist()
    mean = sum(sizes) / len(sizes)
    if mean < _SMALL_SHARD and len(sizes) > _MANY_SHARDS:
        yield Check(
            "small shards",
            f"{len(sizes):,} shards of {mean / 1e6:.1f} MB on average, which take longer to open than to read; pack "
            "again with a larger --shard-samples",
        )
    if max(sizes) > _LARGE_SHARD:
        yield Check(
            "large shards",
            f"the largest shard has {max(sizes) / 1e9:.1f} GB, but ranks wait for whole shards, and the cache holds "
            "few of them; pack again with a smaller --shard-samples",
        )


def _storage(split: Split) -> Iterator[Check]:
    size, cache = sum(split.shards.bytes.tolist()), split.reader.cache
    if cache is not None and cache.limit_bytes < size:
        yield Check(
            "cache",
            f"the cache is limited to {cache.limit_bytes / 1e9:.1f} GB, but the split has {size / 1e9:.1f} GB, so "
            "every epoch downloads it again; raise the limit",
        )
    directory = Path(split.reader.url(0) if cache is None else cache.directory)
    if on_rotating_disk(directory):
        yield Check(
            "rotating disk",
            f"{directory} is on a rotating disk, which is slow until the page cache holds the data "
            f"({size / 1e9:.1f} GB); move it to an SSD, or read fewer shards at a time with Shuffle(streams=1)",
        )


def on_rotating_disk(path: Path, sysfs: Path = Path("/sys")) -> bool:
    """Return whether a file or directory is on a rotating disk; False if unknown.

    Virtual disks do not count, because they always claim to rotate.
    """
    try:
        device = os.stat(path).st_dev
        block = (sysfs / "dev/block" / f"{os.major(device)}:{os.minor(device)}").resolve(strict=True)
    except OSError:
        return False  # a network or memory file system, or a path that does not exist
    if _VIRTUAL_DISK.search(block.as_posix()):
        return False
    for directory in (block, block.parent):  # a partition has the queue of its disk
        flag = directory / "queue/rotational"
        if flag.exists():
            vendor = directory / "device/vendor"
            is_virtual = vendor.exists() and vendor.read_text().strip() in _VIRTUAL_VENDORS
            return flag.read_text().strip() == "1" and not is_virtual
    return False
