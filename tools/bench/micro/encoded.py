"""The CPU time of an image before it is the device's turn: crops handed over as uint8, or whole files as they are.

CPU time of the training process and its workers together. The last row decodes on the CPU what was handed over encoded,
as a machine without a GPU does.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

import shardflow
from bench.loaders.peers.recipe import BATCH, SIZE, WORKERS
from bench.report import markdown
from bench.usage import epoch_us, medians

FIELDS = ("image", "label", "random_key")


def measure(url: str, rounds: int) -> str:
    """Return the table."""
    torch.set_num_threads(1)
    crop, normalise = shardflow.decoders.RandomResizedCrop(SIZE), shardflow.device.Normalize()
    decode = shardflow.device.DecodeJpeg(crop)

    def loader(decoder: Any) -> shardflow.Loader:
        return shardflow.Loader(url, batch_size=BATCH, decoder=decoder, fields=FIELDS, num_workers=WORKERS)

    def on_cpu(decoder: Any, *transforms: Any) -> shardflow.device.Prefetcher:
        return shardflow.device.Prefetcher(loader(decoder), "cpu", [*transforms, normalise])

    batches = {
        "uint8 crops": loader(crop),
        "encoded files": loader(shardflow.decoders.Raw()),
        "uint8 crops, normalised on the CPU": on_cpu(crop),
        "encoded files, decoded and normalised on the CPU": on_cpu(shardflow.decoders.Raw(), decode),
    }
    spent = medians({name: partial(epoch_us, each) for name, each in batches.items()}, rounds)
    return markdown(("handed over", "CPU-ms/image"), [(name, f"{us / 1000:.3f}") for name, us in spent.items()])
