"""Transforms of the whole sample: image, annotations, text, labels and columns together."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

import shardflow
from shardflow.errors import ConfigError
from shardflow.formats.annotations import Annotations, Boxes
from tests.helpers.making import jpeg, write_dataset
from tests.loading.test_annotation_fields import FIELDS as ANNOTATED
from tests.loading.test_annotation_fields import dataset as dataset

CROP = shardflow.decoders.RandomResizedCrop(24)
VIEWS = shardflow.decoders.MultiView([CROP, shardflow.decoders.CenterCrop(16)])
EVERYTHING = ("image", *ANNOTATED, "json", "label", "key", "index", "flipped", "crop", "random_key", "valid")


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve captioned images, whose third side is a box."""
    samples = []
    for number in range(12):
        content = {"boxes": [[2, 3, 20, 30]] * (number % 3)}
        parts = {"jpg": jpeg(number, 48 + number % 2, 40), "txt": f"left of {number}".encode(), "cls": b"1"}
        samples.append((f"{number:04}", {**parts, "json": json.dumps(content).encode()}))
    declared = Annotations(boxes=Boxes("json", "boxes", "xyxy"))
    root = tmp_path_factory.mktemp("data") / "captions"
    return write_dataset(root, {"train": [samples]}, classes=("a", "b"), annotations=declared)


def load(url: Path, transform: Any, fields: Any, **options: Any) -> list[Any]:
    """Return the batches of an epoch in this process."""
    settled = {"batch_size": 4, "num_workers": 0, "decoder": CROP, "tail": "pad", "seed": 4, **options}
    return list(shardflow.Loader(url, fields=fields, transform=transform, **settled))


def same(one: Any, other: Any) -> bool:
    """Whether two fields of batches are equal, bit by bit, with their types."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, (list, tuple)) and type(one) is type(other) and len(one) == len(other):
        return all(same(a, b) for a, b in zip(one, other, strict=True))
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("decoder", [CROP, VIEWS, shardflow.decoders.Image(pad_to_multiple_of=16)])
def test_a_transform_that_returns_its_input_changes_nothing(dataset: Path, decoder: Any) -> None:
    """Every field arrives in the batch as it does without a transform, for views and padded batches too."""
    fields = EVERYTHING if decoder.views or decoder is CROP else (*EVERYTHING, "image_size", "pixel_mask")
    whole = load(dataset, shardflow.annotations.WholeSample(lambda sample: sample), fields, decoder=decoder)
    plain = load(dataset, None, fields, decoder=decoder)
    assert len(whole) == len(plain) > 1
    for ours, theirs in zip(whole, plain, strict=True):
        for field, one, other in zip(fields, ours, theirs, strict=True):
            assert same(one, other), field


def test_it_gets_tensors_of_torchvision_texts_and_numbers(captions: Path) -> None:
    """Images and boxes are tv_tensors, a text is a str, JSON is parsed, a label is a number of Python."""
    seen: list[dict[str, Any]] = []

    def look(sample: dict[str, Any]) -> dict[str, Any]:
        seen.append(sample)
        return {"none": None}

    fields = ("image", "boxes", "txt", "json", "label", "crop", "flipped")
    transform = shardflow.annotations.WholeSample(look, returns=("none",))
    assert load(captions, transform, fields)[0] == ([None] * 4,)
    for sample in seen:
        assert {*sample} == {*fields}
        assert isinstance(sample["image"], tv_tensors.Image)
        assert isinstance(sample["boxes"], tv_tensors.BoundingBoxes)
        assert sample["boxes"].canvas_size == (24, 24)
        assert sample["txt"].startswith("left of")
        assert type(sample["json"]) is dict
        assert (type(sample["label"]), sample["label"], type(sample["flipped"])) == (int, 1, bool)
        assert tuple(sample["crop"].shape) == (4,)


def say_which_side(sample: dict[str, Any]) -> dict[str, Any]:
    """Swap sides in the caption of a mirrored image, and add fields of several types."""
    text = sample["txt"].replace("left", "right") if sample["flipped"] else sample["txt"]
    number = int(text.split()[-1])
    image = sample["image"].float() + random.random() + torch.rand(())
    tokens = torch.tensor([len(text), number])
    others = {"length": len(text), "share": number / 4, "words": text.split(), "grid": np.full((2, 2), number)}
    return {**sample, "image": image, "txt": text, "tokens": tokens, **others}


RETURNS = ("tokens", "image", "txt", "length", "share", "words", "grid", "boxes")


@pytest.mark.parametrize("workers", [0, 2])
def test_its_keys_are_the_fields(captions: Path, workers: int) -> None:
    """The fields of a batch are those that it returns, in their order; random numbers do not depend on the workers."""
    transform = shardflow.annotations.WholeSample(say_which_side, returns=RETURNS)
    fields = ("image", "txt", "flipped", "boxes")
    loader = shardflow.Loader(
        captions, batch_size=4, fields=fields, transform=transform, num_workers=workers, seed=4, decoder=CROP
    )
    assert loader.fields == RETURNS
    sides = set()
    others = load(captions, transform, fields)
    for batch, other in zip(loader, others, strict=True):
        assert same(tuple(batch), tuple(other))
        tokens, images, texts, lengths, shares, words, grids, boxes = batch
        numbers = tokens[:, 1].tolist()
        sides |= {text.split()[0] for text in texts}
        assert (images.dtype, lengths.dtype, shares.dtype) == (torch.float32, torch.int64, torch.float32)
        assert [*map(len, texts)] == lengths.tolist() == tokens[:, 0].tolist()
        assert shares.tolist() == [number / 4 for number in numbers]
        assert words == [text.split() for text in texts]
        assert grids.tolist() == [[[number] * 2] * 2 for number in numbers]
        assert [len(each) for each in boxes] == [number % 3 for number in numbers]
    assert sides == {"left", "right"}
    loader.close()
    explained = loader.explain(3)
    assert explained is not None
    assert {*explained.returned} == {*RETURNS} - {"image", "boxes"}
    assert explained.images[0].dtype == torch.float32


def test_transforms_of_torchvision_take_it(captions: Path) -> None:
    """A v2 transform moves image and boxes, and passes on the text; one that drops boxes is refused without theirs."""
    mirror = shardflow.annotations.WholeSample(v2.RandomHorizontalFlip(1))
    fields = ("image", "boxes", "txt", "label")
    for ours, theirs in zip(load(captions, mirror, fields), load(captions, None, fields), strict=True):
        assert torch.equal(ours[0], theirs[0].flip(-1))
        for one, other in zip(ours[1], theirs[1], strict=True):
            assert torch.equal(one[:, [2, 0]], 24 - other[:, [0, 2]])
        assert same(ours[2:], theirs[2:])


def test_texts_alone(captions: Path) -> None:
    """Without an image among the fields, none is decoded."""
    transform = shardflow.annotations.WholeSample(lambda sample: {"length": len(sample["txt"])}, returns=("length",))
    assert all(lengths.max() <= 10 for (lengths,) in load(captions, transform, ("txt",), decoder=None))


def test_sources_of_a_mix_are_transformed_each_by_its_own(captions: Path) -> None:
    """In one batch, samples of a source without a transform are as they are."""
    loud = shardflow.annotations.WholeSample(lambda sample: {**sample, "txt": sample["txt"].upper()})
    options: dict[str, Any] = {"batch_size": 6, "num_workers": 0, "decoder": CROP, "fields": ("image", "txt", "source")}
    loaders = [shardflow.Loader(captions, transform=transform, **options) for transform in (loud, None)]
    for _, texts, sources in shardflow.Mix([(loader, 1) for loader in loaders]):
        assert [text.isupper() for text in texts] == [number == 0 for number in sources]


@pytest.mark.parametrize(
    ("function", "returns", "message"),
    [
        (lambda _: None, None, "lack a `return`"),
        (lambda sample: {"image": sample["image"]}, None, "without txt"),
        (lambda sample: sample, ("image", "tokens"), "without tokens"),
        (lambda sample: {"x": torch.zeros(len(sample["txt"]))}, ("x",), r"'x'.*stack"),
        (lambda sample: {"x": 1 if "1" in sample["txt"] else 1.5}, ("x",), "'x' as float, int"),
    ],
)
def test_what_does_not_form_a_batch_is_named(captions: Path, function: Any, returns: Any, message: str) -> None:
    """A field that is missing, or differs in type or shape between samples, is an error that names it."""
    with pytest.raises(ConfigError, match=message):
        load(captions, shardflow.annotations.WholeSample(function, returns=returns), ("image", "txt"), batch_size=12)


def test_wrong_arguments(captions: Path) -> None:
    """`returns` are different names, and a transform of whole samples is neither for one view nor for batches."""
    for returns in ("tokens", (), ("a", "a"), (1,)):
        with pytest.raises(ConfigError, match="returns"):
            shardflow.annotations.WholeSample(dict, returns=returns)  # type: ignore[arg-type]
    whole = shardflow.annotations.WholeSample(dict)
    for options in ({"transform": [whole, None], "decoder": VIEWS}, {"transform": None, "batch_transform": whole}):
        with pytest.raises(ConfigError, match="WholeSample"):
            load(captions, fields=("image",), **options)
