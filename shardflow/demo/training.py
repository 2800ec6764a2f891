"""The training of the demo: a small convolutional net, and an ordinary PyTorch loop around the loader."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import nn
from torchvision.transforms import v2

import shardflow

SIZE = 96  # pixels of the net's input: enough to distinguish the scenes, and fast on a CPU
CROP = (0.3, 1.0)  # area of a random crop, as a share of the picture: in smaller crops the scenes look alike
BATCH = 32
AUGMENTATION = v2.ColorJitter(brightness=0.3, contrast=0.3, saturation=0.3)  # after the crop


class Epoch(NamedTuple):
    """The result of one epoch: its number from 1, mean loss, accuracies in 0 … 1, and training throughput.

    The training accuracy is measured on the augmented images during the epoch.
    """

    number: int
    loss: float
    train_accuracy: float
    val_accuracy: float | None
    images_per_s: float


class Net(nn.Module):
    """Four strided convolutions, global average pooling, and a linear layer; mean and std are per channel, 0 … 1."""

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


def train(
    url: str | os.PathLike[str],
    *,
    split: str,
    val_split: str | None,
    epochs: int,
    workers: int | None = None,
    limit: int | None = None,
) -> Iterator[Epoch]:
    """Train a new net on up to `limit` samples of a labelled dataset, and yield the result of each epoch."""
    dataset = shardflow.open(url)
    batch_size = min(BATCH, limit or BATCH, len(dataset[split]))
    loader = shardflow.Loader(
        url,
        split=split,
        batch_size=batch_size,
        decoder=shardflow.decoders.RandomResizedCrop(SIZE, scale=CROP),
        transform=AUGMENTATION,
        shuffle=True,
        num_workers=workers,
        limit=limit,
    )
    val_loader = val_split and shardflow.Loader(
        url,
        split=val_split,
        batch_size=BATCH,
        decoder=shardflow.decoders.CenterCrop(SIZE),
        shuffle=False,
        tail="short",
        num_workers=workers,
        limit=limit,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Net(len(dataset.classes or ()), dataset.manifest.mean or (0.5,) * 3, dataset.manifest.std or (0.25,) * 3)
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=4e-3, total_steps=max(1, epochs * len(loader)))

    def step(loss: torch.Tensor) -> None:
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()

    for number in range(1, epochs + 1):
        started = time.perf_counter()
        loss, train_accuracy = _run_epoch(net, loader, step)
        rate = len(loader) * batch_size / (time.perf_counter() - started)
        yield Epoch(number, loss, train_accuracy, _run_epoch(net, val_loader)[1] if val_loader else None, rate)


def _run_epoch(
    net: nn.Module, loader: shardflow.Loader, step: Callable[[torch.Tensor], None] | None = None
) -> tuple[float, float]:
    """Run one epoch, with a training step per batch if `step` is given; return the mean loss and the accuracy."""
    net.train(step is not None)
    loss_sum, correct, seen = 0.0, 0, 0
    with torch.set_grad_enabled(step is not None), _half_the_threads():
        for images, labels in loader:
            logits = net(images)
            loss = F.cross_entropy(logits, labels, label_smoothing=0.05)
            if step is not None:
                step(loss)
            loss_sum += loss.item()
            correct += int((logits.argmax(1) == labels).sum())
            seen += len(labels)
    return loss_sum / len(loader), correct / seen


@contextlib.contextmanager
def _half_the_threads() -> Iterator[None]:
    """Leave half of the cores to the loader's workers.

    The threads of an operation spin while they wait for each other; if a worker occupies the core of one thread, all
    other threads burn CPU time. On two busy cores the net runs ten times as fast with one thread as with two.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before // 2))
    try:
        yield
    finally:
        torch.set_num_threads(before)
