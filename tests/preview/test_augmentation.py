"""The augmentation of one sample."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor
from torchvision.transforms import v2

import shardflow
from shardflow.errors import ConfigError, DecodeError
from shardflow.formats.annotations import Annotations, Boxes
from shardflow.preview.annotation_overlay import PALETTE
from shardflow.preview.augmentation import augment_sample, training_loader
from shardflow.preview.contact_sheet import Tile
from tests.helpers.folders import encoded
from tests.helpers.making import jpeg, make_dataset, write_dataset

SAMPLE = 7
SCALED = v2.ToDtype(torch.float32, scale=True)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve samples, sample n labelled n."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", [6, 6])


def pixels(tile: Tile) -> Any:
    """The picture of a tile as [H, W, 3]."""
    assert tile.picture is not None
    return np.asarray(tile.picture)


def returned_by(loader: shardflow.Loader) -> torch.Tensor:
    """The sample as a loader returns it in its next epoch, or pass."""
    steps = 12 // loader.batch_sampler.batch_size
    for images, labels in itertools.islice(loader, steps):
        if SAMPLE in labels:
            found: torch.Tensor = images[labels.tolist().index(SAMPLE)]
    return found


def loader_of(url: Path, **options: Any) -> shardflow.Loader:
    """A loader of those samples."""
    options = {"batch_size": 4, "seed": 3, "num_workers": 0, **options}
    return shardflow.Loader(url, fields=("image", "label"), **options)


def test_versions_are_those_of_the_loader(url: Path) -> None:
    """Version e of a sample is what a loader with the same seed returns for it in epoch e, pixel by pixel."""
    loader = loader_of(url, decoder=None)
    packed, *versions = augment_sample(training_loader(url, "train", seed=3), SAMPLE, epochs=3).tiles
    assert packed.title.endswith(": class7")
    assert len({pixels(tile).tobytes() for tile in versions}) == len(versions) == 3
    for tile in versions:
        assert (pixels(tile) == returned_by(loader).permute(1, 2, 0).numpy()).all()


def jittered(image: torch.Tensor) -> torch.Tensor:
    """Draw from all three generators."""
    image = v2.RandAugment()(v2.ColorJitter(0.4, 0.4, 0.4)(image))
    return (image + random.randrange(9) + np.random.randint(9)).to(torch.uint8)


@pytest.mark.parametrize(
    "options",
    [
        {"transform": jittered},
        {"transform": jittered, "num_workers": 2},
        {"transform": jittered, "decoder": shardflow.decoders.CenterCrop(24)},
        {"transform": v2.RandomCrop(30), "decoder": shardflow.decoders.Image()},
        {"transform": jittered, "decoder": shardflow.decoders.RandomResizedCrop({0: 40, 1: 20, 2: 50})},
        {"sampler": shardflow.samplers.AspectBuckets([(30, 30), (20, 40)]), "tail": "short"},
        {"transform": jittered, "samples_per_epoch": 12, "shuffle": False},
        {"transform": jittered, "batch_transform": lambda images, labels: (images, labels)},
    ],
)
def test_pixels_are_those_of_the_users_loader(url: Path, options: dict[str, Any]) -> None:
    """With any decoder and transform, each version is what the loader returns in that epoch, pixel by pixel."""
    loader = loader_of(url, **options)
    state = random.getstate(), torch.get_rng_state()
    _, *versions = augment_sample(loader, SAMPLE, epochs=3).tiles
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])
    for tile in versions:
        image = returned_by(loader)
        assert (pixels(tile) == image.permute(1, 2, 0).numpy()).all()
        assert f"{image.shape[2]} x {image.shape[1]}, uint8" in tile.detail
    loader.close()


def test_epochs_of_a_chosen_length_are_told_from_passes(url: Path) -> None:
    """With `samples_per_epoch` the versions are those of the passes over the split, and the picture says so."""
    loader = loader_of(url, transform=jittered, samples_per_epoch=4, shuffle=False)
    found = augment_sample(loader, SAMPLE, epochs=2)
    assert "each pass over the split" in found.subtitle
    seen = [images[labels.tolist().index(SAMPLE)] for _ in range(6) for images, labels in loader if SAMPLE in labels]
    for tile, image in zip(found.tiles[1:], seen, strict=True):
        assert (pixels(tile) == image.permute(1, 2, 0).numpy()).all()


def test_annotations_of_the_loader_are_drawn(tmp_path: Path) -> None:
    """A transform gets the dict that it is written for, and what it returns is drawn over each version."""
    content = json.dumps({"boxes": [[8, 8, 32, 32], [36, 4, 39, 9]], "labels": [2, 0]}).encode()
    mask = np.zeros((40, 40), np.uint8)
    mask[10:20, 10:20] = 4
    parts = {
        "png": encoded(Image.new("RGB", (40, 40)), "PNG"),
        "json": content,
        "mask.png": encoded(Image.fromarray(mask), "PNG"),
    }
    declared = Annotations(masks=("mask.png",), boxes=Boxes("json", "boxes", "xyxy", fields={"labels": "labels"}))
    url = write_dataset(tmp_path, {"train": [[(f"{n}", parts) for n in range(4)]]}, annotations=declared)

    def lowered(sample: dict[str, Any]) -> dict[str, Any]:
        turned: dict[str, Any] = v2.RandomVerticalFlip(1)(sample)
        return {**turned, "boxes": turned["boxes"][:1], "box_labels": turned["box_labels"][:1]}

    fields = ("image", "mask", "boxes", "box_labels")
    options: dict[str, Any] = {
        "batch_size": 4,
        "num_workers": 0,
        "decoder": shardflow.decoders.CenterCrop(80, resize=80),
    }
    loader = shardflow.Loader(url, fields=fields, transform=lowered, **options)
    _, tile = augment_sample(loader, 1, epochs=1).tiles
    assert tile.detail == "80 x 80, uint8, 1 box"
    colours = {
        at: tuple(pixels(tile)[at[1], at[0]].tolist()) for at in ((16, 30), (40, 63), (70, 70), (30, 50), (50, 30))
    }
    box, of_mask = ImageColor.getrgb(PALETTE[2]), ImageColor.getrgb(PALETTE[3])
    assert colours == {
        (16, 30): box,
        (40, 63): box,
        (70, 70): (0, 0, 0),
        (30, 50): tuple(round(value / 2) for value in of_mask),
        (50, 30): (0, 0, 0),
    }
    assert augment_sample(shardflow.Loader(url, **options), 1, epochs=1).tiles[1].detail == "80 x 80, uint8"
    options["decoder"] = shardflow.decoders.MultiView(
        [options["decoder"], shardflow.decoders.CenterCrop(20, resize=40)]
    )
    _, whole, part = augment_sample(shardflow.Loader(url, fields=fields, **options), 1, epochs=1).tiles
    assert [whole.detail, part.detail] == ["80 x 80, uint8, 2 boxes", "20 x 20, uint8, 1 box"]
    details = [tile.detail for tile in augment_sample(training_loader(url, "train"), 1, epochs=8).tiles[1:]]
    assert {*details} <= {f"224 x 224, uint8, {count}" for count in ("0 boxes", "1 box", "2 boxes")}


def test_epochs_without_the_sample(url: Path) -> None:
    """An epoch in which the weights leave a sample out has a tile without a picture."""
    loader = loader_of(url, sampler=shardflow.samplers.Weighted([1] * SAMPLE + [0] + [1] * (11 - SAMPLE)))
    _, tile = augment_sample(loader, SAMPLE, epochs=1).tiles
    assert (tile.title, tile.picture) == ("epoch 0", None)


def test_what_is_no_loader(url: Path) -> None:
    """A mix is refused, and one of its loaders is not."""
    loader = loader_of(url)
    with pytest.raises(ConfigError, match="Mix"):
        augment_sample(shardflow.Mix([(loader, 1)]), SAMPLE, epochs=1)  # type: ignore[arg-type]
    assert len(augment_sample(loader, SAMPLE, epochs=1).tiles) == 2


def test_what_is_not_shown_is_said(url: Path) -> None:
    """A batch transform is not shown, and the subtitle says so."""
    assert "before" not in augment_sample(loader_of(url), SAMPLE, epochs=1).subtitle
    loader = loader_of(url, batch_transform=lambda images, labels: (images * 0, labels))
    assert "before batch_transform" in augment_sample(loader, SAMPLE, epochs=1).subtitle


@pytest.mark.parametrize(
    ("transform", "low", "high"),
    [
        (SCALED, 0.0, 1.0),
        (v2.Compose([SCALED, v2.Normalize([0.5, 0.4, 0.3], [0.2, 0.2, 0.3])]), None, None),
        (v2.Compose([v2.Grayscale(), v2.ToDtype(torch.float16)]), None, None),
        (v2.Lambda(lambda image: torch.full_like(image, 3, dtype=torch.int32)), 3, 3),
    ],
)
def test_other_numbers_are_drawn_on_one_scale(
    url: Path, transform: Callable[[Any], Any], low: float | None, high: float | None
) -> None:
    """Values in 0 … 1 go from black to white, others from the lowest to the highest of all epochs; both are stated."""
    loader = loader_of(url, decoder=shardflow.decoders.RandomResizedCrop(32), transform=transform)
    found = augment_sample(loader, SAMPLE, epochs=3)
    images = torch.stack([returned_by(loader) for _ in range(3)]).double()
    low, high = (images.min().item(), images.max().item()) if low is None or high is None else (low, high)
    assert found.subtitle.endswith(f"; black is {low:.3g}, white {high:.3g}")
    for tile, image in zip(found.tiles[1:], images, strict=True):
        expected = 255 * (image - low) / max(high - low, 1e-9)
        assert np.abs(pixels(tile) - expected.permute(1, 2, 0).numpy()).max() <= 0.5 + 1e-9


def test_values_that_are_not_finite_are_reported(url: Path) -> None:
    """A tile whose image is not finite says so, and its finite values are drawn."""

    def holed(image: torch.Tensor) -> torch.Tensor:
        image = image.float() - 100
        image[:, :5] = torch.nan
        image[:, 5:9] = torch.inf
        return image

    _, tile = augment_sample(loader_of(url, transform=holed), SAMPLE, epochs=1).tiles
    assert "not all finite" in tile.detail
    assert (pixels(tile)[:5] == 0).all()
    assert (pixels(tile)[5:9] == 255).all()
    assert len(np.unique(pixels(tile)[9:])) > 50


def test_views_are_shown_one_by_one(url: Path) -> None:
    """A transform that returns several views of an image gets a tile for each."""
    loader = loader_of(url, transform=lambda image: torch.stack([image, image.flip(-1)]))
    _, first, second, *others = augment_sample(loader, SAMPLE, epochs=2).tiles
    assert [tile.title for tile in (first, second)] == ["epoch 0, view 0", "epoch 0, view 1"]
    assert (pixels(first) == pixels(second)[:, ::-1]).all()
    assert len(others) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder": shardflow.decoders.Raw()}, r"into uint8 \[\d+\]"),
        ({"transform": lambda image: image.permute(1, 2, 0)}, r"into uint8 \[224, 224, 3\]"),
        ({"transform": lambda image: {"image": image}}, "into dict, not a picture"),
        ({"limit": 7}, "samples are 0 to 6"),
    ],
)
def test_what_cannot_be_shown_is_refused(url: Path, options: dict[str, Any], message: str) -> None:
    """Output that is not a picture, and a sample that the loader never returns, are named in the error."""
    with pytest.raises(ConfigError, match=message):
        augment_sample(loader_of(url, **options), SAMPLE, epochs=1)


def test_a_sample_without_an_image_is_refused(tmp_path: Path) -> None:
    """The message names the sample and its parts, or the damage of its image."""
    samples = [("a", {"txt": b"words"}), ("b", {"jpg": jpeg(1)[:300]})]
    loader = training_loader(write_dataset(tmp_path, {"train": [samples]}), "train")
    errors = (
        (DecodeError, "sample a has no image, only txt"),
        (DecodeError, "cannot be decoded"),
        (ConfigError, "0 to 1"),
    )
    for number, (error, message) in enumerate(errors):
        with pytest.raises(error, match=message):
            augment_sample(loader, number, epochs=1)


def test_further_images_and_token_budgets_are_shown(tmp_path: Path) -> None:
    """Images beside the first have tiles, also those of documents without a first one; a bin's image has its size."""
    declared = Annotations(images=("0.jpg", "1.jpg"))
    further = {"0.jpg": jpeg(1, 60, 40), "1.jpg": jpeg(2, 40, 60)}
    pairs = write_dataset(tmp_path / "pairs", {"train": [[("a", {"jpg": jpeg(0), **further})]]}, annotations=declared)
    documents = write_dataset(tmp_path / "docs", {"train": [[("a", {"json": b"{}", **further})]]}, annotations=declared)
    for url, beside in ((pairs, 1), (documents, 0)):
        loader = training_loader(url, "train")
        packed, *tiles = augment_sample(loader, 0, epochs=2).tiles
        assert packed.picture is not None
        assert "2 further images" in packed.detail if beside else "first of 2 images" in packed.detail
        assert [tile.title for tile in tiles] == [
            title
            for epoch in range(2)
            for title in (*[f"epoch {epoch}"] * beside, f"epoch {epoch}, images[0]", f"epoch {epoch}, images[1]")
        ]
        explained = loader.explain(0, epoch=1)
        assert explained is not None
        assert (pixels(tiles[-1]) == explained.returned["images"][1].permute(1, 2, 0).numpy()).all()
    sampler = shardflow.samplers.TokenBudget(100, patch=8)
    options: dict[str, Any] = {"batch_size": 1, "num_workers": 0, "sampler": sampler, "max_errors": 1}
    _, tile = augment_sample(shardflow.Loader(pairs, fields=("image",), **options), 0, epochs=1).tiles
    assert pixels(tile).shape == (40, 48, 3)
