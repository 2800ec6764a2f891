"""Megatron Energon, on the very shards that shardflow packed, with Energon's own index beside them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from megatron import energon
from megatron.energon import stateless

from . import Start
from .augmentations import AUGMENTATIONS
from .recipe import BATCH, BUFFER, WORKERS

SAMPLES_PER_SEQUENCE = 100


def prepare(pictures: Path, data: Path) -> None:
    """Index the shards, which lie in `data / "packed"` already."""
    del pictures
    command = [
        *(str(Path(sys.executable).with_name("energon")), "prepare", str(data / "packed"), "--non-interactive"),
        *("--split-parts", r"train:train/.*\.tar", "--sample-type", "ImageClassificationSample"),
        *("--field-map", '{"image": "jpg", "label": "cls"}', "--num-workers", str(WORKERS)),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class Encoder(energon.DefaultTaskEncoder):
    """Augments the JPEG bytes and makes batches of them."""

    decoder = None  # the bytes as they are

    def __init__(self, variant: str) -> None:
        super().__init__()
        self._augmentation = AUGMENTATIONS[variant]

    @stateless
    def encode_sample(self, sample: energon.ImageClassificationSample) -> Any:
        """Return image and number."""
        return self._augmentation(sample.image), int(sample.label)

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        """Return stacked images and the numbers."""
        images, numbers = zip(*samples, strict=True)
        return torch.stack(images), numbers


def open_loader(data: Path, variant: str) -> Start:
    """`variant` names the augmentation."""
    config = energon.WorkerConfig(rank=0, world_size=1, num_workers=WORKERS)
    dataset = energon.get_train_dataset(
        data / "packed",
        worker_config=config,
        batch_size=BATCH,
        shuffle_buffer_size=BUFFER,
        max_samples_per_sequence=SAMPLES_PER_SEQUENCE,
        task_encoder=Encoder(variant),
        repeat=False,
    )
    loader = energon.get_savable_loader(dataset)
    return lambda: iter(loader)
