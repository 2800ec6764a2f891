"""Images that the kernel reads out of the shards: batches, errors and statistics are as if they were read before."""

from __future__ import annotations

import ctypes
import gc
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import shardflow as sf
from shardflow import native
from shardflow.errors import DecodeError, IntegrityError
from shardflow.formats import image_array
from tests.helpers.making import flip, jpeg, write_dataset

NUMBER, CMYK, PNG = 48, 20, 33
IN_FILES, BEFORE = ("image", "label", "note.json"), ("image", "label", "note.json", "jpg")
"""Who wants the encoded image gets it from memory."""


def recoded(number: int, mode: str, kind: str) -> bytes:
    """Return the JPEG of a number in another mode, or as another kind of file."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(jpeg(number))).convert(mode).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture
def url(tmp_path: Path) -> Path:
    """A dataset of labelled JPEGs, among them one in CMYK and one that is a PNG."""
    images = {number: jpeg(number) for number in range(NUMBER)}
    images |= {CMYK: recoded(CMYK, "CMYK", "JPEG"), PNG: recoded(PNG, "RGB", "PNG")}
    samples = [
        (f"{number:04}", {"jpg": image, "cls": b"%d" % number, "note.json": b'{"of": %d}' % number})
        for number, image in images.items()
    ]
    shards = [samples[:20], samples[20:40], samples[40:]]
    return write_dataset(tmp_path / "set", {"train": shards}, classes=tuple(map(str, range(NUMBER))))


@pytest.fixture
def in_files(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images of each batch the kernel was to read."""
    if not native.available():
        pytest.skip(native.describe())
    seen: list[int] = []
    decode_views = native.decode_views

    def counted(*arguments: Any, in_files: Any = (), **named: Any) -> Any:
        seen.append(sum(place is not None for place in in_files))
        return decode_views(*arguments, in_files=in_files, **named)

    monkeypatch.setattr(native, "decode_views", counted)
    return seen


def loaded(url: Path | str, fields: tuple[str, ...], **options: Any) -> tuple[list[Any], sf.Loader]:
    """Return the batches of an epoch, without the encoded images, and the loader."""
    decoder = sf.decoders.RandomResizedCrop(24)
    loader = sf.Loader(url, batch_size=6, decoder=decoder, fields=fields, num_workers=0, **options)
    return [[images.clone(), labels.tolist(), *rest[:1]] for images, labels, *rest in loader], loader


def assert_same(url: Path, **options: Any) -> set[str]:
    """Check that batches, replaced samples and statistics are those of images that were read before."""
    found, loader = loaded(url, IN_FILES, **options)
    expected, other = loaded(url, BEFORE, **options)
    for (images, *rest), (others, *also) in zip(found, expected, strict=True):
        assert torch.equal(images, others)
        assert rest == also
    assert loader.replaced == other.replaced
    for name in ("samples", "read_bytes", "replaced"):
        assert getattr(loader.stats(), name) == getattr(other.stats(), name)
    return loader.replaced


def damage(url: Path, number: int, part: str) -> None:
    """Flip a byte of a part."""
    payload = sf.open(url)["train"][number][part]
    path = url / f"train/{number // 20:06}.tar"
    flip(path, path.read_bytes().index(payload) + len(payload) // 2)


def test_batches_are_those_of_images_read_before(url: Path, in_files: list[int]) -> None:
    """Pixels, parts and counts are equal, also of a CMYK file and of a PNG that is named jpg; so in a remote copy."""
    assert not assert_same(url)
    assert max(in_files) == 6
    assert not assert_same(url, shuffle=False)
    far = loaded(f"local://{url}", IN_FILES, shuffle=False, cache=url.parent / "cache")
    near = loaded(url, BEFORE, shuffle=False)
    for one, other in zip(far[0], near[0], strict=True):
        assert torch.equal(one[0], other[0])


@pytest.mark.parametrize("part", ["jpg", "note.json"])
def test_damaged_samples_are_replaced_alike(url: Path, in_files: list[int], part: str) -> None:
    """Samples with a damaged image, or a damaged part beside it, give way to the same others, and are named alike."""
    for number in (3, 4, 30):
        damage(url, number, part)
    assert len(assert_same(url, max_errors=3)) == 3
    assert len(assert_same(url, max_errors=3, shuffle=False)) == 3
    with pytest.raises(IntegrityError, match="sample 0003: part"):
        loaded(url, IN_FILES, shuffle=False)
    assert in_files


def test_damage_beside_what_does_not_decode(tmp_path: Path, in_files: list[int]) -> None:
    """A sample that replaces a damaged one, and does not decode, gives way in its turn."""
    samples = [(f"{number:04}", {"jpg": jpeg(number), "cls": b"0", "note.json": b"{}"}) for number in range(6)]
    samples[2][1]["jpg"] = samples[2][1]["jpg"][:300]  # type: ignore[index]
    url = write_dataset(tmp_path / "set", {"train": [samples]}, classes=("a",))
    with pytest.raises(DecodeError, match="sample 0002"):
        loaded(url, IN_FILES, shuffle=False)
    damage(url, 1, "jpg")
    assert len(assert_same(url, max_errors=3, shuffle=False)) == 2
    assert in_files


def test_an_array_that_is_named_as_a_jpeg(tmp_path: Path, in_files: list[int]) -> None:
    """A part named jpg that holds arrays of 16 bits is decoded as those are."""
    array = image_array.to_bytes(np.full((20, 30, 2), 777, np.uint16))
    samples = [(f"{number:04}", {"jpg": array, "cls": b"0", "note.json": b"{}"}) for number in range(6)]
    assert not assert_same(write_dataset(tmp_path / "set", {"train": [samples]}, classes=("a",)))
    assert in_files


def test_memory_of_parts_outlives_another_read(url: Path) -> None:
    """Parts that were read without the kernel leave the memory in place that it would copy them to."""
    sample = sf.open(url)["train"].reader.read(0, 3, in_file=True)
    assert sample.in_file is not None
    assert sample.in_file.read() == jpeg(3)
    gc.collect()
    lent = {ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in sample.in_file.owners[1:]}  # type: ignore[arg-type]
    assert {address for address, *_ in sample.in_file.parts} == lent | {0}
