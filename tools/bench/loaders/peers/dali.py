"""NVIDIA DALI's CPU pipeline with its webdataset reader, on the very shards that shardflow packed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from . import Start
from .recipe import BATCH, BUFFER, MEAN, SIZE, STD, WORKERS
from .shardflow import prepare as prepare

_DIGITS = 12


@pipeline_def(batch_size=BATCH, num_threads=WORKERS, device_id=None, prefetch_queue_depth=2, seed=0)
def _pipeline(shards: list[str], crop_while_decoding: bool) -> Any:
    files, classes = fn.readers.webdataset(
        paths=shards,
        ext=["jpg", "cls"],
        missing_component_behavior="error",
        random_shuffle=True,
        initial_fill=BUFFER,
        pad_last_batch=True,
        name="reader",
    )
    if crop_while_decoding:
        images = fn.decoders.image_random_crop(files, device="cpu", output_type=types.RGB)
        images = fn.resize(images, size=(SIZE, SIZE), antialias=True)
    else:
        images = fn.decoders.image(files, device="cpu", output_type=types.RGB)
        images = fn.random_resized_crop(images, size=(SIZE, SIZE), antialias=True)
    images = fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout="CHW",
        mirror=fn.random.coin_flip(),
        mean=[255 * value for value in MEAN],
        std=[255 * value for value in STD],
    )
    return images, fn.pad(classes, axes=[0], shape=[_DIGITS], fill_value=ord(" "))


def open_loader(data: Path, variant: str) -> Start:
    """`variant` is "full", or "crop" to decode only what the crop needs."""
    shards = sorted(map(str, (data / "packed" / "train").glob("*.tar")))
    loader = DALIGenericIterator(
        _pipeline(shards, variant == "crop"),
        ["images", "labels"],
        reader_name="reader",
        last_batch_policy=LastBatchPolicy.PARTIAL,
        auto_reset=True,
    )

    def epoch() -> Iterator[tuple[torch.Tensor, list[int]]]:
        for (batch,) in loader:
            yield batch["images"], [int(bytes(label)) for label in batch["labels"].numpy()]

    return epoch
