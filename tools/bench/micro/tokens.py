"""Token budgets: the time of a plan, how full bins become, and useful tokens for a CPU-second beside other batches.

Planned are photographs of ten common shapes with captions of 8 to 200 tokens, in bins of 8,192. Beside it are packers
of training loops: first fit, in the order of arrival, over a buffer, such as Megatron Energon has, which leaves the
choice to a function of the user; that of TorchTitan, if `pip install --no-deps torchtitan==0.3.0` was run; and that of
LanceDB, if `pip install lancedb==0.40.0` was, which joins samples and cuts them where a bin is full.
A token of an image is useful if it is not padding.
"""

from __future__ import annotations

import tempfile
import time
import warnings
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
        ("samples", "bind, CPU-s", "plan of an epoch, CPU-s", "batch of 8 bins, µs", "full"),
        [_planned(samples) for samples in SAMPLES],
    )
    columns = ("packer", "samples", "full", "CPU-µs for a sample", "most samples in memory", "samples not whole")
    packers = markdown(columns, _packers())
    return f"{plans}\n{packers}\n{_loaded(url, rounds)}"


def _planned(samples: int) -> list[str]:
    sizes, texts = _samples(samples)
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
    times = [f"{bound - begun:.1f}", f"{planned - bound:.1f}", f"{step_us:.0f}"]
    return [f"{samples:,}", *times, f"{epochs.fill:.1%}"]


def _samples(count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return width and height of images, and the tokens of their captions."""
    rng = np.random.default_rng(0)
    sizes = np.array([*SIDES, *(pair[::-1] for pair in SIDES)])[rng.integers(0, 10, count)]
    return sizes, rng.integers(8, 201, count)


def _packers() -> list[list[str]]:
    """Return how full the bins of packers with a buffer are, and what they cost."""
    rows = []
    packers = {
        f"first fit in a buffer of {BUFFER:,}": (partial(_first_fit, buffer=BUFFER), 100_000),
        "first fit in a buffer of 100": (partial(_first_fit, buffer=100), 100_000),
        "TorchTitan's `MMSamplePacker(buffer_size=100)`": (_torchtitan, 5_000),
        "LanceDB's `pack_sequences`": (_lancedb, 5_000),
    }
    for name, (packer, count) in packers.items():
        sizes, texts = _samples(count)
        lengths = patch_grids(sizes, PATCH).prod(axis=1) + texts
        begun = time.process_time()
        try:
            bins, most, packed = packer(lengths)
        except ImportError:
            rows.append([name, "not installed", "", "", "", ""])
            continue
        us = 1e6 * (time.process_time() - begun) / count
        full, lacking = packed.sum() / (bins * BUDGET), (packed < lengths).sum()
        rows.append([name, f"{count:,}", f"{full:.1%}", f"{us:.0f}", f"{most:,}", f"{lacking:,}"])
    return rows


Packed = tuple[int, int, npt.NDArray[np.int64]]
"""The number of bins, the most samples in memory, and how many tokens of each sample are in a bin."""


def _torchtitan(lengths: npt.NDArray[np.int64]) -> Packed:
    """Pack with a buffer that hands out only bins without any room."""
    from torchtitan.hf_datasets.multimodal.utils.packing import MMSamplePacker

    class Packer(MMSamplePacker):  # type: ignore[misc] # it is not installed where types are checked
        @staticmethod
        def _merge_samples(samples: list[dict[str, range]]) -> int:
            return len(samples)  # and joins no tensors, which is not packing

    packer, most = Packer(BUDGET, buffer_size=100), 0
    for length in lengths.tolist():
        packer.add_sample({"input_ids": range(length)})
        most = max(most, len(packer._sample_buffer))
    packer.flush()
    return len(packer.packed_samples), most, lengths


def _lancedb(lengths: npt.NDArray[np.int64]) -> Packed:
    """Pack all samples of a table, whose number of bins is estimated."""
    import lancedb
    import pyarrow as pa
    from lancedb.streaming import DEFAULT_PREFETCH_BATCHES, DEFAULT_READ_BATCH_SIZE, StreamingDataset

    end, padding, first = range(3)
    numbers = np.arange(len(lengths), dtype=np.int32)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    samples = pa.ListArray.from_arrays(ends, pa.array(np.repeat(first + numbers, lengths)))
    bins, packed = 0, np.zeros_like(lengths)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the estimate
        table = lancedb.connect(folder).create_table("samples", pa.table({"tokens": samples}))
        options = {"pack_sequences": BUDGET, "eos_id": end, "pad_id": padding, "blocks_per_epoch": "auto"}
        for block in StreamingDataset(table, num_splits=STREAMS, shuffle_seed=0, columns=["tokens"], **options):
            tokens = block["input_ids"].numpy()
            packed += np.bincount(tokens[tokens >= first] - first, minlength=len(lengths))
            bins += 1
    most = STREAMS * DEFAULT_READ_BATCH_SIZE * DEFAULT_PREFETCH_BATCHES
    return bins, min(most, len(lengths)), packed


def _first_fit(lengths: npt.NDArray[np.int64], buffer: int) -> Packed:
    """Pack by first fit over a buffer."""
    bins = 0
    for begin in range(0, len(lengths), buffer):
        rooms = np.empty(0, dtype=np.int64)
        for length in lengths[begin : begin + buffer].tolist():
            fitting = np.flatnonzero(rooms >= length)
            if len(fitting):
                rooms[fitting[0]] -= length
            else:
                rooms = np.append(rooms, BUDGET - length)
        bins += len(rooms)
    return bins, buffer, lengths


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
