"""A real training step on real ranks, small enough for tests: DDP, one linear layer in double precision."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import shardflow

SIZES = [20, 9, 31, 7]
TOTAL = sum(SIZES)
"""A prime number, so that no world size and no batch size divides it."""


class Step(NamedTuple):
    """What a rank saw in a step: the labels, which name the samples, and which of them are valid."""

    labels: list[int]
    valid: list[bool]


def make_loader(url: Path, **options: Any) -> shardflow.Loader:
    """A loader of small random crops whose batches have images, labels and the mask of valid samples."""
    options = {
        "shuffle": shardflow.Shuffle(buffer=16),
        "num_workers": 0,
        "fields": ("image", "label", "valid"),
        **options,
    }
    return shardflow.Loader(url, decoder=shardflow.decoders.RandomResizedCrop(8), **options)


def make_net() -> nn.Module:
    """A fresh net, always with the same weights."""
    torch.manual_seed(0)
    return nn.Linear(3 * 8 * 8, TOTAL, dtype=torch.float64)


def train(loader: shardflow.Loader, net: nn.Module) -> Iterator[Step]:
    """Train through the rest of the loader's epoch and yield what this rank saw in each step, once it is done.

    The loss is the mean over the global batch, whatever part of it a rank has. A rank without a sample takes part with
    a sum over nothing, so that its gradients are zeros and not missing.
    """
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    model = DistributedDataParallel(net) if dist.is_initialized() else net
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
    for images, labels, valid in loader:
        everywhere = valid.sum()
        if dist.is_initialized():
            dist.all_reduce(everywhere)
        losses = F.cross_entropy(model(images.flatten(1).double() / 255), labels, reduction="none")
        optimiser.zero_grad()
        ((losses * valid).sum() * world_size / everywhere).backward()
        optimiser.step()
        yield Step(labels.tolist(), valid.tolist())


def seen(steps: list[Step]) -> list[int]:
    """The valid labels of all steps."""
    return [label for step in steps for label, valid in zip(step.labels, step.valid, strict=True) if valid]
