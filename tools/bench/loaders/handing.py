"""What an image costs the CPU before it is the device's turn: crops handed over as uint8, or whole files as they are.

CPU time of the training process and its workers together, in µs per image. Ways take turns, so that what else the
machine does falls on all of them alike; given are medians over epochs, the first of each way left out. A share of the
files that the workers decode (`cpu_share`) costs its decoding there. The last way decodes on the CPU what was handed
over encoded, which is what a machine without a GPU does.

    python tools/bench/loaders/handing.py DATASET
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from measure import cpu_s
from peers.recipe import BATCH, SIZE, WORKERS

import shardflow

FIELDS = ("image", "label", "random_key")


def ways(url: Path) -> dict[str, Iterable[Any]]:
    """Return what is measured, by name."""
    crop = shardflow.RandomResizedCropDecoder(SIZE)

    def loader(decoder: Any) -> shardflow.Loader:
        return shardflow.Loader(url, batch_size=BATCH, decoder=decoder, fields=FIELDS, num_workers=WORKERS)

    transforms = [shardflow.Normalize()]
    return {
        "uint8 crops, to the training process": loader(crop),
        "encoded files, to the training process": loader(shardflow.EncodedDecoder()),
        **{
            f"encoded files, a share of {share} as crops, to the training process": loader(
                shardflow.EncodedDecoder(share, crop)
            )
            for share in (0.25, 0.5)
        },
        "uint8 crops, normalised on the CPU": shardflow.DevicePrefetcher(loader(crop), "cpu", transforms),
        "encoded files, decoded and normalised on the CPU": shardflow.DevicePrefetcher(
            loader(shardflow.EncodedDecoder()), "cpu", [shardflow.DecodeJpeg(crop), *transforms]
        ),
    }


def main() -> None:
    """Print a line per way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    running = ways(given.url)
    spent: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(given.epochs + 1):
        for name, batches in running.items():
            begun, images = cpu_s(os.getpid()), 0
            for pixels, *_ in batches:
                images += len(pixels)
            spent[name].append(1e6 * (cpu_s(os.getpid()) - begun) / images)
    for name, epochs in spent.items():
        print(f"{statistics.median(epochs[1:]):7.1f}  {name}")


if __name__ == "__main__":
    main()
