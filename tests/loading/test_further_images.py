"""Further images of a sample: packed by one recipe, decoded with crops of their own; documents of text and images."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import shardflow
from shardflow.errors import ConfigError, DecodeError, PackIncompleteError
from shardflow.formats.annotations import Annotations
from tests.helpers.folders import encoded, photo, write_tree
from tests.helpers.making import jpeg, write_dataset
from tests.helpers.tars import write_tar

DECLARED = Annotations(images=("0.jpg", "1.jpg", "2.jpg"))
PACK: dict[str, Any] = {"short_side": 32, "executor": "serial", "shuffle": False, "annotations": DECLARED}
LOAD: dict[str, Any] = {"batch_size": 4, "num_workers": 0, "shuffle": False}
CENTRE = shardflow.decoders.CenterCrop(24)


def flat(number: int, at: int, format_name: str) -> bytes:
    """An image of one grey, which tells document and place."""
    pixels = np.full((60, 90 + number, 3), 40 * number + 9 * at, np.uint8)
    return encoded(Image.fromarray(pixels), format_name)


def document(number: int) -> dict[str, bytes]:
    """A document in OBELICS's layout: texts and images in turn, each None where the other stands; of some formats."""
    count = number % 4
    names = [f"{each}.{'png' if each == 1 else 'jpg'}" for each in range(count)]
    content = {"texts": [f"before {number}", *[None] * count, "after"], "images": [None, *names, None]}
    images = {name: flat(number, at, "PNG" if at == 1 else "JPEG") for at, name in enumerate(names)}
    return {"json": json.dumps(content).encode(), **images}


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six documents with 0 to 3 images, packed from a tar."""
    root = tmp_path_factory.mktemp("data")
    write_tar(root / "docs.tar", [(f"d{n}.{part}", data) for n in range(6) for part, data in document(n).items()])
    shardflow.pack(root / "docs.tar", root / "set", **PACK)
    return root / "set"


def test_documents_are_packed(documents: Path) -> None:
    """Each image gets size and format of the recipe; statistics count images, and verify finds the sources again."""
    dataset = shardflow.open(documents)
    for number, sample in enumerate(dataset["train"]):
        parts = {part: data for part, data in sample.items() if not part.startswith("__")}
        assert {*parts} == {"json", *(f"{each}.jpg" for each in range(number % 4))}
        for part, data in parts.items():
            if part != "json":
                assert min(Image.open(io.BytesIO(data)).size) == 32
    statistics = dataset.manifest.statistics
    assert statistics is not None
    assert statistics["train"].counts["images"] == sum(number % 4 for number in range(6))
    assert dataset.manifest.annotations == DECLARED
    assert shardflow.verify(documents, sources=[documents.parent / "docs.tar"]) == []


def interleave(sample: dict[str, Any]) -> dict[str, Any]:
    """Return texts and images in their order."""
    images, content = iter(sample["images"]), sample["json"]
    pairs = zip(content["texts"], content["images"], strict=True)
    turns = [text if image is None else next(images) for text, image in pairs]
    return {"turns": turns, "count": len(sample["images"])}


@pytest.mark.parametrize("decoder", [CENTRE, shardflow.decoders.Image(stack=False)])
def test_documents_are_loaded(documents: Path, decoder: Any) -> None:
    """The field "images" has all images of each sample; a sample without any is one like the others."""
    numbers = []
    for images, contents in shardflow.Loader(documents, fields=("images", "json"), decoder=decoder, **LOAD):
        for found, content in zip(images, contents, strict=True):
            number = int(content["texts"][0].split()[1])
            numbers.append(number)
            assert len(found) == number % 4
            for at, image in enumerate(found):
                assert image.shape == ((3, 24, 24) if decoder is CENTRE else (3, 32, round(32 * (90 + number) / 60)))
                assert (image.float() - 40 * number - 9 * at).abs().max() <= 3
    assert numbers == [*range(6)]
    transform = shardflow.annotations.WholeSample(interleave, returns=("turns", "count"))
    loader = shardflow.Loader(documents, fields=("images", "json"), decoder=CENTRE, transform=transform, **LOAD)
    for turns, counts in loader:
        for own, count in zip(turns, counts.tolist(), strict=True):
            assert [isinstance(turn, torch.Tensor) for turn in own] == [False, *[True] * count, False]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight samples with an image, and the same one again, mirrored or not there."""
    samples = []
    for number in range(8):
        parts = {
            "jpg": jpeg(number, 50, 40),
            "after.jpg": jpeg(number, 50, 40),
            "before.jpg": jpeg(number + 100, 40, 64),
        }
        samples.append(
            (f"{number}", {name: data for name, data in parts.items() if number % 4 or name != "before.jpg"})
        )
    root = tmp_path_factory.mktemp("data") / "pairs"
    declared = Annotations(images=("before.jpg", "after.jpg"))
    return write_dataset(root, {"train": [samples]}, annotations=declared)


@pytest.mark.parametrize("workers", [0, 1])
def test_each_image_has_a_crop_of_its_own(pairs: Path, workers: int) -> None:
    """Two equal images of a sample have different crops, whichever others there are; the order is that declared."""
    decoder = shardflow.decoders.RandomResizedCrop(24)
    options = {**LOAD, "decoder": decoder, "seed": 3, "num_workers": workers}
    alone = [image for (images,) in shardflow.Loader(pairs, fields=("images",), **options) for image in images]
    both = shardflow.Loader(pairs, fields=("image", "images", "index"), **options)
    seen = 0
    for firsts, images, numbers in both:
        for first, own, number in zip(firsts, images, numbers.tolist(), strict=True):
            assert len(own) == (2 if number % 4 else 1)
            assert torch.equal(own, alone[number])
            assert not torch.equal(own[-1], first)
            seen += 1
    assert seen == 8
    both.close()
    centred = shardflow.Loader(pairs, fields=("image", "images"), **{**LOAD, "decoder": CENTRE})
    for firsts, images in centred:
        assert all(torch.equal(first, own[-1]) for first, own in zip(firsts, images, strict=True))


def test_views_of_each(pairs: Path) -> None:
    """With several views the field is a tuple with one for each, of the same images."""
    views = shardflow.decoders.MultiView([CENTRE, shardflow.decoders.RandomResizedCrop(16)])
    ((large, small),) = next(iter(shardflow.Loader(pairs, fields=("images",), decoder=views, **LOAD)))
    assert [tuple(each.shape) for each in large] == [(1, 3, 24, 24), *[(2, 3, 24, 24)] * 3]
    assert [tuple(each.shape) for each in small] == [(1, 3, 16, 16), *[(2, 3, 16, 16)] * 3]


@pytest.mark.parametrize("decoder", [CENTRE, shardflow.decoders.Image(stack=False)])
def test_samples_without_images_are_alike(tmp_path: Path, decoder: Any) -> None:
    """What a sample without further images has does not depend on the others of its batch, and has their dtype."""
    deep = [encoded(Image.fromarray(np.full((30, 40), 900 * n, np.uint16)), "PNG") for n in range(4)]
    members = [(f"{n}.png", deep[n]) for n in range(4)] + [("1.a.png", deep[3])]
    write_tar(tmp_path / "a.tar", sorted(members))
    declared = Annotations(images=("a.png",))
    shardflow.pack(tmp_path / "a.tar", tmp_path / "set", **{**PACK, "annotations": declared, "format": "npy"})
    options = {**LOAD, "batch_size": 2, "decoder": decoder}
    batches = [*shardflow.Loader(tmp_path / "set", fields=("image", "images"), **options)]
    none, (one,), *others = [own for _, images in batches for own in images]
    assert one.dtype == batches[0][0][0].dtype == torch.uint16
    assert (one == 2700).all()
    assert shardflow.verify(tmp_path / "set", sources=[tmp_path / "a.tar"]) == []
    for empty in (none, *others):
        if decoder is CENTRE:
            assert (empty.shape, empty.dtype) == ((0, 1, 24, 24), torch.uint16)
        else:
            assert empty == []


def test_a_damaged_one_is_that_of_its_sample(tmp_path: Path) -> None:
    """An image that does not decode names sample and part; with max_errors another one replaces it, by a copy."""
    samples = [(f"{n}", {"a.jpg": jpeg(n)[: 300 if n == 1 else None], "txt": f"{n}".encode()}) for n in range(4)]
    declared = Annotations(images=("a.jpg",))
    url = write_dataset(tmp_path / "set", {"train": [samples]}, annotations=declared)
    options: dict[str, Any] = {**LOAD, "fields": ("images", "txt"), "decoder": CENTRE}
    with pytest.raises(DecodeError, match=r"a\.jpg") as raised:
        next(iter(shardflow.Loader(url, **options)))
    assert raised.value.key == "1"
    ((images, texts),) = shardflow.Loader(url, max_errors=1, **options)
    assert texts == ["0", "2", "2", "3"]
    assert torch.equal(images[1], images[2])

    def inverted(sample: dict[str, Any]) -> dict[str, Any]:
        for image in sample["images"]:
            image.bitwise_not_()
        return sample

    transform = shardflow.annotations.WholeSample(inverted)
    ((written, _),) = shardflow.Loader(url, max_errors=1, transform=transform, **options)
    assert all(torch.equal(~each, before) for each, before in zip(written, images, strict=True))


def test_what_is_refused(documents: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Samples without an image, an image twice, images that no input has, a transform of one image, and other names."""
    write_tar(tmp_path / "a.tar", [("x.txt", b"words"), ("y.jpg", photo(1))])
    with pytest.raises(PackIncompleteError, match="no image among its parts: txt"):
        shardflow.pack(tmp_path / "a.tar", tmp_path / "a", **{**PACK, "annotations": None})
    twice = [("x.0.jpg", photo(1)), ("x.0.png", encoded(Image.new("RGB", (40, 40)), "PNG")), ("y.jpg", photo(1))]
    write_tar(tmp_path / "b.tar", twice)
    with pytest.raises(PackIncompleteError, match=r"0\.jpg and 0\.png"):
        shardflow.pack(tmp_path / "b.tar", tmp_path / "b", **PACK)
    with pytest.raises(ConfigError, match="WholeSample"):
        shardflow.Loader(documents, fields=("images",), transform=torch.flip, **LOAD)
    with pytest.raises(ConfigError, match="leave 'image' out"):
        shardflow.Loader(documents, fields=("image", "images"), **LOAD)
    write_tree(tmp_path / "folder", {"x.jpg": photo(1), "x.0.jpg": photo(2)})
    for declared in (DECLARED, Annotations(images=("misspelt.jpg",))):
        with pytest.raises(ConfigError, match=r"no input has .*--parts"):
            shardflow.pack(tmp_path / "folder", tmp_path / "c", **{**PACK, "annotations": declared})
    with pytest.raises(ConfigError, match=r"no sample has misspelt\.jpg; parts are 0\.jpg, 0\.png, jpg"):
        shardflow.index(tmp_path / "b.tar", tmp_path / "d", annotations=declared)
    folder = shardflow.sources.Folder(tmp_path / "folder", parts=("0.jpg",))
    shardflow.pack(folder, tmp_path / "e", **PACK)
    assert "no input has 1.jpg, 2.jpg, declared as images" in caplog.text
    assert {"jpg", "0.jpg"} <= {*shardflow.open(tmp_path / "e")["train"][0]}
    for images in ("0.jpg", ("jpg",), ("0.txt",), ("0.jpg", "0.png")):
        with pytest.raises(ConfigError, match="images"):
            Annotations(images=images)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="declare it once"):
        Annotations(images=("mask.jpg",), masks=("mask.png",))
