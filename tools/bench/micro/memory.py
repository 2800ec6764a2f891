"""Where the memory of a loader goes, beside an ImageFolder's with torchvision's tensors: both with two workers.

Each is a process of its own, in turn. Proportional set sizes, so that a page which several processes share counts once;
what is mapped from files that are no data, which is libraries, is left out, for other processes share these too.
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import partial
from pathlib import Path
from statistics import median

from bench.processes import call
from bench.report import markdown
from bench.usage import PeakMemory

LOADERS = {"shardflow": "kernel", "imagefolder": "tensors"}
"""Peers of the loaders' benchmark, and their variants."""
KINDS = {
    "anonymous": "anonymous memory of all processes at the peak",
    "shared": "slots of shared memory, or batches",
    "data": "mapped pages of shards",
}
Memory = dict[str, int]
"""Bytes of each kind."""


def measure(url: str, rounds: int) -> str:
    """Return the table."""
    folder = Path(url).parent.parent
    images = {"shardflow": folder / "shardflow", "imagefolder": folder / "pictures"}
    found: dict[str, list[Memory]] = {peer: [] for peer in LOADERS}
    for _ in range(rounds):
        for peer, variant in LOADERS.items():
            arguments = {"peer": peer, "variant": variant, "data": images[peer]}
            found[peer].append(call(sys.executable, "micro.memory.peak", **arguments))
    medians = {peer: {kind: median(each[kind] for each in found[peer]) for kind in found[peer][0]} for peer in found}
    names = {"start": "Python and torch, in the main process alone", **KINDS, "together": "**together**"}
    rows = [(name, *(f"{medians[peer][kind] / 1e6:.0f}" for peer in LOADERS)) for kind, name in names.items()]
    return markdown(("MB", *LOADERS), rows)


def peak(peer: str, variant: str, data: str) -> Memory:
    """Return the memory of this process before the loader is made, and of the whole tree at the peak of two epochs."""
    import torch

    from bench.loaders.measure import Normalise

    torch.set_num_threads(1)
    memory = partial(_memory, data=data)
    start = memory(os.getpid())["anonymous"]
    with PeakMemory(memory) as most:
        batches = importlib.import_module(f"bench.loaders.peers.{peer}").open_loader(Path(data), variant)
        normalise = Normalise()
        for _ in range(2):
            for images, _numbers in batches():
                normalise(images)
    return {"start": start, **most.bytes_by_kind, "together": most.bytes}


def _memory(pid: int, data: str) -> Memory:
    """Return the proportional set size of a process by kind, without libraries."""
    used, kind = dict.fromkeys((*KINDS, "libraries"), 0), ""
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
    except OSError:  # it has just ended
        lines = []
    for line in lines:
        fields = line.split()
        if not fields[0].endswith(":"):  # a mapping: addresses, rights, offset, device, inode, name
            kind = _kind(fields[5] if len(fields) > 5 else "", data)
        elif fields[0] == "Pss:":
            used[kind] += int(fields[1]) << 10
    del used["libraries"]
    return used


def _kind(name: str, data: str) -> str:
    if not name or name.startswith("["):
        return "anonymous"
    if name.startswith(("/dev/shm/", "/memfd:", "/SYSV", "/torch_")):
        return "shared"
    return "data" if name.startswith(data) else "libraries"
