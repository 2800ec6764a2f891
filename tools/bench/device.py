"""The rate at which images reach a device, by decoder, beside the rate at which a model takes them.

    python tools/bench device DATASET
    python tools/bench device DATASET --device cpu --model resnet18 --size 64 --batch-size 32

Prints a row for every way to decode:

    images/s     batches that are taken from the prefetcher, normalised, and thrown away
    of training  the same as a share of the rate at which the model trains on one batch that never leaves the device
    bubble       by how much longer a training step is when it is fed this way, in ms

Training is bfloat16 and channels_last, as in examples/train_imagenet.py. Ways take turns, and medians are given; the
first turn of each, in which workers start and memory is made, is left out. DALI has a row where it is installed.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
import torchvision
from torchvision.io import decode_jpeg
from torchvision.transforms import v2

import shardflow
from bench.environments import PROJECT
from bench.report import markdown
from bench.usage import medians
from shardflow.interop.dali import write_dali_indexes
from shardflow.loading.decoders import Decoded

FIELDS = ("image", "label", "random_key")


def torchvision_decoder(size: int) -> Callable[..., Any]:
    """Return a decoder of torchvision's functions alone, one image after the other."""
    crop = v2.Compose([v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()])

    def decode(payloads: Any, sizes: Any, keys: Any, empty: Any = None) -> Decoded:  # noqa: ARG001
        images = [decode_jpeg(torch.frombuffer(bytearray(payload), dtype=torch.uint8)) for payload in payloads]
        return Decoded(torch.stack([crop(image) for image in images]), None, {})

    return decode


def ways(given: argparse.Namespace, indexes: Path) -> dict[str, Iterable[Any]]:
    """Return iterables of (images, labels) by name; images are on the device, normalised."""
    crop = shardflow.RandomResizedCropDecoder(given.size)

    def batches(decoder: Any, *transforms: Any) -> shardflow.DevicePrefetcher:
        loader = shardflow.Loader(
            given.dataset, batch_size=given.batch_size, decoder=decoder, fields=FIELDS, num_workers=given.workers
        )
        return shardflow.DevicePrefetcher(
            loader, given.device, [*transforms, shardflow.Normalize()], dtype=torch.bfloat16, channels_last=True
        )

    found: dict[str, Iterable[Any]] = {
        "shardflow's kernel in the workers": batches(crop),
        "torchvision in the workers": batches(torchvision_decoder(given.size)),
        "DecodeJpeg": batches(shardflow.EncodedDecoder(), shardflow.DecodeJpeg(crop)),
    }
    try:
        found["DALI"] = Dali(given, indexes)
    except ImportError:
        print("DALI is not installed: no row for it", file=sys.stderr)
    return found


class Dali:
    """The pipeline of examples/train_dali.py."""

    def __init__(self, given: argparse.Namespace, indexes: Path) -> None:
        sys.path.insert(0, str(PROJECT / "examples"))
        from train_dali import batches_of

        list(write_dali_indexes(shardflow.open(given.dataset), indexes))
        self._device, sizes = given.device, (given.size, given.batch_size, given.workers)
        self._batches = batches_of(given.dataset, indexes, *sizes, given.device == "cuda", auto_reset=True)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for (batch,) in self._batches:
            digits = batch["labels"].to(self._device, torch.int64) - ord("0")
            powers = 10 ** (digits >= 0).flip(1).cumsum(1).flip(1).sub(1).clamp(min=0)
            labels = torch.where(digits >= 0, digits * powers, 0).sum(1)
            yield batch["images"].to(self._device, torch.bfloat16, memory_format=torch.channels_last), labels


def training(given: argparse.Namespace, classes: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Return a function that trains a model on a batch."""
    model = torchvision.models.get_model(given.model, num_classes=classes)
    model = model.to(given.device, memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def train(images: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast(given.device, torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    return train


def step_s(batches: Iterator[Any], steps: int, use: Callable[..., None], device: str, ready: int) -> float:
    """Return the seconds of a step with the wait for its batch, after the batches that were ready are used up."""
    for count in (ready + 1, steps):
        begun = time.perf_counter()
        for _ in range(count):
            use(*next(batches))
        if device == "cuda":
            torch.cuda.synchronize()
    return (time.perf_counter() - begun) / steps


def main(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Print the table."""
    parser.add_argument("dataset", type=Path, help="a labelled dataset in a local directory")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=8, help="processes, or DALI's threads")
    parser.add_argument("--steps", type=int, default=50, help="in a turn")
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args(arguments)
    train = training(given, len(shardflow.open(given.dataset).classes or ()))
    with tempfile.TemporaryDirectory() as indexes:
        ready = 4 * given.workers  # batches that wait in queues while other ways have their turn
        alone: list[float] = []
        cases: dict[Any, Callable[[], float]] = {}
        for name, epochs in ways(given, Path(indexes)).items():
            batches = itertools.chain.from_iterable(itertools.repeat(epochs))

            def deliver(batches: Iterator[Any] = batches) -> float:
                kept = itertools.repeat(next(batches))
                alone.append(step_s(kept, given.steps, train, given.device, 1))
                return step_s(batches, given.steps, lambda *_: None, given.device, ready)

            cases[name, "delivered"] = deliver
            cases[name, "trained"] = partial(step_s, batches, given.steps, train, given.device, ready)
        found = medians(cases, given.turns)
    training_s = statistics.median(alone[len(cases) // 2 :])
    rate = given.batch_size / training_s
    print(f"{given.model} on {given.device}: {rate:,.0f} images/s on a batch that stays there\n")
    lines = []
    for name in dict.fromkeys(name for name, _ in cases):
        delivered_s, bubble_s = found[name, "delivered"], max(0.0, found[name, "trained"] - training_s)
        share = f"{training_s / delivered_s:.0%}"
        lines.append((name, f"{given.batch_size / delivered_s:,.0f}", share, f"{1000 * bubble_s:.1f}"))
    print(markdown(("decoding", "images/s", "of training", "bubble, ms per step"), lines))
