"""What packing many tiny images costs in time and memory.

The images are hard links to a few JPEGs of 8 x 8 pixels, so the pictures themselves take next to no time. For each
number of inputs, each in a fresh process: listing and planning; the whole pack; and, with the manifest removed, the
resume, which finds every shard finished, and commits. Time is the CPU's, of the process and (for the pack) of its
workers; memory is the most that was resident. A million takes some ten minutes and 5 GB of disk.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from bench.processes import call
from bench.report import markdown
from bench.usage import tree

PER_CLASS = 10_000
TIMEOUT_S = 3600


def measure(inputs: list[int], folder: str) -> str:
    """Return a table with a row for each number of inputs; the images and shards go below a folder for a while."""
    lines = []
    for count in inputs:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            src, dst = Path(scratch, "src"), Path(scratch, "dst")
            make_source(src, count)
            costs = []
            for step in ("plan", "pack", "resume"):
                if step == "resume":
                    (dst / "shardflow.json").unlink()
                function = "micro.packing.plan" if step == "plan" else "micro.packing.pack"
                costs.append(call(sys.executable, function, timeout_s=TIMEOUT_S, src=src, dst=dst))
        planned, packed, resumed = costs
        lines.append([f"{count:,}", *(f"{number:,.1f}" for number in (*planned, *packed, *resumed[:2]))])
    columns = "list and plan, s | MB | pack: parent, s | MB | workers, s | MB each | resume and commit, s | MB"
    return markdown(("inputs", *columns.split(" | ")), lines)


def make_source(folder: Path, inputs: int) -> None:
    """Write a folder of so many images, in classes of PER_CLASS, each class one file with many names."""
    for start in range(0, inputs, PER_CLASS):
        place = folder / f"class{start // PER_CLASS:03d}"
        place.mkdir(parents=True)
        pixels = np.random.default_rng(start).integers(0, 256, (8, 8, 3), np.uint8)
        first = place / f"{start:09d}.jpg"
        Image.fromarray(pixels).save(first, "JPEG", quality=50)
        for number in range(start + 1, min(start + PER_CLASS, inputs)):
            os.link(first, place / f"{number:09d}.jpg")


def plan(src: str, dst: str) -> list[float]:
    """List and plan, and return CPU seconds and MB."""
    from shardflow.formats.shard_layout import Sharding  # here, because a process starts with its parent's peak memory
    from shardflow.packing.pack_plan import plan_jobs
    from shardflow.packing.recipe import Recipe
    from shardflow.packing.sample_recipe import SampleRecipe
    from shardflow.packing.sources.resolve import list_source

    sharding = Sharding(shard_samples=2048, seed=0, shuffle=True, jobs={}, inputs={})
    jobs = plan_jobs(list_source(Path(src)), SampleRecipe(image=Recipe()), sharding, dst)
    assert len({job.items_sha256 for job in jobs}) == len(jobs)
    return _used(resource.RUSAGE_SELF)


def pack(src: str, dst: str) -> list[float]:
    """Pack with two workers, and return CPU seconds and MB of this process, and of the workers and the largest one."""
    import shardflow

    most = 0

    def look(_: object) -> None:
        nonlocal most
        for pid in tree(os.getpid())[1:]:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            most = max(most, pages * resource.getpagesize())

    shardflow.pack(Path(src), Path(dst), workers=2, progress=look)
    return [*_used(resource.RUSAGE_SELF), _used(resource.RUSAGE_CHILDREN)[0], most / 1e6]


def _used(which: int) -> list[float]:
    usage = resource.getrusage(which)
    return [usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6]
