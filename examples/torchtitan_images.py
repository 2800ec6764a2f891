"""The data loader of a TorchTitan trainer: batches for its data-parallel ranks, and a state in its checkpoints.

    Trainer.Config(dataloader=ImageLoader.Config(dataset_path="photos256"), ...)

The trainer builds it with the rank's place among the data-parallel ranks. Its CheckpointManager saves and loads the
state with the model, and a run may resume with any number of ranks. The trainer counts steps, so epochs follow each
other without an end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader

import shardflow


class ImageLoader(BaseDataLoader):
    """Images and labels of a dataset, random crops of one size."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """What a configuration of TorchTitan sets; `dataset_path` is a path or a URL."""

        size: int = 224
        num_workers: int | None = None

    def __init__(
        self, config: Config, *, dp_rank: int, dp_world_size: int, local_batch_size: int, **_unused: Any
    ) -> None:
        self.loader = shardflow.Loader(
            str(config.dataset_path),
            batch_size=local_batch_size,
            decoder=shardflow.decoders.RandomResizedCrop(config.size),
            group=(dp_rank, dp_world_size),
            num_workers=config.num_workers,
        )

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Yield batches of one epoch after the other."""
        while True:
            for images, labels in self.loader:
                yield {"input": images}, labels

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader, the same on all ranks."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where the state was saved."""
        self.loader.load_state_dict(state_dict)
