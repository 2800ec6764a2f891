"""Lightning: a data module whose loaders are shardflow's."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

from shardflow._validation import check_names
from shardflow._wording import plural
from shardflow.errors import ResumeMismatchError
from shardflow.loading.decoders.decoder import Decoder
from shardflow.loading.decoders.standard_crops import CenterCrop, RandomResizedCrop
from shardflow.loading.loader import ELSEWHERE, Loader
from shardflow.loading.source import Transforms

try:
    from lightning.pytorch import LightningDataModule
except ImportError:  # the older name of the same package
    from pytorch_lightning import LightningDataModule


_TRAINING = ("decoder", "transform", "batch_transform", "sampler", "samples_per_epoch", "shuffle", "tail")
"""Options of the training loader only: evaluation reads each sample once, in order, without augmentation."""


class DataModule(LightningDataModule):  # type: ignore[misc]  # Lightning is optional
    """The splits of a dataset for Lightning's `Trainer`: random crops for training, centre crops for evaluation.

    Lightning creates the loaders once the ranks are known, and saves the training loader's state in its checkpoints. It
    counts batches itself, so resuming within an epoch requires the same number of devices and batch size; others are
    refused by a ResumeMismatchError.

    Args:
        url: Path or URL of a dataset.
        size: Height and width of the default decoders' crops in pixels.
        train, val, test, predict: Names of the splits.
        val_decoder: The decoder for validation, test and prediction; by default `CenterCrop(size)`.
        val_transform, val_batch_transform: `transform` and `batch_transform` for the same three; by default none.
        options: Arguments of the loaders. `decoder`, `transform`, `batch_transform`, `sampler`, `samples_per_epoch`,
            `shuffle` and `tail` apply to training only; all others, such as `batch_size`, to all loaders.

    Raises:
        ConfigError: A loader has no argument of this name.

    Example:
        >>> photos = DataModule("photos256", batch_size=256, transform=v2.RandomErasing())
        >>> trainer.fit(model, datamodule=photos)
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        size: int = 224,
        train: str = "train",
        val: str = "val",
        test: str = "test",
        predict: str = "test",
        val_decoder: Decoder | None = None,
        val_transform: Transforms = None,
        val_batch_transform: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        own = [name for name in inspect.signature(Loader).parameters if name not in ("url", "split")]
        check_names(options, own, ELSEWHERE | {"split": "name the splits with train, val, test and predict"})
        self.url = url
        self.splits = {"train": train, "val": val, "test": test, "predict": predict}
        self._training = {"decoder": RandomResizedCrop(size), "shuffle": True, **options}
        self._evaluation = {name: value for name, value in options.items() if name not in _TRAINING} | {
            "decoder": CenterCrop(size) if val_decoder is None else val_decoder,
            "transform": val_transform,
            "batch_transform": val_batch_transform,
            "shuffle": False,
            "tail": "short",
        }

    def train_dataloader(self) -> Loader:
        """Return the loader for training: shuffled and augmented samples."""
        loader = _TrainLoader(self.url, split=self.splits["train"], **self._training)
        loader.trainer = self.trainer
        return loader

    def val_dataloader(self) -> Loader:
        """Return the loader of every sample once, in order."""
        return Loader(self.url, split=self.splits["val"], **self._evaluation)

    def test_dataloader(self) -> Loader:
        """Return the loader of every sample once, in order."""
        return Loader(self.url, split=self.splits["test"], **self._evaluation)

    def predict_dataloader(self) -> Loader:
        """Return the loader of every sample once, in order."""
        return Loader(self.url, split=self.splits["predict"], **self._evaluation)


class _TrainLoader(Loader):
    """The loader for training, which compares a state that Lightning loads with the batches that Lightning counts."""

    trainer: Any = None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state; see `Loader.load_state_dict`."""
        super().load_state_dict(state)
        if self.trainer is None:
            return
        progress, found = self.trainer.fit_loop.epoch_loop.batch_progress.current, len(self) - self.remaining
        counted = progress.ready
        # At the end of an epoch, Lightning starts the next one at 0, unless it saved the checkpoint in the last batch.
        is_within = self.remaining or progress.completed < counted < found
        if found and counted != found and is_within:
            raise ResumeMismatchError(
                f"Trainer counts {plural(counted, 'batch')} of the epoch, the loader's state {found}; resume with the "
                "batch size and devices of the checkpoint"
            )
