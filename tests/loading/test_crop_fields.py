"""The fields "flipped" and "crop": what the decoder did to each image."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import shardflow
from shardflow.errors import ConfigError
from tests.helpers.making import write_dataset

FIELDS = ("image", "flipped", "crop", "index")
COUNT, SLACK = 24, 3.0
CROP = shardflow.decoders.RandomResizedCrop(24, scale=(0.2, 1))
BUCKETS = shardflow.samplers.AspectBuckets([(24, 24), (16, 32)])


def slope(number: int) -> Image.Image:
    """An image whose colours tell the place of each pixel, and which is not its mirror image."""
    width, height = 60 + 9 * (number % 4), 70 - 11 * (number % 3)
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([230 * x / width, 230 * y / height, 20 + 230 * (x / width) ** 2], -1)
    return Image.fromarray(pixels.astype(np.uint8))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of several sizes, without loss, in two shards."""
    samples: list[Any] = []
    for number in range(COUNT):
        buffer = io.BytesIO()
        slope(number).save(buffer, "PNG")
        samples.append((f"{number:04}", {"png": buffer.getvalue(), "cls": b"0"}))
    root = tmp_path_factory.mktemp("data") / "set"
    return write_dataset(root, {"train": [samples[:14], samples[14:]]}, classes=("only",))


def load(url: Path, decoder: Any, *, fields: Any = FIELDS, **options: Any) -> list[Any]:
    """Return the batches of an epoch."""
    loader = shardflow.Loader(
        url, **{"batch_size": 6, "num_workers": 0, "seed": 5, "decoder": decoder, "fields": fields, **options}
    )
    batches = list(loader)
    loader.close()
    return batches


def expected(number: int, flipped: bool, crop: list[float], height: int, width: int) -> torch.Tensor:
    """The crop of a stored image, resized, and mirrored if it says so."""
    image = slope(number).resize((width, height), Image.Resampling.BILINEAR, box=tuple(crop))  # type: ignore[arg-type]
    pixels = np.asarray(image)[:, ::-1] if flipped else np.asarray(image)
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)


def check(images: Any, flipped: torch.Tensor, crops: torch.Tensor, numbers: torch.Tensor) -> None:
    """Check that crops of the stored images are the images of a batch, and their mirror images are not."""
    assert (flipped.dtype, crops.dtype, tuple(crops.shape)) == (torch.bool, torch.float32, (len(images), 4))
    for image, is_flipped, crop, number in zip(images, flipped, crops.tolist(), numbers.tolist(), strict=True):
        height, width = image.shape[1:]
        right, wrong = (
            (image.float() - expected(number, each, crop, height, width).float()).abs().mean().item()
            for each in (bool(is_flipped), not is_flipped)
        )
        assert right < SLACK < wrong


def half_turn(image: torch.Tensor) -> torch.Tensor:
    """A transform that keeps the crop."""
    return 255 - image


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("decoder", "options"),
    [
        (CROP, {}),
        (CROP, {"num_workers": 2, "tail": "pad"}),
        (shardflow.decoders.RandomResizedCrop({0: 20, 1: 40}), {}),
        (shardflow.decoders.CenterCrop(24), {"shuffle": False}),
        (shardflow.decoders.CenterCrop(30, resize=50), {"shuffle": False}),
        (None, {"sampler": BUCKETS}),
        (shardflow.decoders.Image(stack=False), {}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else type(value).__name__,
)
def test_crops_of_stored_images_are_what_a_batch_has(url: Path, decoder: Any, options: dict[str, Any]) -> None:
    """The crop of a stored image, resized and mirrored as the fields say, has the pixels of the batch."""
    batches = load(url, decoder, **options)
    for batch in batches:
        check(*batch)
    flips = torch.cat([flipped for _, flipped, *_ in batches])
    assert (0 < flips.sum() < len(flips)) == (getattr(decoder, "hflip", 0) > 0 or "sampler" in options)


def test_whole_images_are_their_own_crops(url: Path) -> None:
    """Padding changes neither field, and a transform of the user's is not counted."""
    decoder = shardflow.decoders.Image(pad_to_multiple_of=32)
    for _, flipped, crops, numbers in load(url, decoder, transform=half_turn):
        assert not flipped.any()
        assert crops.tolist() == [[0, 0, *map(float, slope(number).size)] for number in numbers.tolist()]


def test_each_view_has_its_own(url: Path) -> None:
    """With several views both fields are tuples, as the images are."""
    views = shardflow.decoders.MultiView([CROP, shardflow.decoders.CenterCrop(16), CROP])
    for images, flipped, crops, numbers in load(url, views, num_workers=1):
        assert len(images) == len(flipped) == len(crops) == 3
        assert not flipped[1].any()
        assert not torch.equal(crops[0], crops[2])
        for view in zip(images, flipped, crops, strict=True):
            check(*view, numbers)


def test_they_do_not_depend_on_how_the_image_came(url: Path, tmp_path: Path) -> None:
    """With a pixel cache, a transform and in a mix by sample they are what they are without."""
    plain = {number: row for batch in load(url, CROP) for *row, number in _rows(batch)}
    cache = shardflow.Cache(tmp_path, pixels="1GB")
    for _ in range(2):
        for batch in load(url, CROP, cache=cache, transform=half_turn):
            for image, flipped, crop, number in _rows(batch):
                assert torch.equal(255 - image, plain[number][0])
                assert (flipped, crop) == tuple(plain[number][1:])
    options: dict[str, Any] = {"batch_size": 6, "num_workers": 0, "decoder": CROP, "fields": FIELDS}
    mix = shardflow.Mix([(shardflow.Loader(url, seed=seed, **options), 1) for seed in (5, 6)], steps_per_epoch=4)
    for batch in mix:
        check(*batch)


def _rows(batch: Any) -> list[tuple[torch.Tensor, bool, list[float], int]]:
    images, flipped, crops, numbers = batch
    return list(zip(images, flipped.tolist(), crops.tolist(), numbers.tolist(), strict=True))


def test_a_replaced_sample_has_those_of_the_other(url: Path, tmp_path: Path) -> None:
    """A sample that stands in for a damaged one brings its crop, in each view; a rank without samples has none."""
    parts = [sample["png"] for sample in shardflow.open(url)["train"]]
    parts[2] = parts[2][:60]
    samples = [(f"{number:04}", {"png": data}) for number, data in enumerate(parts[:6])]
    damaged = write_dataset(tmp_path / "set", {"train": [samples]})
    for decoder in (CROP, shardflow.decoders.MultiView([CROP, CROP])):
        ((images, flipped, crops, numbers),) = load(damaged, decoder, shuffle=False, max_errors=1)
        assert numbers[2] == numbers[3]
        views = (each if isinstance(each, tuple) else (each,) for each in (images, flipped, crops))
        for view in zip(*views, strict=True):
            check(*view, numbers)
    rest = load(url, CROP, limit=13, tail="short", group=(1, 2))[-1]
    assert [len(column) for column in rest] == [0] * 4


def test_where_they_are_not_known(url: Path) -> None:
    """Without the image, or from a decoder that does not say how it crops, they are refused with a remedy."""
    with pytest.raises(ConfigError, match="add 'image'"):
        load(url, CROP, fields=("flipped", "label"))
    for decoder in (shardflow.decoders.Raw(), _Silent()):
        with pytest.raises(ConfigError, match=r"fields crop .*Crops"):
            load(url, decoder, fields=("image", "crop"))


class _Silent(shardflow.decoders.Decoder):
    """A decoder that does not say how it crops."""

    def decode(self, payloads: Any, crops: Any, out: Any) -> Any:
        """Make black images."""
        assert crops is None
        out[:] = torch.zeros(len(payloads), 3, 8, 8, dtype=torch.uint8)
        return {}
