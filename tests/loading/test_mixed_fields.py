"""Mixes of sources of which some lack fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import shardflow
from shardflow.errors import ConfigError
from shardflow.formats.annotations import Annotations, Boxes
from tests.helpers.making import jpeg, write_dataset

CROP = shardflow.decoders.CenterCrop(24)


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten captioned images."""
    samples = [(f"c{n}", {"jpg": jpeg(n), "txt": f"caption {n}".encode()}) for n in range(10)]
    return write_dataset(tmp_path_factory.mktemp("data") / "captions", {"train": [samples]})


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten labelled images with boxes."""
    part = b'{"boxes": [[4, 4, 20, 30]]}'
    samples = [(f"o{n}", {"jpg": jpeg(n), "cls": b"%d" % (n % 2), "json": part}) for n in range(10)]
    declared = Annotations(boxes=Boxes("json", "boxes", "xyxy"))
    root = tmp_path_factory.mktemp("data") / "objects"
    return write_dataset(root, {"train": [samples]}, classes=("one", "other"), annotations=declared)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten texts without images."""
    samples = [(f"t{n}", {"txt": f"text {n}".encode()}) for n in range(10)]
    return write_dataset(tmp_path_factory.mktemp("data") / "texts", {"train": [samples]})


def loader(url: Path, *fields: str, **options: Any) -> shardflow.Loader:
    """A loader of small crops in this process."""
    return shardflow.Loader(url, batch_size=2, decoder=CROP, fields=fields, **{"num_workers": 0, **options})


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_has_none_where_its_source_lacks_a_field(
    captions: Path, objects: Path, texts: Path, workers: int
) -> None:
    """By batch, each source may have its own fields, images too; all others of a batch are as without a mix."""
    fields = ("source", "image", "txt", "label", "boxes")
    sources = [
        (loader(texts, "source", "txt", num_workers=workers), 1),
        (loader(captions, "image", "txt", "source"), 1),
        (loader(objects, "image", "label", "boxes", "source"), 1),
    ]
    found: set[tuple[int, tuple[str, ...]]] = set()
    mix = shardflow.Mix(sources, by="batch", fields=fields)
    assert (mix.fields, mix.classes) == (fields, ["one", "other"])
    for batch in mix:
        columns = dict(zip(fields, batch, strict=True))
        found.add((int(batch[0][0]), tuple(name for name in fields if columns[name] is not None)))
        if columns["image"] is not None:
            assert columns["image"].shape == (2, 3, 24, 24)
        if columns["boxes"] is not None:
            assert [each.shape for each in columns["boxes"]] == [(1, 4)] * 2
    assert found == {
        (0, ("source", "txt")),
        (1, ("source", "image", "txt")),
        (2, ("source", "image", "label", "boxes")),
    }


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_has_none_where_its_source_lacks_a_part(captions: Path, objects: Path, workers: int) -> None:
    """By sample, a part that comes as a list has None for each sample whose source lacks it, in every batch."""
    sources = [
        (loader(captions, "key", "image", "txt", num_workers=workers), 1),
        (loader(objects, "key", "image", "json"), 1),
    ]
    kinds = set()
    for keys, images, words, parsed in shardflow.Mix(sources, fields=("key", "image", "txt", "json")):
        assert images.shape == (2, 3, 24, 24)
        for key, text, content in zip(keys, words, parsed, strict=True):
            kinds.add(key[0])
            assert (text is None, content is None) == ((False, True) if key[0] == "c" else (True, False))
    assert kinds == {"c", "o"}


def _described(sample: dict[str, Any]) -> dict[str, Any]:
    text = sample.get("txt") or f"{sample['label']} {sample['json']['boxes'][0][0]:g}"
    return {"image": sample["image"], "key": sample["key"], "txt": text, "words": len(text.split())}


@pytest.mark.parametrize(("by", "workers"), [("sample", 0), ("sample", 1), ("batch", 0)])
def test_transforms_of_whole_samples_may_read_different_fields(
    captions: Path, objects: Path, by: str, workers: int
) -> None:
    """Sources whose captions lie in different parts become one field: each transform gets what its source reads."""
    whole = shardflow.annotations.WholeSample(_described, returns=("image", "key", "txt", "words"))
    sources = [
        (loader(captions, "image", "key", "txt", transform=whole, num_workers=workers), 1),
        (loader(objects, "image", "key", "label", "json", transform=whole), 2),
    ]
    seen = set()
    for images, keys, texts, words in shardflow.Mix(sources, by=by):
        assert images.shape == (2, 3, 24, 24)
        assert words.dtype == torch.int64
        for key, text in zip(keys, texts, strict=True):
            assert text == (f"caption {key[1:]}" if key[0] == "c" else f"{int(key[1:]) % 2} 4")
            seen.add(key[0])
    assert seen == {"c", "o"}
    one, two = (loader(captions, *fields, transform=whole) for fields in (("image", "key", "txt"), ("image", "txt")))
    with pytest.raises(ConfigError, match=r"only some loaders read 'key'.*by='batch'"):
        shardflow.Mix([(one, 1), (two, 1)])


@pytest.mark.parametrize("lacking", ["label", "boxes", "image"])
def test_a_field_that_does_not_form_a_batch_is_refused(objects: Path, lacking: str) -> None:
    """A tensor by sample, a name that no loader has, and fields that differ without `fields` name field and source."""
    having = {"label": ("image", "boxes"), "boxes": ("image", "label"), "image": ("label",)}[lacking]
    one, two = loader(objects, "image", "label", "boxes"), loader(objects, *having)
    with pytest.raises(ConfigError, match=f"{lacking}.*loader 1"):
        shardflow.Mix([(one, 1), (two, 1)], fields=("image", "label", "boxes"))
    with pytest.raises(ConfigError, match=r"fields=\(...\)"):
        shardflow.Mix([(one, 1), (two, 1)], by="batch")
    for fields in (("image", "label", "boxes", "txt"), ("image",), "image", ("image", "image", "label", "boxes")):
        with pytest.raises(ConfigError, match=r"fields .*found"):
            shardflow.Mix([(one, 1), (two, 1)], by="batch", fields=fields)
    with pytest.raises(ConfigError, match="make loaders with 'source' among their fields"):
        shardflow.Mix([(one, 1), (two, 1)], by="batch", fields=("image", "label", "boxes", "source"))
    with pytest.raises(ConfigError, match="no effect"):
        shardflow.Mix([(one, 1), (one, 1)], by="batch", fields=("image", "label", "boxes"))


def test_device_transforms_take_batches_with_none(captions: Path, objects: Path) -> None:
    """Boxes of one source follow a flip on the device; a transform that needs what a source lacks says so."""
    fields = ("image", "random_key", "txt", "boxes")
    sources = [(loader(captions, *fields[:3]), 1), (loader(objects, "image", "random_key", "boxes"), 1)]
    flip = shardflow.device.RandomHorizontalFlip(1)
    plain = shardflow.Mix(sources, by="batch", fields=fields)
    flipped = shardflow.device.Prefetcher(shardflow.Mix(sources, by="batch", fields=fields), "cpu", [flip])
    seen = 0
    for (images, _, words, boxes), batch in zip(plain, flipped, strict=True):
        assert torch.equal(batch[0], images.flip(-1))
        assert batch[1] == words
        if boxes is None:
            assert batch[2] is None
        else:
            seen += 1
            assert all(
                torch.equal(one[:, [2, 0]], 24 - two[:, [0, 2]]) for one, two in zip(batch[2], boxes, strict=True)
            )
    assert seen
    mixed = shardflow.device.MixUp(num_classes=2)
    pair = [(loader(objects, "image", "random_key", "label"), 1), (loader(captions, "image", "random_key"), 1)]
    lacking = shardflow.Mix(pair, by="batch", fields=("image", "random_key", "label"))
    with pytest.raises(ConfigError, match="label"):
        list(shardflow.device.Prefetcher(lacking, "cpu", [shardflow.device.Normalize(), mixed]))
