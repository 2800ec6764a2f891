"""CPU time and memory of selecting among a million samples, whose columns and indexes are drawn, without tars."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench.report import markdown
from tests.helpers.making import write_tables

SHARDS, SAMPLES = 100, 10_000
CONDITIONS = ("score > 0.5", "width >= 512", "class = 'c3'", "score > 0.5 and width >= 512 and class in ('c3', 'c7')")
_CODE = """
import resource, sys, time, duckdb, shardflow
from shardflow.dataset.column_files import import_pyarrow
from shardflow.dataset.sample_table import select
import_pyarrow()
dataset = shardflow.open(sys.argv[1])
begun, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
select(dataset["train"], dataset.classes, sys.argv[2])
print(time.process_time() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def measure(rounds: int) -> str:
    """Return the table."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_tables(Path(folder), SHARDS, SAMPLES)
        for condition in CONDITIONS:
            command = [sys.executable, "-c", _CODE, folder, condition]
            found = [subprocess.check_output(command, text=True).split() for _ in range(rounds)]
            seconds, kilobytes = (median(map(float, each)) for each in zip(*found, strict=True))
            rows.append([condition, f"{seconds:.2f}", f"{kilobytes / 1000:.0f}"])
    return markdown((f"condition over {SHARDS * SAMPLES:,} samples", "CPU-s", "MB more"), rows)
