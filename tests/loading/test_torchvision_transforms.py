"""Transforms of torchvision that cannot take decoded images."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchvision import models
from torchvision import transforms as v1
from torchvision.transforms import v2

import shardflow
from shardflow.decoders import Image
from shardflow.errors import ConfigError
from shardflow.loading.torchvision_transforms import refuse_unfit
from tests.helpers.making import make_dataset

MEAN = [0.5, 0.5, 0.5]
FLOATS = v2.ToDtype(torch.float32, scale=True)
FAIL = {
    "ToTensor": [v1.ToTensor(), v1.Compose([v1.ColorJitter(0.1), v1.ToTensor(), v1.Normalize(MEAN, MEAN)])],
    "PILToTensor": [v1.PILToTensor()],
    "Normalize": [
        v2.Normalize(MEAN, MEAN),
        v2.Compose([v2.Compose([v2.ToImage()]), v2.RandomErasing(), v1.Normalize(MEAN, MEAN)]),
        nn.Sequential(v2.ColorJitter(0.1), v2.Normalize(MEAN, MEAN)),
    ],
}
WORK: list[Any] = [
    v1.ColorJitter(0.1),
    v1.Compose([v1.ToPILImage(), v1.ToTensor(), v1.Normalize(MEAN, MEAN)]),
    v2.Compose([FLOATS, v2.Normalize(MEAN, MEAN)]),
    v2.Compose([v2.RandomApply([FLOATS], p=1), v2.Normalize(MEAN, MEAN)]),
    v2.Compose([lambda image: image.float(), v2.Normalize(MEAN, MEAN)]),
    v2.Compose([models.ResNet18_Weights.DEFAULT.transforms(), v2.Normalize(MEAN, MEAN)]),
]


@pytest.mark.parametrize("name", FAIL)
def test_transforms_that_fail(name: str) -> None:
    """What fails for every image is refused, with the transforms to write; and it does fail."""
    for transform in FAIL[name]:
        with pytest.raises(ConfigError, match=rf"{name}.*uint8 tensors.*v2\.ToDtype"):
            refuse_unfit(Image(), [transform], ())
        with pytest.raises(TypeError):
            transform(torch.zeros(3, 8, 8, dtype=torch.uint8))


def test_a_conversion_to_floats_that_does_nothing(recwarn: pytest.WarningsRecorder) -> None:
    """v2's ToTensor, which makes floats of PIL images only, is refused unless it gets these."""
    to_tensor = v2.ToTensor()
    assert to_tensor(torch.zeros(3, 8, 8, dtype=torch.uint8)).dtype == torch.uint8
    with pytest.raises(ConfigError, match=r"ToTensor.*uint8 tensors.*v2\.ToDtype"):
        refuse_unfit(Image(), v2.Compose([v2.ColorJitter(0.1), to_tensor]), ())
    refuse_unfit(Image(), v2.Compose([v2.ToPILImage(), to_tensor]), ())
    assert "deprecated" in str(recwarn.pop().message)


def test_transforms_that_work() -> None:
    """What may work is not refused; and it does work."""
    for transform in WORK:
        refuse_unfit(Image(), transform, ())
        transform(torch.zeros(3, 300, 300, dtype=torch.uint8))


def test_of_a_loader(tmp_path: Path) -> None:
    """A loader refuses them when it is made; with annotations, all of torchvision's v1."""
    dataset = make_dataset(tmp_path / "set", [2])
    with pytest.raises(ConfigError, match="ToTensor"):
        shardflow.Loader(dataset, batch_size=1, transform=v1.ToTensor())
    with pytest.raises(ConfigError, match=r"ColorJitter of torchvision\.transforms .*'boxes'"):
        refuse_unfit(Image(), v1.ColorJitter(0.1), ("boxes",))
    refuse_unfit(Image(), v2.ColorJitter(0.1), ("boxes",))


def test_floats_that_are_not_scaled(caplog: pytest.LogCaptureFixture) -> None:
    """Values up to 255 that `Normalize` takes for 0 … 1 get a warning, as nothing else shows them."""
    for transform in (
        v2.Compose([FLOATS, v2.Normalize(MEAN, MEAN)]),
        v2.Compose([v2.ToDtype(torch.float32), v2.Normalize([128.0] * 3, [64.0] * 3)]),
    ):
        refuse_unfit(Image(), transform, ())
        assert not caplog.text
    refuse_unfit(Image(), v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32), v2.Normalize(MEAN, MEAN)]), ())
    assert "ToDtype without scale=True leaves values up to 255" in caplog.text


class Turning:
    """A pipeline of Albumentations with the channels moved, as it takes them."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """The image."""
        return torch.from_numpy(self.pipeline(image=image.permute(1, 2, 0).numpy())["image"]).permute(2, 0, 1)


def test_albumentations_takes_other_axes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A function that gives a tensor's axes to Albumentations, or does not seed it, warns; alone it is refused.

    On [3, H, W] a vertical flip swaps red and blue, without an error.
    """
    dataset = make_dataset(tmp_path / "set", [4])
    blur = importlib.import_module("albumentations").GaussianBlur(p=1)

    def unturned(image: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(blur(image=image.numpy())["image"])

    def turned(image: torch.Tensor) -> torch.Tensor:
        return v2.functional.pil_to_tensor(
            v2.functional.to_pil_image(blur(image=np.moveaxis(image.numpy(), 0, -1))["image"])
        )

    options = {"batch_size": 2, "num_workers": 0, "decoder": Image()}
    for transform in (Turning(blur), turned, v2.Compose([v2.RandomInvert(), Turning(blur)])):
        shardflow.Loader(dataset, transform=transform, **options)
        assert [record.getMessage() for record in caplog.records] == [
            "GaussianBlur of Albumentations draws from its own generators, which repeat in workers; seed it for each "
            "image, as `Keyed` in examples/albumentations_transform.py does"
        ]
        caplog.clear()

    def seeded(image: torch.Tensor) -> torch.Tensor:
        blur.set_random_seed(int(np.random.randint(2**31)))
        return turned(image)

    shardflow.Loader(dataset, transform=seeded, **options)
    assert not caplog.text
    for transform in (unturned, v2.Compose([v2.RandomInvert(), v2.Lambda(unturned)])):
        shardflow.Loader(dataset, transform=transform, **options)
        assert (
            "GaussianBlur of Albumentations takes arrays [H, W, 3], and images come as tensors [3, H, W]; wrap"
            in caplog.text
        )
        caplog.clear()
    with pytest.raises(ConfigError, match=r"GaussianBlur of Albumentations takes arrays .*Keyed"):
        shardflow.Loader(dataset, transform=blur, **options)
