from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import shardflow
from shardflow.errors import ConfigError, ResumeMismatchError
from tests.helpers.scripts import FOLDER, run

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own: about loggers, workers and torch

STEPS = 4
"""Batches of 16 in an epoch of 67 samples."""


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example, as a module."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("train_lightning")


@pytest.fixture
def fit(example: Any, dataset: Path) -> Iterator[Callable[..., Any]]:
    """Trains for two epochs with the example's classes and returns what came, recorded by a callback."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    class Recorder(example.L.Callback):  # type: ignore[name-defined,misc]
        """Notes the labels of all batches, and saves a checkpoint at every hook at which Lightning would."""

        def __init__(self, folder: Path | None) -> None:
            self.folder = folder
            self.trained: list[list[int]] = []
            self.validated: list[tuple[bool, int]] = []
            self.weights = torch.empty(0)

        def save(self, trainer: Any, name: str) -> None:
            if self.folder and not trainer.sanity_checking:
                trainer.save_checkpoint(self.folder / f"{trainer.global_step}-{name}.ckpt")

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
            self.trained.append(batch[1].tolist())
            self.save(trainer, "batch")

        def on_validation_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, *args: Any) -> None:  # noqa: ARG002
            self.validated.append((trainer.sanity_checking, len(batch[1])))

        def on_validation_end(self, trainer: Any, module: Any) -> None:  # noqa: ARG002
            self.save(trainer, "validation")

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:  # noqa: ARG002
            self.save(trainer, "epoch")

        def on_train_end(self, trainer: Any, module: Any) -> None:  # noqa: ARG002
            self.weights = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])

    def run_trainer(
        folder: Path | None = None, resume: Path | None = None, data: Any = None, **options: Any
    ) -> Recorder:
        torch.manual_seed(0)
        recorder = Recorder(folder)
        trainer = example.L.Trainer(
            accelerator="cpu",
            max_epochs=2,
            callbacks=[recorder],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **options,
        )
        data = data or example.DataModule(str(dataset), size=16, batch_size=16, num_workers=0)
        trainer.fit(example.Classifier(67), data, ckpt_path=resume)
        return recorder

    yield run_trainer
    torch.set_num_threads(threads)


def test_epochs_and_validations_are_whole(fit: Callable[..., Any]) -> None:
    """Each epoch is a new order of different samples, and a sanity check leaves every validation its 37 samples."""
    found = fit(num_sanity_val_steps=2, val_check_interval=STEPS // 2)
    epochs = [sum(found.trained[start : start + STEPS], []) for start in (0, STEPS)]  # noqa: RUF017
    assert len(found.trained) == 2 * STEPS
    assert [len(set(epoch)) for epoch in epochs] == [16 * STEPS] * 2
    assert epochs[0] != epochs[1]
    assert found.validated == [(True, 16)] * 2 + [(False, 16), (False, 16), (False, 5)] * 4


def test_any_checkpoint_goes_on_exactly(fit: Callable[..., Any], tmp_path: Path) -> None:
    """From a checkpoint of any batch, validation or epoch end, Lightning goes on with the batches of the whole run and
    ends in its weights."""
    whole = fit(tmp_path)
    checkpoints = sorted(tmp_path.iterdir())
    assert len(checkpoints) == 2 * STEPS + 2 + 2
    for checkpoint in checkpoints:
        resumed = fit(resume=checkpoint)
        step = int(checkpoint.name.split("-")[0])
        assert resumed.trained == whole.trained[step:], checkpoint.name
        if resumed.trained:
            assert torch.equal(resumed.weights, whole.weights), checkpoint.name


def test_another_batch_size_within_an_epoch_is_refused(
    fit: Callable[..., Any], example: Any, dataset: Path, tmp_path: Path
) -> None:
    """Batches of 8 in place of 16 are refused where Lightning's count would be wrong, and taken at an epoch's end."""
    fit(tmp_path)
    refused = {2: "counts 2 batches of the epoch, the loader's state 4", 4: "counts 4 batches of the epoch"}
    for step, message in refused.items():
        data = example.DataModule(str(dataset), size=16, batch_size=8, num_workers=0)
        with pytest.raises(ResumeMismatchError, match=message):
            fit(resume=tmp_path / f"{step}-batch.ckpt", data=data)
    data = example.DataModule(str(dataset), size=16, batch_size=8, num_workers=0)
    assert len(fit(resume=tmp_path / "4-epoch.ckpt", data=data).trained) == 67 // 8


def erase(image: torch.Tensor) -> torch.Tensor:
    """Leave nothing of an image, as an augmentation would of a part."""
    return torch.zeros_like(image)


def triple(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return a batch as only training takes it."""
    return images, labels, 3


@pytest.mark.parametrize("purpose", ["val", "test", "predict"])
def test_evaluation_has_clean_pixels_and_each_sample_once(example: Any, dataset: Path, purpose: str) -> None:
    """Transforms, weights and tails of training stay there; evaluation has the centre crops of all, in order."""
    options = {"size": 16, "batch_size": 8, "num_workers": 0, "test": "val", "predict": "val"}
    training = {"transform": erase, "batch_transform": triple, "tail": "drop", "samples_per_epoch": 16}
    training |= {"sampler": shardflow.samplers.Weighted(1), "decoder": shardflow.decoders.RandomResizedCrop(12)}
    data = example.DataModule(dataset, **options, **training, seed=3)
    first = next(iter(data.train_dataloader()))
    assert (first[0].shape[-1], int(first[0].max()), first[2]) == (12, 0, 3)
    found = list(getattr(data, f"{purpose}_dataloader")())
    assert torch.cat([labels for _, labels in found]).tolist() == list(range(37))
    plain = shardflow.Loader(
        dataset, split="val", batch_size=8, decoder=shardflow.decoders.CenterCrop(16), shuffle=False, num_workers=0
    )
    assert torch.equal(torch.cat([images for images, _ in found]), torch.cat([images for images, _ in plain]))


def test_evaluation_has_a_decoder_and_transforms_of_its_own(example: Any, dataset: Path) -> None:
    """`val_decoder`, `val_transform` and `val_batch_transform` are those of evaluation, and not of training."""
    evaluation = {"val_decoder": shardflow.decoders.CenterCrop(24), "val_transform": erase}
    options = {"size": 16, "batch_size": 8, "num_workers": 0, "val_batch_transform": triple}
    data = example.DataModule(dataset, **options, **evaluation)
    images, _, three = next(iter(data.val_dataloader()))
    assert (images.shape[-1], int(images.max()), three) == (24, 0, 3)
    images, _ = next(iter(data.train_dataloader()))
    assert images.shape[-1] == 16
    assert int(images.max()) > 0


def test_wrong_options_are_refused_at_once(example: Any, dataset: Path) -> None:
    """An argument that loaders do not have is an error of the data module, not of the trainer later."""
    for option, remedy in {"batch_sizes": "batch_size", "drop_last": "tail='drop'", "split": "train, val"}.items():
        with pytest.raises(ConfigError, match=f"there is no argument '{option}'.*{remedy}"):
            example.DataModule(dataset, **{option: 16})


def test_a_mix_is_a_dataloader_too(fit: Callable[..., Any], dataset: Path, tmp_path: Path) -> None:
    """A mix of datasets trains under Lightning, each epoch its steps, and goes on from any checkpoint."""

    def mix() -> shardflow.Mix:
        options = {"batch_size": 4, "num_workers": 0, "decoder": shardflow.decoders.CenterCrop(16)}
        return shardflow.Mix([(dataset, 2), (shardflow.Loader(dataset, split="val", **options), 1)], **options)

    whole = fit(tmp_path, data=mix())
    assert len(whole.trained) == 2 * len(mix())
    for checkpoint in sorted(tmp_path.iterdir())[::4]:
        step = int(checkpoint.name.split("-")[0])
        assert fit(resume=checkpoint, data=mix()).trained == whole.trained[step:], checkpoint.name


def test_the_command_line_goes_on_with_two_ranks(dataset: Path, tmp_path: Path) -> None:
    """Two ranks share each epoch and each validation, also when the run goes on from a checkpoint mid-epoch."""
    options = [dataset, "--folder", tmp_path, "--devices", 2, "--batch-size", 4, "--size", 16]
    assert "top-1" not in run("train_lightning.py", *options, "--stop-after", 5, "--save-every", 3)
    printed = run("train_lightning.py", *options, "--resume", tmp_path / "step=3.ckpt").splitlines()
    assert [line.split(":")[0] for line in printed if "top-1" in line] == ["epoch 0, step 8", "epoch 1, step 16"]
    assert all(line.endswith(" of 37 samples") for line in printed if "top-1" in line)
