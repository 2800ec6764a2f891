"""One sample as a worker makes it, compared with the batches of the loader."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

import shardflow
from shardflow.dataset.sample import Sample
from shardflow.errors import ConfigError
from shardflow.formats.annotations import Annotations, Boxes
from shardflow.loading.explained_sample import ExplainedSample
from tests.helpers.making import jpeg, write_dataset

COUNT, EPOCHS = 26, 4
ANNOTATED = ("image", "index", "mask", "boxes", "box_labels")
PLAIN = ("image", "index")
GROWING = shardflow.decoders.RandomResizedCrop({0: 20, 2: 12, 3: 28})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of many shapes with masks and boxes, in two shards."""
    samples: list[Any] = []
    for number in range(COUNT):
        width, height = 30 + 7 * (number % 5), 30 + 9 * (number % 3)
        boxes = [[1 + each, 2, 20 + each, 25] for each in range(number % 4)]
        buffer = io.BytesIO()
        Image.fromarray(np.add.outer(np.arange(height), np.arange(width)).astype(np.uint8)).save(buffer, "PNG")
        content = json.dumps({"boxes": boxes, "labels": [*range(len(boxes))]}).encode()
        parts = {"jpg": jpeg(number, width, height), "mask.png": buffer.getvalue(), "json": content, "cls": b"0"}
        samples.append((f"{number:04}", parts))
    declared = Annotations(masks=("mask.png",), boxes=Boxes("json", "boxes", "xyxy", fields={"labels": "labels"}))
    root = tmp_path_factory.mktemp("data") / "set"
    return write_dataset(root, {"train": [samples[:15], samples[15:]]}, classes=("only",), annotations=declared)


def read(loader: shardflow.Loader, number: int) -> Sample:
    """Return a sample as the workers read it."""
    return loader.split.reader.read(*loader.split.locate(number))


def jitter(image: torch.Tensor) -> torch.Tensor:
    """Draw from all three generators."""
    return (v2.ColorJitter(0.4, 0.4)(image) + random.randrange(9) + np.random.randint(9)).to(torch.uint8)


def turn(sample: dict[str, Any]) -> dict[str, Any]:
    """Move the image and its annotations, which only a dict of tv_tensors allows."""
    assert isinstance(sample["boxes"], tv_tensors.BoundingBoxes)
    turned: dict[str, Any] = v2.Compose([v2.RandomVerticalFlip(0.5), v2.RandomPhotometricDistort()])(sample)
    return turned


Weighted = shardflow.samplers.Weighted
BUCKETS = shardflow.samplers.AspectBuckets([(24, 24), (20, 32), (32, 20)])
VIEWS = shardflow.decoders.MultiView([GROWING, shardflow.decoders.CenterCrop(16)])


def seen_by(loader: shardflow.Loader, epochs: int) -> list[dict[int, list[Any]]]:
    """Return the rows that come in each epoch, by the number of the sample."""
    found: list[dict[int, list[Any]]] = []
    for _ in range(epochs):
        found.append({})
        for images, numbers, *columns in loader:
            views = images if isinstance(images, tuple) else (images,)
            for row, number in enumerate(numbers.tolist()):
                values = [each[row].clone() for each in (*views, *columns)]
                found[-1].setdefault(number, []).append(values)
    loader.close()
    return found


def is_row(made: ExplainedSample, row: list[torch.Tensor]) -> bool:
    """Return whether a sample is this row of a batch, in which its image may be padded."""
    values = [*made.images, *(value for view in made.annotations for value in view.values())]
    height, width = made.images[0].shape[-2:]
    row = [row[0][..., :height, :width], *row[1:]]
    return all(one.dtype == other.dtype and torch.equal(one, other) for one, other in zip(values, row, strict=True))


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        (PLAIN, {"decoder": GROWING, "transform": jitter}),
        (ANNOTATED, {"decoder": GROWING, "transform": turn}),
        (ANNOTATED, {"sampler": BUCKETS}),
        (ANNOTATED, {"sampler": BUCKETS, "transform": turn, "tail": "pad", "num_workers": 2}),
        (ANNOTATED, {"decoder": shardflow.decoders.CenterCrop(24), "shuffle": False}),
        (ANNOTATED, {"decoder": shardflow.decoders.Image(stack=False), "transform": turn}),
        (PLAIN, {"decoder": shardflow.decoders.Image(pad_to_multiple_of=32)}),
        (PLAIN, {"decoder": VIEWS, "transform": [jitter, None]}),
        (
            PLAIN,
            {
                "decoder": GROWING,
                "sampler": shardflow.samplers.Weighted([0.4, 1.3] * (COUNT // 2)),
                "transform": jitter,
            },
        ),
    ],
)
def test_it_is_what_a_batch_has(url: Path, fields: tuple[str, ...], options: dict[str, Any]) -> None:
    """In each epoch a sample has the pixels and annotations of the loader's batch, bit by bit, if it comes there."""
    loader = shardflow.Loader(
        url, fields=fields, **{"batch_size": 4, "num_workers": 0, "seed": 3, "tail": "short", **options}
    )
    for epoch, rows in enumerate(seen_by(loader, EPOCHS)):
        for number in range(COUNT):
            made = loader.explain(number, epoch=epoch)
            assert (made is None) == (number not in rows)
            assert made is None or any(is_row(made, row) for row in rows[number])


def test_random_keys_are_those_of_a_batch(url: Path) -> None:
    """The key of a sample's random numbers is the number that a batch has in its field."""
    loader = shardflow.Loader(url, fields=("image", "key", "random_key"), batch_size=COUNT, num_workers=0)
    ((_, names, keys),) = [tuple(batch) for batch in loader]
    made = [loader.explain(number, epoch=0) for number in range(COUNT)]
    assert {each.key: each.random_key for each in made if each} == dict(zip(names, keys.tolist(), strict=True))


def test_passes_over_the_split(url: Path) -> None:
    """With epochs of a chosen length, a pass has the crops of the epoch in which the sample comes."""
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 0, "fields": PLAIN, "decoder": GROWING}
    loader = shardflow.Loader(url, samples_per_epoch=17, tail="short", **options)
    epochs = seen_by(loader, 6)
    sizes = set()
    for number in range(COUNT):
        rows = [row for rows in epochs for row in rows.get(number, [])]
        for turn_of_it in range(3):
            made = loader.explain(number, epoch=turn_of_it)
            assert made is not None
            assert is_row(made, rows[turn_of_it])
            sizes.add(made.images[0].shape[1])
    assert sizes == {20, 12, 28}


def test_a_sample_that_was_read_is_the_one_that_is_asked_for(url: Path) -> None:
    """A sample that a reader returned is not read again, and another one is refused."""
    loader = shardflow.Loader(url, batch_size=4, num_workers=0, fields=("image",))
    read = [loader.split.reader.read(*loader.split.locate(number)) for number in (2, 3)]
    made, again = loader.explain(2), loader.explain(2, sample=read[0])
    assert made is not None
    assert again is not None
    assert torch.equal(made.images[0], again.images[0])
    with pytest.raises(ConfigError, match="not sample 2"):
        loader.explain(2, sample=read[1])


def test_what_is_shown_is_short(url: Path) -> None:
    """In a notebook a sample shows its key, the shapes of its images and its crops, without the pixels."""
    made = shardflow.Loader(url, batch_size=4, num_workers=0).explain(2)
    assert made is not None
    assert made.crops is not None
    x, y, width, height = made.crops[0].box[0].tolist()
    shown = f"<ExplainedSample {made.key!r}: images [3, 224, 224]; crops [[{x}, {y}, {width}, {height}"
    assert repr(made).startswith(shown)
    assert len(repr(made)) < 200


def test_a_loader_without_images(url: Path) -> None:
    """A loader that returns no images makes none."""
    loader = shardflow.Loader(url, batch_size=4, num_workers=0, fields=("label",))
    with pytest.raises(ConfigError, match="add 'image'"):
        loader.explain(0)
