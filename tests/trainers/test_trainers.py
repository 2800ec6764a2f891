"""Other projects' trainers, in their current releases, on the snippets that docs/migration.md shows."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset as wds
from PIL import Image
from torch import nn

import shardflow
from tests.helpers.making import make_dataset

CLASSES = 3


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures in folders by class, which a net tells apart by their colour."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for label, number in itertools.product(range(CLASSES), range(24)):
        pixels = rng.integers(0, 120, (40, 40, 3), dtype=np.uint8)
        pixels[..., label] += 100
        path = root / f"train/class{label}/{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, quality=95)
    return root


@pytest.fixture(scope="module")
def packed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, packed as they are."""
    root = tmp_path_factory.mktemp("packed") / "set"
    shardflow.pack(photos / "train", root, preset="original", shard_samples=10, workers=1)
    return root


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
    from timm.data.readers.reader import Reader

    class Shards(Reader):
        def __init__(self, url: Path) -> None:
            self.split = shardflow.open(url)["train"]

        def __len__(self) -> int:
            return len(self.split)

        def __getitem__(self, index: int) -> Any:
            sample = self.split[index]
            return io.BytesIO(sample["jpg"]), int(sample["cls"])

        def _filename(self, index: int, basename: bool = False, absolute: bool = False) -> str:  # noqa: ARG002
            return str(self.split[index]["__key__"])

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
        for images, labels in loader:
            right += int((net(images).argmax(1) == labels).sum())
            seen |= {image.numpy().tobytes() for image in images}
        return right / len(dataset), seen

    folder, folder_seen = train(ImageDataset(str(photos / "train")))
    shards, shards_seen = train(ImageDataset(str(packed), reader=Shards(packed)))
    assert shards_seen == folder_seen
    assert folder == shards == 1.0


def test_transformers_trainer_resumes_in_an_epoch(tmp_path: Path) -> None:
    """Hugging Face's Trainer, stopped in the middle of an epoch, goes on with the batches and weights of one run."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    dataset = make_dataset(tmp_path / "set", [20, 9, 31])

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.seen = nn.Linear(3, 60), list[list[int]]()

        def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            self.seen.append(labels.tolist())
            return {"loss": nn.functional.cross_entropy(self.net(pixel_values.float().mean((2, 3)) / 255), labels)}

    class ShardTrainer(Trainer):
        def get_train_dataloader(self) -> Any:
            crop = shardflow.decoders.RandomResizedCrop(8)
            loader = shardflow.Loader(dataset, batch_size=7, num_workers=1, decoder=crop, batch_transform=named)
            if self.args.resume_from_checkpoint:
                loader.load_state_dict(json.loads(Path(self.args.resume_from_checkpoint, "loader.json").read_text()))
            return loader

    class SaveLoader(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, train_dataloader: Any, **_: Any) -> None:  # noqa: ARG002
            path = Path(args.output_dir, f"checkpoint-{state.global_step}", "loader.json")
            path.write_text(json.dumps(train_dataloader.state_dict()))

    class Stop(TrainerCallback):
        def __init__(self, steps: int) -> None:
            self.steps = steps

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002
            control.should_training_stop = state.global_step >= self.steps
            return control

    def run(folder: Path, steps: int, checkpoint: str | None = None) -> Model:
        torch.manual_seed(0)
        model = Model()
        options = {"max_steps": 20, "save_steps": 5, "report_to": [], "use_cpu": True, "disable_tqdm": True}
        arguments = TrainingArguments(
            str(folder),
            resume_from_checkpoint=checkpoint,
            ignore_data_skip=True,
            lr_scheduler_type="constant",
            **options,
        )
        trainer = ShardTrainer(model=model, args=arguments, callbacks=[SaveLoader(), Stop(steps)])
        trainer.train(resume_from_checkpoint=checkpoint)
        return model

    whole = run(tmp_path / "whole", 20)
    stopped = run(tmp_path / "stopped", 6)
    resumed = run(tmp_path / "stopped", 20, str(tmp_path / "stopped/checkpoint-5"))
    assert stopped.seen[:5] + resumed.seen == whole.seen
    torch.testing.assert_close(resumed.net.weight, whole.net.weight, rtol=0, atol=0)


def named(images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a batch as models of transformers take it."""
    return {"pixel_values": images, "labels": labels}


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


def tokenized(images: torch.Tensor, texts: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch as open_clip's models take it."""
    import open_clip

    return images, open_clip.SimpleTokenizer()(list(texts))


def test_open_clip_trains_on_captions(tmp_path: Path, packed: Path) -> None:
    """open_clip's model and loss take a step on batches of images and of captions that its tokenizer has encoded."""
    import open_clip

    with wds.TarWriter(str(tmp_path / "captions.tar")) as tar:
        for number, sample in enumerate(shardflow.open(packed)["train"]):
            tar.write({"__key__": f"{number:04}", "jpg": bytes(sample["jpg"]), "txt": f"a picture of number {number}"})
    shardflow.index(tmp_path / "captions.tar", to=tmp_path / "indexed")
    loader = shardflow.Loader(
        tmp_path / "indexed",
        batch_size=8,
        num_workers=0,
        fields=("image", "txt"),
        decoder=shardflow.decoders.RandomResizedCrop(32),
        batch_transform=tokenized,
    )
    model = open_clip.CLIP(
        16,
        open_clip.CLIPVisionCfg(layers=1, width=64, head_width=32, image_size=32, patch_size=16),
        open_clip.CLIPTextCfg(width=32, heads=2, layers=1),
    )
    loss = open_clip.ClipLoss()
    images, texts = next(iter(loader))
    found = loss(
        **dict(zip(("image_features", "text_features", "logit_scale"), model(images / 255, texts), strict=False))
    )
    found.backward()
    assert texts.shape == (8, 77)
    assert torch.isfinite(found)
