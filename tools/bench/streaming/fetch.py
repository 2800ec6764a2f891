"""Fetches blobs with one client in this process, into memory-backed files that are deleted as soon as they are whole.

The first, a small one, is not measured: it is what the client connects with. Then prints an empty object, begins when
it reads a line, and prints a line of JSON.

    python fetch.py WAY VARIANT BUCKET BLOBS FOLDER
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    """Fetch."""
    way, variant, bucket, blobs, folder = sys.argv[1:]
    fetch = importlib.import_module(f"stores.{way}").open_store(bucket, variant)
    first, *wanted = json.loads(blobs)
    for path in fetch([first], Path(folder)):
        path.unlink()
    print("{}", flush=True)  # ready
    sys.stdin.readline()
    begun, before = time.perf_counter(), os.times()
    for path, blob in zip(fetch(wanted, Path(folder)), wanted, strict=True):
        if path.stat().st_size != blob["size"]:
            raise AssertionError(f"{blob['key']}: expected {blob['size']} bytes, found {path.stat().st_size}")
        path.unlink()
    wall, after = time.perf_counter() - begun, os.times()
    cpu = after.user + after.system - before.user - before.system
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
    print(json.dumps({"wall_s": wall, "cpu_s": cpu, "peak_bytes": peak}), flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # some clients wait for threads that do not end
