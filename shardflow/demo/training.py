"""The training: a small convolutional net, and the plain PyTorch loop that anybody would write around the loader."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import nn
from torchvision.transforms import v2

import shardflow
from shardflow.loading.decoders import Decoder

SIZE = 96
"""Pixels of the net's input: enough to tell the scenes apart, and fast on a CPU."""

CROP = (0.3, 1.0)
"""Share of a picture that a random crop shows; smaller ones cut off what makes a scene a scene."""

BATCH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """What one epoch came to.

    Attributes:
        number: From 1.
        loss: Mean over the epoch's batches.
        train_accuracy: Share of the augmented training images that the net got right while it was learning.
        val_accuracy: Share of the val split after the epoch; None when there is no such split.
        images_per_s: Training images, from the first to the last batch.
    """

    number: int
    loss: float
    train_accuracy: float
    val_accuracy: float | None
    images_per_s: float


class Net(nn.Module):
    """Four strided convolutions, a mean over what is left, and a linear layer.

    Args:
        classes: Number of outputs.
        mean, std: Of the images, one number in 0 … 1 per channel.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, classes: int, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 32), (32, 64), (64, 96), (96, 128)):
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))
        self.register_buffer("mean", 255 * torch.tensor(mean)[:, None, None])
        self.register_buffer("std", 255 * torch.tensor(std)[:, None, None])

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:  # noqa: N803 - the suffix is the shape
        """Return logits [B, classes] of uint8 images."""
        logits: torch.Tensor = self.layers((images_BCHW.float() - self.mean) / self.std)
        return logits


def augmentation() -> v2.Transform:
    """Return what is done to each training image after its random crop: a torchvision v2 transform."""
    return v2.ColorJitter(brightness=0.3, contrast=0.3, saturation=0.3)


def train(
    url: str | os.PathLike[str],
    *,
    split: str,
    val_split: str | None,
    epochs: int,
    workers: int | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Iterator[Epoch]:
    """Train a fresh net on a labelled dataset and yield what each epoch came to.

    Args:
        url: The dataset.
        split, val_split: What to learn from, and what to be examined on, if anything.
        epochs: How many.
        workers: Of the loader.
        limit: Use this many samples of each split at most.
        seed: Of the net's weights and of the order.
    """
    dataset = shardflow.open(url)
    batch_size = min(BATCH, limit or BATCH, len(dataset[split]))
    loader = shardflow.Loader(
        url,
        split=split,
        batch_size=batch_size,
        decoder=shardflow.RandomResizedCropDecoder(SIZE, scale=CROP),
        transform=augmentation(),
        num_workers=workers,
        limit=limit,
        seed=seed,
    )
    examination = val_split and _ordered(url, val_split, shardflow.CenterCropDecoder(SIZE), workers, limit)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = Net(len(dataset.classes or ()), dataset.manifest.mean or (0.5,) * 3, dataset.manifest.std or (0.25,) * 3)
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=4e-3, total_steps=max(1, epochs * len(loader)))
    for number in range(1, epochs + 1):
        started = time.perf_counter()
        with _threads_beside_workers():
            loss, train_accuracy = _learn(net, loader, optimiser, schedule)
        seconds = time.perf_counter() - started
        yield Epoch(
            number=number,
            loss=loss,
            train_accuracy=train_accuracy,
            images_per_s=len(loader) * batch_size / seconds,
            val_accuracy=accuracy(net, examination) if examination else None,
        )


def _learn(
    net: nn.Module,
    loader: shardflow.Loader,
    optimiser: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> tuple[float, float]:
    """Run one epoch and return its mean loss and the share of its images that the net got right."""
    net.train()
    loss_sum, right, seen = 0.0, 0, 0
    for images, labels in loader:
        logits = net(images)
        loss = F.cross_entropy(logits, labels, label_smoothing=0.05)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        loss_sum += loss.item()
        right += int((logits.argmax(1) == labels).sum())
        seen += len(labels)
    return loss_sum / len(loader), right / seen


def accuracy(net: nn.Module, loader: shardflow.Loader) -> float:
    """Return the share of an epoch's images that the net gets right."""
    net.eval()
    right, seen = 0, 0
    with torch.no_grad(), _threads_beside_workers():
        for images, labels in loader:
            right += int((net(images).argmax(1) == labels).sum())
            seen += len(labels)
    return right / seen


@contextlib.contextmanager
def _threads_beside_workers() -> Iterator[None]:
    """Leave half of the cores to the loader's workers.

    Threads of one operation wait for each other in a spin; where a worker has the core that one of them needs, all of
    them burn theirs. On two busy cores the net runs ten times as fast on one thread as on two.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before // 2))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _ordered(
    url: str | os.PathLike[str], split: str, decoder: Decoder, workers: int | None, limit: int | None
) -> shardflow.Loader:
    """Return a loader of every sample of a split, in order: the way to evaluate."""
    return shardflow.Loader(
        url,
        split=split,
        batch_size=BATCH,
        decoder=decoder,
        shuffle=False,
        tail="short",
        num_workers=workers,
        limit=limit,
    )
