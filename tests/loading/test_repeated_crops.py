from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torchvision
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

import shardflow
from shardflow.decoders import CenterCrop, Decoder, MultiView, RandomResizedCrop
from shardflow.decoders import Image as WholeImage
from shardflow.loading.decoders.repeated_crops import warn_of_repeated_crops
from tests.helpers.folders import image_folder as write_folder
from tests.helpers.making import jpeg

TRAIN = v2.Compose([v2.RandomResizedCrop(32, scale=(0.2, 1.0)), v2.RandomHorizontalFlip(), v2.ColorJitter()])
VAL = v2.Compose([v2.Resize(40), v2.CenterCrop(32)])
WHOLE = "decoder=shardflow.decoders.Image()"


class Wrapped:
    """A transform of the user's own around a pipeline."""

    def __init__(self, pipeline: Callable[..., Any]) -> None:
        self.pipelines = {"train": [pipeline]}

    def __call__(self, image: torch.Tensor) -> Any:
        """The pipeline's image."""
        return self.pipelines["train"][0](image)


def calls_a_global(image: torch.Tensor) -> Any:
    """The image of a pipeline that is a name of the module."""
    return VAL(image)


def warning(caplog: pytest.LogCaptureFixture, decoder: Any, transform: Any, batch: Any = None, **options: Any) -> str:
    """Return the warning for a transform, "" if there is none; there are never two."""
    caplog.clear()
    warn_of_repeated_crops(decoder, transform=transform, batch_transform=batch, **options)
    assert len(caplog.records) <= 1
    return caplog.text


PIPELINES = {
    "v2": (TRAIN, "decoder=shardflow.decoders.RandomResizedCrop(32, scale=(0.2, 1.0)),"),
    "v1": (
        v1.Compose([v1.RandomResizedCrop((32, 32), ratio=(1.0, 1.5)), v1.RandomHorizontalFlip(0.2), v1.ToTensor()]),
        "decoder=shardflow.decoders.RandomResizedCrop(32, ratio=(1.0, 1.5), hflip=0.2),",
    ),
    "not flipped": (v2.RandomResizedCrop(32), "decoder=shardflow.decoders.RandomResizedCrop(32, hflip=0),"),
    "wide": (v2.RandomResizedCrop((32, 64)), None),
    "centre": (VAL, "decoder=shardflow.decoders.CenterCrop(32, resize=40),"),
    "distorted": (v2.Compose([v2.Resize((40, 40)), v2.CenterCrop(32)]), None),
    "too large": (v2.Compose([v2.Resize(40), v2.CenterCrop(48)]), None),
    "padded": (v2.RandomCrop(32, padding=4), None),
    "preset": (torchvision.models.ResNet18_Weights.DEFAULT.transforms(), None),
    "sequential": (torch.nn.Sequential(v2.RandomApply([v2.CenterCrop(32)])), None),
    "function": (calls_a_global, "decoder=shardflow.decoders.CenterCrop(32, resize=40),"),
    "closure": ((lambda pipeline: lambda image: pipeline(image))(VAL), "CenterCrop(32, resize=40),"),
    "method": (Wrapped(VAL).__call__, "CenterCrop(32, resize=40),"),
    "partial": (functools.partial(Wrapped(VAL)), "CenterCrop(32, resize=40),"),
    "in a lambda": (v2.Lambda(lambda image: VAL(image)), "CenterCrop(32, resize=40),"),
}


def of_timm(**options: Any) -> Any:
    """The transform that timm makes; imported here, as the other libraries are, for no other test needs them."""
    return importlib.import_module("timm.data").create_transform(32, **options)


def of_albumentations() -> Any:
    """A pipeline of albumentations."""
    albumentations = importlib.import_module("albumentations")
    crop, flip = albumentations.RandomResizedCrop((32, 32)), albumentations.HorizontalFlip()
    return Wrapped(albumentations.Compose([crop, flip]))


def of_kornia() -> Any:
    """A pipeline of Kornia."""
    kornia = importlib.import_module("kornia.augmentation")
    return kornia.AugmentationSequential(kornia.RandomResizedCrop((32, 32)))


LIBRARIES: dict[str, tuple[Callable[[], Any], str | None]] = {
    "timm": (lambda: of_timm(is_training=True), "decoder=shardflow.decoders.RandomResizedCrop(32),"),
    "timm, evaluation": (lambda: of_timm(crop_pct=0.8), "shardflow.decoders.CenterCrop(32, resize=40),"),
    "albumentations": (of_albumentations, "decoder=shardflow.decoders.RandomResizedCrop(32),"),
    "kornia": (of_kornia, None),
}


@pytest.mark.parametrize("name", [*PIPELINES, *LIBRARIES])
def test_a_pasted_pipeline_is_said_to_crop_twice(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Known croppers are found wherever they are; the decoder that does the same is named as code, if there is one."""
    transform, same = (LIBRARIES[name][0](), LIBRARIES[name][1]) if name in LIBRARIES else PIPELINES[name]
    message = warning(caplog, RandomResizedCrop(), transform, is_default=True)
    assert "cropped twice" in message
    assert WHOLE in message
    if same is None:
        assert "pass decoder" not in message
    else:
        assert same in message


def test_only_what_is_repeated_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A crop after whole images, a flip where nothing was flipped, and sizes after a chosen decoder are right."""
    flip, cut = v2.RandomHorizontalFlip(), v2.RandomCrop(32)
    for decoder, transform in (
        (shardflow.decoders.Image(), TRAIN),
        (shardflow.decoders.Raw(), TRAIN),
        (RandomResizedCrop(32, hflip=0), flip),
        (CenterCrop(32), flip),
        (CenterCrop(40), cut),
        (CenterCrop(40), v2.FiveCrop(32)),
        (RandomResizedCrop(32), v2.Resize(48)),
        (RandomResizedCrop(32), v2.Compose([v2.ColorJitter(), v2.RandomVerticalFlip()])),
        (RandomResizedCrop(32), None),
    ):
        assert not warning(caplog, decoder, transform), (decoder, transform)
    for decoder, transform, options, said in (
        (RandomResizedCrop(32), flip, {}, ["flipped twice", "leave RandomHorizontalFlip out", "hflip=0"]),
        (CenterCrop(40), cut, {"is_default": True}, ["RandomCrop", "CenterCrop"]),
        (CenterCrop(40), v2.TenCrop(32), {"is_default": True}, ["TenCrop", "CenterCrop"]),
        (RandomResizedCrop(32), VAL, {}, ["Resize and CenterCrop in transform"]),
    ):
        message = warning(caplog, decoder, transform, **options)
        assert all(part in message for part in said), message


def test_views_and_batches_are_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    """A transform of one view, or of whole batches, is found too; a decoder that has to stay is not replaced."""
    views = MultiView([RandomResizedCrop(32), RandomResizedCrop(32, hflip=0)])
    flip = v2.RandomHorizontalFlip()
    assert not warning(caplog, views, [None, flip])
    assert "flipped twice" in warning(caplog, views, [flip, flip])
    for decoder in (views, shardflow.decoders.Cover()):
        message = warning(caplog, decoder, TRAIN)
        assert "leave RandomResizedCrop and RandomHorizontalFlip out of transform" in message
        assert "decoder=" not in message
    message = warning(caplog, RandomResizedCrop(32), None, of_kornia())
    assert "out of batch_transform" in message
    assert WHOLE not in message  # whole images of several sizes form no batch


def test_transforms_on_a_device_are_looked_at(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A prefetcher warns of a crop on the device after that of the loader's decoder, and of no other transform."""
    device = shardflow.device
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 0, "fields": ("image", "label", "random_key")}
    loader = shardflow.Loader(photos.parent / "packed", **options)
    device.Prefetcher(loader, "cpu", [device.Normalize(), device.RandomErasing(0.1), device.MixUp(num_classes=2)])
    whole = shardflow.Loader(photos.parent / "packed", decoder=shardflow.decoders.Image(), **options)
    device.Prefetcher(whole, "cpu", [device.RandomResizedCrop(32)])
    assert not caplog.records
    device.Prefetcher(loader, "cpu", [device.RandomResizedCrop(32)])
    assert "cropped twice" in caplog.text
    assert "RandomResizedCrop out of transforms" in caplog.text


def test_what_cannot_be_looked_into_is_left(caplog: pytest.LogCaptureFixture) -> None:
    """A function whose names have no values yet, and an object that holds itself, are no trouble."""

    def early(image: torch.Tensor) -> Any:
        return later(image)

    assert not warning(caplog, RandomResizedCrop(), early, is_default=True)
    later: Any = Wrapped(TRAIN)
    later.itself = later
    assert "cropped twice" in warning(caplog, RandomResizedCrop(), early, is_default=True)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageFolder of ramps, in which each crop shows where it lies, and beside it the same images packed."""
    folder = tmp_path_factory.mktemp("crops") / "photos"
    x, y = np.meshgrid(np.linspace(20, 235, 120), np.linspace(20, 235, 90))
    ramp = Image.fromarray(np.stack([x, y, x], -1).round().astype(np.uint8))
    for number in range(400):
        path = folder / "train" / "one" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        ramp.save(path, quality=95)
    for number in range(6):
        path = folder / "val" / "one" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number, 90 + 6 * number, 80))
    shardflow.pack(folder, folder.parent / "packed", preset="original", shuffle=False, executor="serial")
    return folder


def images_of(loader: Any) -> torch.Tensor:
    """Return all images of an epoch."""
    return torch.cat([images for images, _ in loader])


def image_folder(folder: Path, pipeline: Callable[..., Any]) -> torch.Tensor:
    """Return all images of an ImageFolder, uint8 [N, 3, H, W], as a pipeline makes them of pictures."""
    dataset = torchvision.datasets.ImageFolder(str(folder), v2.Compose([pipeline, v2.PILToTensor()]))
    return torch.stack([image for image, _ in dataset])


def windows(images: torch.Tensor) -> npt.NDArray[np.float64]:
    """Return centre x and y, width and height of the crops of ramps, and in which direction they are: [5, N]."""
    values = images.numpy().astype(float)
    red, green = values[:, 0].mean(1), values[:, 1].mean(2)
    sides = np.abs(red[:, -1] - red[:, 0]), np.abs(green[:, -1] - green[:, 0])
    return np.stack([red.mean(1), green.mean(1), *sides, np.sign(red[:, -1] - red[:, 0])])


def distance(one: npt.NDArray[np.float64], two: npt.NDArray[np.float64]) -> float:
    """Return the largest distance of two empirical distributions (Kolmogorov and Smirnov), of all rows."""
    points = np.concatenate([one, two], 1)
    shares = [
        np.array([np.searchsorted(np.sort(row), at, "right") / len(row) for row, at in zip(each, points, strict=True)])
        for each in (one, two)
    ]
    return float(np.abs(shares[0] - shares[1]).max())


def test_the_line_of_the_warning_crops_as_imagefolder_does(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Pasted as it is, a training pipeline crops otherwise than on ImageFolder; as the warning writes it, alike."""
    packed = photos.parent / "packed"
    options: dict[str, Any] = {"batch_size": 100, "num_workers": 0}
    pasted = shardflow.Loader(packed, transform=TRAIN, **options)
    (line,) = re.findall(r"pass decoder=(.*?\)), or", caplog.text)
    assert "leave RandomResizedCrop and RandomHorizontalFlip out of transform" in caplog.text
    caplog.clear()
    ours = shardflow.Loader(packed, decoder=eval(line), transform=v2.ColorJitter(), **options)
    kept = shardflow.Loader(packed, decoder=shardflow.decoders.Image(), transform=TRAIN, **options)
    assert not caplog.records
    torch.manual_seed(0)
    theirs = windows(image_folder(photos / "train", TRAIN))
    critical = 1.63 * (2 / 400) ** 0.5  # at 1 %
    assert distance(windows(images_of(ours)), theirs) < critical
    assert distance(windows(images_of(kept)), theirs) < critical
    assert distance(windows(images_of(pasted)), theirs) > 2 * critical


def test_the_line_of_the_warning_evaluates_as_imagefolder_does(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Pasted as it is, an evaluation pipeline zooms twice; as the warning writes it, the pixels are ImageFolder's."""
    packed = photos.parent / "packed"
    options: dict[str, Any] = {"split": "val", "batch_size": 6, "num_workers": 0}
    pasted = shardflow.Loader(packed, transform=VAL, **options)
    (line,) = re.findall(r"pass decoder=(.*?\)), or", caplog.text)
    ours = shardflow.Loader(packed, decoder=eval(line), **options)
    kept = shardflow.Loader(packed, decoder=shardflow.decoders.Image(), transform=VAL, **options)
    theirs = image_folder(photos / "val", VAL).float()
    off = [float((images_of(each).float() - theirs).abs().mean()) for each in (ours, kept, pasted)]
    assert off[0] < 2
    assert off[1] < 2
    assert off[2] > 10


def test_crops_that_are_larger_than_the_packed_images(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A crop that enlarges all images by the size of the pack is said to; an equal one, or an unknown size, is not."""
    packed, kept = tmp_path / "packed", tmp_path / "kept"
    source = write_folder(tmp_path / "src", 4)
    shardflow.pack(source, packed, short_side=32, executor="serial")
    shardflow.pack(source, kept, short_side=None, executor="serial")

    def warned(url: Path, decoder: Decoder | None, **options: Any) -> list[str]:
        caplog.clear()
        shardflow.Loader(url, batch_size=2, num_workers=0, decoder=decoder, **options)
        return [message.partition(" pack")[2] for message in caplog.messages]

    larger = ["ed to 32: pack with --short-side 48 or more"]
    assert warned(packed, RandomResizedCrop(48)) == warned(packed, CenterCrop(42), shuffle=False) == larger
    assert warned(packed, CenterCrop(30, resize=48), shuffle=False) == larger
    assert not warned(packed, CenterCrop(32, resize=32), shuffle=False)
    for size in (48, [48], (48, 60)):
        assert warned(packed, WholeImage(), transform=v2.Compose([v2.Resize(size), v2.ToDtype(torch.uint8)])) == larger
    assert warned(packed, WholeImage(), transform=v2.RandomResizedCrop(48)) == larger
    other = type("Resize", (v2.Identity,), {"__module__": "kornia.resize"})()
    for transform in (v2.Resize((32, 60)), v2.Resize(None, max_size=60), other):
        assert not warned(packed, WholeImage(), transform=transform)
    assert warned(packed, RandomResizedCrop({0: 24, 2: 48, 3: 32})) == larger
    assert warned(packed, MultiView([RandomResizedCrop(48), RandomResizedCrop(32)])) == larger
    for url, decoder in ((packed, RandomResizedCrop({0: 24, 2: 32})), (packed, WholeImage()), (kept, CenterCrop(480))):
        assert not warned(url, decoder)
    assert not warned(packed, None, fields=("label",))
