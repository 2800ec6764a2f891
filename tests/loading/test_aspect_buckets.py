from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import shardflow
from shardflow.errors import ConfigError, ResumeMismatchError
from shardflow.geometry.crops import Crops
from shardflow.loading.decoders.pixels import crop_pixels
from shardflow.samplers import AspectBuckets, ClassBatches, Weighted
from tests.helpers.making import NINE_SIZES, jpeg, make_shapes, write_dataset

SHAPES = [(16, 16), (12, 20), (20, 12), (10, 24)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 90 images of nine shapes in three shards; the label of a sample is its number."""
    return make_shapes(tmp_path_factory.mktemp("data") / "set")


def loader(url: Path, **options: Any) -> shardflow.Loader:
    """A loader with buckets."""
    options = {"batch_size": 4, "num_workers": 0, "tail": "short", "sampler": AspectBuckets(SHAPES), **options}
    return shardflow.Loader(url, shuffle=shardflow.Shuffle(buffer=16, streams=4), **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_each_step_has_one_shape_on_all_ranks(dataset: Path, workers: int) -> None:
    """All ranks have the same shape in a step, and each sample comes once."""
    ranks = [list(loader(dataset, group=(rank, 2), num_workers=workers)) for rank in range(2)]
    shapes = [{tuple(images.shape[2:]) for images, _ in step} for step in zip(*ranks, strict=True)]
    assert all(len(found) == 1 for found in shapes)
    assert set().union(*shapes) == set(SHAPES)
    assert sorted(n for rank in ranks for _, labels in rank for n in labels.tolist()) == list(range(90))


@pytest.mark.parametrize("tail", ["short", "pad"])
@pytest.mark.parametrize(("world_size", "batch_size"), [(7, 1), (4, 5)])
def test_the_tail_has_one_shape_on_all_ranks(dataset: Path, tail: str, world_size: int, batch_size: int) -> None:
    """Ranks that have no sample of the last step, or fill it up with others, have the shape of those that have one."""
    ranks = []
    for rank in range(world_size):
        options: dict[str, Any] = {"batch_size": batch_size, "tail": tail}
        ranks.append([images.shape[2:] for images, *_ in loader(dataset, group=(rank, world_size), **options)])
    assert all(len(set(step)) == 1 for step in zip(*ranks, strict=True))


def test_most_images_are_in_the_bucket_of_their_shape(dataset: Path) -> None:
    """An image is in the bucket with the nearest ratio, but for the last ones of each bucket."""
    sampler = AspectBuckets(SHAPES)
    assert sampler.shapes == ((20, 12), (16, 16), (12, 20), (10, 24))
    own = sampler.buckets(np.array([NINE_SIZES[n * 7 % 9] for n in range(90)]))
    nearest = {(1, 1): (16, 16), (60, 44): (12, 20), (44, 60): (20, 12), (90, 40): (10, 24), (33, 80): (20, 12)}
    found = sampler.buckets(np.array(list(nearest)))
    assert [sampler.shapes[bucket] for bucket in found] == list(nearest.values())
    as_wanted = sum(
        sampler.shapes[own[n]] == tuple(images.shape[2:]) for images, labels in loader(dataset) for n in labels.tolist()
    )
    assert as_wanted >= 90 - 3 * 3


def test_images_cover_their_shape() -> None:
    """An image is resized to cover the shape and cropped along one side only: in the middle, or anywhere along it."""
    decoder = shardflow.decoders.Cover(random=False, hflip=0)
    keys = np.arange(50, dtype=np.uint64)
    middle = decoder.plan(0, (10, 24), np.array([[80, 33]] * 50), keys)
    assert middle.size == (24, 10)
    assert middle.resized[0].tolist() == [24, 10]
    tall = shardflow.decoders.Cover(hflip=0.5).plan(0, (10, 24), np.array([[40, 90]] * 50), keys)
    assert tall.resized[0].tolist() == [24, 54]
    assert set(tall.offset[:, 0].tolist()) == {0}
    assert 0 <= tall.offset[:, 1].min() < 8
    assert 36 < tall.offset[:, 1].max() <= 44
    assert 10 < tall.flip.sum() < 40


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("size", [(64, 48), (33, 80), (7, 5), (24, 10)])
def test_crops_follow_their_plan(size: tuple[int, int]) -> None:
    """The crop is what resizing and cutting the whole image gives, in the kernel and without it."""
    decoder = shardflow.decoders.Cover(hflip=1)
    payload = jpeg(3, *size)
    images, crops, failures = decoder(
        [memoryview(bytearray(payload))], np.array([size]), np.array([5], dtype=np.uint64), shape=(10, 24)
    )
    assert not failures
    assert isinstance(crops, Crops)
    whole = torch.from_numpy(np.array(Image.open(io.BytesIO(payload)).convert("RGB"))).permute(2, 0, 1)

    def resize(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
        resized: torch.Tensor = torch.nn.functional.interpolate(
            image[None].float(), (height, width), mode="bilinear", antialias=True
        )[0]
        return resized

    expected = crop_pixels(crops, 0, whole, resize)
    assert images[0].shape == (3, 10, 24)
    assert (images[0].float() - expected).abs().mean() < 2


def test_resume_gives_the_rest(dataset: Path) -> None:
    """Stopping after any batch and loading the state elsewhere gives the rest, also on more ranks."""
    whole = [(images, labels.tolist()) for images, labels in loader(dataset)]
    stopped = loader(dataset)
    list(itertools.islice(stopped, 5))
    resumed = loader(dataset)
    resumed.load_state_dict(stopped.state_dict())
    rest = [(images, labels.tolist()) for images, labels in resumed]
    assert [labels for _, labels in rest] == [labels for _, labels in whole[5:]]
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(rest, whole[5:], strict=True))
    ranks = [loader(dataset, group=(rank, 2), batch_size=2) for rank in range(2)]
    for rank in ranks:
        rank.load_state_dict(stopped.state_dict())
    steps = zip(*([labels.tolist() for _, labels in rank] for rank in ranks), strict=True)
    assert sorted(n for step in steps for labels in step for n in labels) == sorted(
        n for _, ls in whole[5:] for n in ls
    )
    with pytest.raises(ResumeMismatchError, match=r"sampler is .*aspect_buckets"):
        loader(dataset, batch_size=5).load_state_dict(stopped.state_dict())


def test_weights_and_limits_count(dataset: Path) -> None:
    """Weights and a limit choose the samples, buckets their batches."""
    found = sorted(
        n
        for _, labels in loader(dataset, sampler=AspectBuckets(SHAPES, Weighted(2)), limit=30)
        for n in labels.tolist()
    )
    assert found == sorted([*range(30), *range(30)])


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([], "one pair of height and width or more"),
        ([5], "must be a list of pairs"),
        (224, "must be a list of pairs"),
        ([(0, 5)], "height must be 1 or more"),
    ],
)
def test_wrong_sizes_are_named(sizes: Any, message: str) -> None:
    """Sizes that are none are an error."""
    with pytest.raises(ConfigError, match=message):
        AspectBuckets(sizes)


def test_what_does_not_go_together(dataset: Path, tmp_path: Path) -> None:
    """Buckets compose the batches of an epoch; what composes them otherwise, and images without a size, are refused."""
    of_classes = AspectBuckets(SHAPES, ClassBatches(1))
    for options, message in (
        ({"samples_per_epoch": 6}, "multiples of the 4 samples"),
        ({"samples_per_epoch": 8}, "a pass of 90 samples"),
        ({"sampler": of_classes, "batch_size": 1}, "composes whole batches already"),
        ({"fields": ("label",)}, "go together, with 'image' among the fields"),
        ({"decoder": shardflow.decoders.RandomResizedCrop(12)}, "go together"),
        ({"decoder": shardflow.decoders.Cover(), "sampler": None}, "go together"),
    ):
        with pytest.raises(ConfigError, match=message):
            loader(dataset, **options)
    samples = [("0", {"jpg": jpeg(0), "cls": b"0"}), ("1", {"jpg": b"no image", "cls": b"0"})]
    url = write_dataset(tmp_path / "set", {"train": [samples]}, classes=("x",))
    with pytest.raises(ConfigError, match=r"1 of 2.*sample 1"):
        loader(url, batch_size=1)
