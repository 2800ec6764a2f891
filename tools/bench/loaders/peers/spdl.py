"""SPDL: a pipeline of threads. A thread decodes and augments a batch at a time, which costs less than single images."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from spdl.pipeline import PipelineBuilder

from . import Start
from .augmentations import AUGMENTATIONS
from .imagefolder import prepare as prepare
from .recipe import BATCH, WORKERS


def open_loader(data: Path, variant: str) -> Start:
    """`variant` names the augmentation."""
    augmentation = AUGMENTATIONS[variant]
    paths = sorted(data.rglob("*.jpg"))

    def batch(chosen: list[Path]) -> tuple[torch.Tensor, list[int]]:
        return torch.stack([augmentation(path.read_bytes()) for path in chosen]), [int(path.stem) for path in chosen]

    def epoch() -> Iterator[Any]:
        random.shuffle(paths)
        builder = PipelineBuilder().add_source(paths).aggregate(BATCH).pipe(batch, concurrency=WORKERS).add_sink(2)
        pipeline = builder.build(num_threads=WORKERS, max_failures=0)
        with pipeline.auto_stop():
            yield from pipeline

    return epoch
