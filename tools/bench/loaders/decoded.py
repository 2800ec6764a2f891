"""What the cache of decoded images saves: CPU time per image with and without it, in turns.

    python3 tools/bench/loaders/decoded.py photos256

Prints a table of medians: one row per number of workers and tier. The epoch that fills the cache stands apart from
those after it. Every run is a fresh process over the same local dataset, whose files the page cache holds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

TIERS = {"page cache": None, "decoded, on disk": "disk", "decoded, in /dev/shm": "shm"}
EPOCHS = 4


def run(dataset: str, workers: int, cache_dir: str | None) -> list[float]:
    """Return the CPU-ms per image of each epoch."""
    import torch  # here, so that who starts the runs does without
    from measure import cpu_s

    import shardflow

    torch.set_num_threads(1)
    cache = None if cache_dir is None else shardflow.Cache(cache_dir, pixels="100GB")
    loader = shardflow.Loader(dataset, batch_size=64, tail="short", num_workers=workers, cache=cache)
    spent = []
    for _ in range(EPOCHS):
        before, images = cpu_s(os.getpid()), 0
        for batch, _ in loader:
            images += len(batch)
        spent.append((cpu_s(os.getpid()) - before) / images * 1000)
    return spent


def main() -> None:
    """Run all rows in turns and print their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(options.dataset, int(options.run[0]), options.run[1] or None)))
        return
    found: dict[tuple[int, str], list[list[float]]] = {(w, tier): [] for w in (0, 2) for tier in TIERS}
    for _ in range(options.rounds):
        for workers, tier in found:
            place = "/dev/shm" if TIERS[tier] == "shm" else None
            with tempfile.TemporaryDirectory(dir=place) as directory:
                command = [sys.executable, __file__, options.dataset, "--run", str(workers)]
                cache_dir = f"{directory}/cache" if TIERS[tier] else ""
                done = subprocess.run([*command, cache_dir], check=True, stdout=subprocess.PIPE)
            found[workers, tier].append(json.loads(done.stdout))
    print("| workers | tier | first epoch, CPU-ms per image | later epochs |\n| --- | --- | --- | --- |")
    for (workers, tier), runs in found.items():
        first = statistics.median(epochs[0] for epochs in runs)
        later = statistics.median(statistics.median(epochs[1:]) for epochs in runs)
        print(f"| {workers} | {tier} | {first:.2f} | {later:.3f} |")


if __name__ == "__main__":
    main()
