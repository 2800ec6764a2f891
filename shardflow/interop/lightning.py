"""Lightning: a data module whose loaders are shardflow's."""

from __future__ import annotations

import os
from typing import Any

from shardflow.loading.decoders.center_crop import CenterCrop
from shardflow.loading.decoders.random_resized_crop import RandomResizedCrop
from shardflow.loading.loader import Loader

try:
    from lightning.pytorch import LightningDataModule
except ImportError:  # the older name of the same package
    from pytorch_lightning import LightningDataModule


class DataModule(LightningDataModule):  # type: ignore[misc]  # Lightning is optional, and not looked into
    """The splits of a dataset for Lightning's `Trainer`: random crops to train on, centre crops to evaluate on.

    Lightning asks for the loaders when the ranks are known, and saves the training loader's state in its checkpoints.
    It counts the batches of an epoch itself, so going on in the middle of one takes the same devices and batch size.

    Args:
        url: Path or URL of a dataset.
        size: Height and width of the crops in pixels.
        train, val, test: Names of the splits.
        options: Arguments of every `Loader`: `batch_size`, `num_workers`, `cache`, `storage_options`, …

    Example:
        >>> trainer.fit(model, datamodule=DataModule("photos256", size=224, batch_size=256))  # doctest: +SKIP
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        size: int = 224,
        train: str = "train",
        val: str = "val",
        test: str = "test",
        **options: Any,
    ) -> None:
        super().__init__()
        self.url, self.size, self.options = url, size, options
        self.splits = {"train": train, "val": val, "test": test}

    def train_dataloader(self) -> Loader:
        """Return the loader of shuffled random crops."""
        return Loader(self.url, split=self.splits["train"], decoder=RandomResizedCrop(self.size), **self.options)

    def val_dataloader(self) -> Loader:
        """Return the loader of every sample once, in order."""
        return self._evaluation("val")

    def test_dataloader(self) -> Loader:
        """Return the loader of every sample once, in order."""
        return self._evaluation("test")

    def _evaluation(self, purpose: str) -> Loader:
        return Loader(
            self.url,
            split=self.splits[purpose],
            decoder=CenterCrop(self.size),
            shuffle=False,
            tail="short",
            **self.options,
        )
