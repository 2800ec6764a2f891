"""From the start of a Python process to its first batch, step by step, from a local disk and from S3.

Every round is a process of its own. Steps are those of a training script, which imports torch in any case; the CPU time
is that of the process and its workers, and from S3 includes what the workers download and check in the meantime.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.processes import Variables, call, child
from bench.report import markdown
from bench.usage import own_cpu_s

STEPS = ("import torch", "import shardflow.Loader", "make the loader", "first batch")
Steps = list[tuple[float, float]]
"""CPU-seconds and seconds of each step."""


def measure(url: str, rounds: int) -> str:
    """Return the table."""
    found: dict[str, list[Steps]] = {"local": [], "S3": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        child(sys.executable, "streaming.server.serve", timeout_s=None, folder=folder) as server,
    ):
        s3 = server.receive()
        call(sys.executable, "streaming.server.upload", endpoint=s3["endpoint"], folder=url)
        remote = f"s3://{s3['bucket']}/{Path(url).name}"
        for _ in range(rounds + 1):
            found["local"].append(_in_new_process(url, ()))
            found["S3"].append(_in_new_process(remote, s3["variables"].items()))
        server.resume()
    lines = []
    for place, measured in found.items():
        by_step = zip(STEPS, zip(*measured[1:], strict=True), strict=True)  # the first round fills the page cache
        medians = [(step, [median(values) for values in zip(*times, strict=True)]) for step, times in by_step]
        lines += [(place, step, f"{cpu:.2f}", f"{wall:.2f}") for step, (cpu, wall) in medians]
    return markdown(("from", "step", "CPU-s", "seconds"), lines)


def _in_new_process(url: str, variables: Variables) -> Steps:
    with tempfile.TemporaryDirectory() as cache:
        steps: Steps = call(sys.executable, "micro.start.first_batch", variables=variables, url=url, cache=cache)
    return steps


def first_batch(url: str, cache: str) -> Steps:
    """Return the times of this process's steps."""
    marks = [(own_cpu_s(), time.perf_counter())]

    def mark() -> None:
        marks.append((own_cpu_s(), time.perf_counter()))

    import torch  # noqa: F401

    mark()
    import shardflow

    make = shardflow.Loader
    mark()
    loader = make(url, batch_size=64, num_workers=2, cache=cache)
    mark()
    batches = iter(loader)
    next(batches)
    mark()
    return [(cpu - before[0], wall - before[1]) for before, (cpu, wall) in itertools.pairwise(marks)]
