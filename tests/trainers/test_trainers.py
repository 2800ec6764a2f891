"""Other projects' trainers, in their current releases, on the snippets that docs/trainers.md shows."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shardflow
from shardflow.errors import ConfigError, ResumeMismatchError
from tests.helpers.diffs import diff_below, side
from tests.helpers.making import make_dataset

from .conftest import CLASSES


class Net(nn.Module):
    """A net that learns colours in a few steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        out: torch.Tensor = self.layers(x)
        return out


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # timm leaves its files open
def test_timm_reads_shards_as_it_reads_folders(photos: Path, packed: Path) -> None:
    """timm's loader on a reader of the shards has the pictures of its folder reader, and trains as well."""
    from timm.data import ImageDataset, create_loader

    names: dict[str, Any] = {}
    exec("".join(side(hunk, "+") for hunk in diff_below("docs/trainers.md", "timm")), names)

    def train(dataset: Any) -> tuple[float, set[bytes]]:
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        options = {"input_size": (3, 32, 32), "batch_size": 8, "device": torch.device("cpu"), "use_prefetcher": False}
        loader = create_loader(dataset, is_training=True, num_workers=1, persistent_workers=False, **options)
        for images, labels in itertools.chain.from_iterable(itertools.repeat(loader, 4)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
        loader = create_loader(dataset, num_workers=0, persistent_workers=False, **options)
        right, seen = 0, set()
        net.eval()
        with torch.inference_mode():
            for images, labels in loader:
                right += int((net(images).argmax(1) == labels).sum())
                seen |= {image.numpy().tobytes() for image in images}
        return right / len(dataset), seen

    folder, folder_seen = train(ImageDataset(str(photos / "train")))
    shards, shards_seen = train(names["create_dataset"]("", packed, "train"))
    assert shards_seen == folder_seen
    assert folder == shards == 1.0


def named(images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a batch as models of transformers take it."""
    return {"pixel_values": images / 255, "labels": labels}


class Classifier(nn.Module):
    """A model as transformers has them, which notes its batches, and acts differently where it is evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Dropout(0.2), nn.Linear(3, 60))
        self.seen: list[list[int]] = []

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return loss and logits."""
        if self.training:
            self.seen.append(labels.tolist())
        logits = self.net(pixel_values.mean((2, 3)))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class HuggingFace:
    """Runs of transformers' Trainer with the helper that the page shows, into one folder."""

    def __init__(self, dataset: Path, folder: Path) -> None:
        self.dataset, self.folder = dataset, folder

    def loader(self, split: str, batch_size: int = 7, **options: Any) -> shardflow.Loader:
        """Return a loader of small crops."""
        options = {"num_workers": 0, "batch_transform": named, **options}
        return shardflow.Loader(self.dataset, split=split, batch_size=batch_size, **options)

    def trainer(self, *, stop: int = -1, batch_size: int = 7, seed: int = 0, **arguments: Any) -> Any:
        """Return a trainer, which ends after so many steps as an interruption would."""
        from transformers import TrainerCallback, TrainingArguments

        from shardflow.interop.transformers import Trainer

        class Stop(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002
                if state.global_step == stop:
                    control.should_save = control.should_training_stop = True
                return control

        torch.manual_seed(0)
        options = {"save_strategy": "no", "logging_steps": 1, "num_train_epochs": 3, **arguments}
        options |= {"report_to": [], "use_cpu": True, "disable_tqdm": True, "learning_rate": 0.1}
        return Trainer(
            Classifier(),
            TrainingArguments(str(self.folder), per_device_train_batch_size=batch_size, **options),
            train_dataset=self.loader("train", batch_size, seed=seed, decoder=shardflow.decoders.RandomResizedCrop(8)),
            eval_dataset=self.loader("val", shuffle=False, decoder=shardflow.decoders.CenterCrop(8)),
            compute_metrics=lambda found: {"top1": (found.predictions.argmax(1) == found.label_ids).mean()},
            callbacks=[Stop()],
        )


@pytest.fixture
def hugging_face(tmp_path: Path) -> HuggingFace:
    """Runs over 60 samples: 8 batches of 7 an epoch."""
    return HuggingFace(make_dataset(tmp_path / "set", {"train": [20, 9, 31], "val": [11, 6]}), tmp_path / "run")


@pytest.mark.filterwarnings("ignore:.*logits.*dimension:UserWarning")
@pytest.mark.parametrize(
    ("accumulation", "stops"),
    [(1, (5, 13)), (1, (8, 16)), (3, (2, 4)), (3, (3, 8))],
    ids=["in an epoch", "at its end", "accumulated", "accumulated, at its end"],
)
def test_transformers_trainer_resumes_by_its_usual_call(
    hugging_face: HuggingFace, accumulation: int, stops: tuple[int, int]
) -> None:
    """A Trainer that was stopped goes on with the batches, the losses and the weights of a run that was not.

    By True and by a path, which both find the checkpoint; with accumulated gradients, of which the last are fewer.
    """
    options = {"gradient_accumulation_steps": accumulation}
    whole = hugging_face.trainer(**options)
    whole.train()
    assert len(whole.model.seen) == 3 * 8
    hugging_face.folder = hugging_face.folder.with_name("stopped")
    stopped = hugging_face.trainer(stop=stops[0], **options)
    stopped.train()
    again = hugging_face.trainer(stop=stops[1], **options)
    again.train(resume_from_checkpoint=True)
    resumed = hugging_face.trainer(**options)
    resumed.train(resume_from_checkpoint=str(hugging_face.folder / f"checkpoint-{stops[1]}"))
    assert stopped.model.seen + again.model.seen + resumed.model.seen == whole.model.seen
    assert all(trainer.model.seen for trainer in (stopped, again, resumed))
    figures = [
        [(log["epoch"], log["loss"]) for log in run.state.log_history if "loss" in log] for run in (whole, resumed)
    ]
    assert figures[0] == figures[1]
    torch.testing.assert_close(resumed.model.net[1].weight, whole.model.net[1].weight, rtol=0, atol=0)


def test_transformers_arguments_without_an_effect(
    hugging_face: HuggingFace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A collator, and a batch size that is not the loader's, bring a warning each; the right size brings none."""
    from transformers import TrainingArguments

    from shardflow.interop.transformers import Trainer

    hugging_face.trainer(batch_size=7)
    assert "batch" not in caplog.text
    arguments = TrainingArguments(str(tmp_path / "run"), per_device_train_batch_size=8, report_to=[], use_cpu=True)
    Trainer(Classifier(), arguments, train_dataset=hugging_face.loader("train"), data_collator=list)
    assert "data_collator is not called for the batches of a loader; use its batch_transform" in caplog.text
    assert "the loader's batch size, 7, applies, not per_device_train_batch_size, which is 8" in caplog.text


def test_transformers_trainer_evaluates_each_sample_once(hugging_face: HuggingFace) -> None:
    """Accuracy and labels of `evaluate` and `predict` are those of a loop over all samples, in order."""
    trainer = hugging_face.trainer(max_steps=2)
    trainer.train()
    model, right = trainer.model.eval(), 0
    with torch.inference_mode():
        for image, label in hugging_face.loader(
            "val", 1, batch_transform=None, shuffle=False, decoder=shardflow.decoders.CenterCrop(8)
        ):
            right += int(model(**named(image, label))["logits"].argmax() == label)
    predicted = trainer.predict(trainer.eval_dataset)
    assert predicted.label_ids.tolist() == list(range(17))
    assert trainer.evaluate()["eval_top1"] == predicted.metrics["test_top1"] == right / 17
    assert trainer.evaluate({"again": trainer.eval_dataset})["eval_again_top1"] == right / 17
    uneven = hugging_face.loader("val", shuffle=False, group=(0, 2))
    for evaluated in (trainer.evaluate, trainer.predict):
        with pytest.raises(ConfigError, match=r"17 samples .* 2 ranks; .* tail='pad'"):
            evaluated(uneven)


def test_transformers_trainer_refuses_to_resume_elsewhere(hugging_face: HuggingFace) -> None:
    """A checkpoint of other data, of another batch size, or without a loader's state is refused, not started again."""
    hugging_face.trainer(stop=3).train()
    with pytest.raises(ResumeMismatchError, match="seed"):
        hugging_face.trainer(seed=1).train(resume_from_checkpoint=True)
    with pytest.raises(ResumeMismatchError, match="counts 3 batches"):
        hugging_face.trainer(batch_size=14).train(resume_from_checkpoint=True)
    path = hugging_face.folder / "checkpoint-3/trainer_state.json"
    state = json.loads(path.read_text())
    del state["stateful_callbacks"]["LoaderState"]
    path.write_text(json.dumps(state))
    with pytest.raises(ResumeMismatchError, match="ignore_data_skip"):
        hugging_face.trainer().train(resume_from_checkpoint=True)
    afresh = hugging_face.trainer(max_steps=5, ignore_data_skip=True)
    afresh.train(resume_from_checkpoint=True)
    assert len(afresh.model.seen) == 2


def test_torchdata_nodes_resume(tmp_path: Path) -> None:
    """torchdata's nodes keep the loader's state in theirs, and go on exactly, though a node prefetches."""
    from torchdata.nodes import IterableWrapper, Loader, Prefetcher
    from torchdata.nodes.types import Stateful

    dataset = make_dataset(tmp_path / "set", [20, 9, 31])

    def nodes() -> Any:
        loader = shardflow.Loader(dataset, batch_size=7, num_workers=1, decoder=shardflow.decoders.RandomResizedCrop(8))
        assert isinstance(loader, Stateful)
        return Loader(Prefetcher(IterableWrapper(loader), 2))

    def values(batches: Any) -> list[list[int]]:
        return [labels.tolist() for _, labels in batches]

    whole = values(nodes())
    stopped = nodes()
    before = values(itertools.islice(stopped, 3))
    state = json.loads(json.dumps(stopped.state_dict()))
    resumed = nodes()
    resumed.load_state_dict(state)
    assert before + values(resumed) == whole
