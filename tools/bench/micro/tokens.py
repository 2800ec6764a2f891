"""Token budgets: the time of a plan, how full bins become, and useful tokens for a CPU-second beside other batches.

Planned are photographs of ten common shapes with captions of 8 to 200 tokens, in bins of 8,192. Beside it is first fit,
in the order of arrival, over a buffer of as many samples as the window has; as packers in training loops do it.
A token of an image is useful if it is not padding.
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

import shardflow
from bench.loaders.peers.recipe import WORKERS
from bench.report import markdown
from bench.usage import medians, own_cpu_s
from shardflow.decoders import Image
from shardflow.order.sampler import Facts
from shardflow.order.shuffle_settings import BUFFER
from shardflow.order.token_budget import TokenEpochs, patch_grids
from shardflow.samplers import AspectBuckets, TokenBudget

BUDGET, PATCH = 8192, 16
SAMPLES = (100_000, 1_000_000, 10_000_000)
STREAMS, STEP = 64, 8
SIDES = ((256, 256), (341, 256), (384, 256), (455, 256), (320, 256))


def measure(url: str, rounds: int) -> str:
    """Return the tables."""
    torch.set_num_threads(1)
    plans = markdown(
        ("samples", "bind, CPU-s", "plan of an epoch, CPU-s", "batch of 8 bins, µs", "full", "first fit in a buffer"),
        [_planned(samples) for samples in SAMPLES],
    )
    return f"{plans}\n{_loaded(url, rounds)}"


def _planned(samples: int) -> list[str]:
    rng = np.random.default_rng(0)
    sizes = np.array([*SIDES, *(pair[::-1] for pair in SIDES)])[rng.integers(0, 10, samples)]
    texts = rng.integers(8, 201, samples)
    facts = Facts(
        split="train",
        split_samples=samples,
        shard_samples=np.full(samples // 5000, 5000),
        shuffle=shardflow.Shuffle(),
        batch_size=STEP,
        world_size=8,
        classes=None,
        labels=lambda: np.zeros(0, dtype=np.int32),
        image_sizes=lambda: sizes,
        load=np.load,
    )
    begun = time.process_time()
    epochs = TokenBudget(BUDGET, patch=PATCH, text=texts).bind(facts)
    assert isinstance(epochs, TokenEpochs)
    bound = time.process_time()
    plan = epochs.plan(seed=0, epoch=1, streams=STREAMS)
    planned = time.process_time()
    steps = min(1000, plan.length // STEP)
    for step in range(steps):
        plan.visits(np.arange(step * STEP, (step + 1) * STEP))
    step_us = 1e6 * (time.process_time() - planned) / steps
    firsts = _first_fit(patch_grids(sizes[:100_000], PATCH).prod(axis=1) + texts[:100_000])
    times = [f"{bound - begun:.1f}", f"{planned - bound:.1f}", f"{step_us:.0f}"]
    return [f"{samples:,}", *times, f"{epochs.fill:.1%}", f"{firsts:.1%}"]


def _first_fit(lengths: npt.NDArray[np.int64]) -> float:
    """Return the share of the budget that samples have in bins of first fit over a buffer."""
    bins = 0
    for begin in range(0, len(lengths), BUFFER):
        rooms = np.empty(0, dtype=np.int64)
        for length in lengths[begin : begin + BUFFER].tolist():
            fitting = np.flatnonzero(rooms >= length)
            if len(fitting):
                rooms[fitting[0]] -= length
            else:
                rooms = np.append(rooms, BUDGET - length)
        bins += len(rooms)
    return float(lengths.sum() / (bins * BUDGET))


def _loaded(url: str, rounds: int) -> str:
    """Return the table of loaders."""
    fields = ("image", "image_size")
    shapes = [(256, 256), (256, 336), (256, 384), (336, 256), (384, 256)]
    loaders = {
        "`TokenBudget(8192)`": shardflow.Loader(
            url, batch_size=2, sampler=TokenBudget(BUDGET, patch=PATCH), fields=fields, num_workers=WORKERS
        ),
        "`AspectBuckets`, five shapes": shardflow.Loader(
            url, batch_size=64, sampler=AspectBuckets(shapes), fields=fields, num_workers=WORKERS
        ),
        "`Image(pad_to_multiple_of=16)`": shardflow.Loader(
            url, batch_size=64, decoder=Image(pad_to_multiple_of=PATCH), fields=fields, num_workers=WORKERS
        ),
    }
    tokens = {name: _useful(loader) for name, loader in loaders.items()}
    spent = medians({name: partial(_cpu_s_per_token, loader) for name, loader in loaders.items()}, rounds)
    rows = [[name, f"{useful / total:.1%}", f"{1e-3 / spent[name]:.0f}"] for name, (useful, total) in tokens.items()]
    return markdown(("loader", "useful tokens", "thousand useful tokens for a CPU-second"), rows)


def _useful(loader: shardflow.Loader) -> tuple[int, int]:
    """Return the useful tokens of an epoch, and all of its tokens."""
    useful = total = 0
    for images, sizes in loader:
        useful += int((sizes.double() / PATCH).prod(dim=1).sum())
        total += images.numel() // (3 * PATCH**2)
    return useful, total


def _cpu_s_per_token(loader: shardflow.Loader) -> float:
    begun = own_cpu_s()
    useful, _ = _useful(loader)
    return (own_cpu_s() - begun) / useful
