"""Train with Lightning's Trainer, whose dataloaders are the loaders themselves.

    python examples/train_lightning.py photos256 --folder run --devices 2
    python examples/train_lightning.py photos256 --folder run --devices 2 --resume run/last.ckpt

The second command continues from the last checkpoint of the first, also in the middle of an epoch: Lightning saves the
`state_dict` of the training dataloader.

- `DataModule` makes the loaders in `train_dataloader` and `val_dataloader`, which Lightning calls when
  torch.distributed knows the ranks. A loader that was made before would read everything on every rank.
- Lightning does not insert its samplers, because these are not torch DataLoaders.
- Validation reads every sample once, and adds up counts: with a short last batch, means of ranks would not be exact.
- Lightning counts the batches of an epoch. So resuming in the middle of an epoch takes the same number of devices and
  the same batch size; at its end, both may change.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import lightning as L  # noqa: N812 - everybody's name for it
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from lightning.pytorch.callbacks import ModelCheckpoint

import shardflow
from net import Net
from shardflow.interop.lightning import DataModule


class Classifier(L.LightningModule):
    """The net, its loss, and an exact top-1 over all ranks."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.net = Net(classes)
        self.counts = {"right": 0, "samples": 0}

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:  # noqa: ARG002
        """Return the loss of a batch."""
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)

    def on_validation_epoch_start(self) -> None:
        """Start counting."""
        self.counts = {"right": 0, "samples": 0}

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> None:  # noqa: ARG002
        """Count what the net gets right; a batch may be empty."""
        images, labels = batch
        self.counts["right"] += int((self.net(images).argmax(1) == labels).sum())
        self.counts["samples"] += len(labels)

    def on_validation_epoch_end(self) -> None:
        """Add up the counts of all ranks."""
        right, samples = (
            int(self.trainer.strategy.reduce(torch.tensor(count, device=self.device), reduce_op="sum"))
            for count in self.counts.values()
        )
        if not self.trainer.sanity_checking:
            self.log("top1", right / samples, sync_dist=True)
            self.print(f"epoch {self.current_epoch}, step {self.global_step}: top-1 {right} of {samples} samples")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimiser."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="path or URL of a labelled dataset with the splits train and val")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument(
        "--stop-after",
        type=int,
        default=-1,
        metavar="STEPS",
        help="end early; resume from an earlier checkpoint, because Lightning counts this epoch as finished",
    )
    parser.add_argument("--batch-size", type=int, default=32, help="samples per rank and step")
    parser.add_argument("--size", type=int, default=64, help="height and width of the crops in pixels")
    parser.add_argument("--workers", type=int, default=None, help="worker processes per rank")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("run"), help="where checkpoints go")
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--resume", type=Path, metavar="CHECKPOINT")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    trainer = L.Trainer(
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=arguments.devices,
        max_epochs=arguments.epochs,
        max_steps=arguments.stop_after,
        callbacks=ModelCheckpoint(
            arguments.folder,
            filename="{step}",
            every_n_train_steps=arguments.save_every,
            save_last=True,
            enable_version_counter=False,
        ),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    photos = DataModule(
        arguments.dataset, size=arguments.size, batch_size=arguments.batch_size, num_workers=arguments.workers
    )
    classes = shardflow.open(arguments.dataset).classes or ()
    trainer.fit(Classifier(len(classes)), photos, ckpt_path=arguments.resume)


if __name__ == "__main__":
    main()
