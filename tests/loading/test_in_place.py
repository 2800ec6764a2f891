"""Tars read in place: the pixels are those that packing the same files would give."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image, features

import shardflow as sf
from shardflow.errors import SampleError
from shardflow.packing.image.pipeline import pack_image
from shardflow.packing.recipe import Recipe
from shardflow.preview.contact_sheet import decode_picture
from tests.helpers import profiles
from tests.helpers.folders import encoded, png16, stored, turned, xmp_file
from tests.helpers.jpegs import pixels
from tests.helpers.tars import write_tar

pytestmark = pytest.mark.usefixtures("way")

WIDTH, HEIGHT = 26, 18
TURNED = ("RGB", "L", "CMYK", "RGBA", "P")
"""Modes whose files are turned in every way, in every format; others are turned in one."""

AS_THEY_ARE = Recipe(short_side=None, format="png")
PARTS = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "AVIF": "avif"}
PROFILES = {"L": profiles.grey(3.0), "CMYK": profiles.grey_inks(), "RGB": profiles.rgb(profiles.ADOBE, 2.2)}
OPTIONS: dict[str, dict[str, Any]] = {"WEBP": {"lossless": True, "method": 0}, "AVIF": {"speed": 10}}
RGB = Image.fromarray(pixels(3, WIDTH, HEIGHT).astype(np.uint8))


def _images() -> dict[str, Image.Image]:
    """Return a picture in every mode that Pillow has a file format for."""
    alpha = Image.fromarray(np.linspace(0, 255, WIDTH * HEIGHT).astype(np.uint8).reshape(HEIGHT, WIDTH))
    with_alpha = RGB.copy()
    with_alpha.putalpha(alpha)
    grey = np.asarray(RGB.convert("L"))
    palette = RGB.quantize(16)
    seethrough = palette.copy()
    seethrough.info["transparency"] = bytes([0, 128, 255, 40])
    keyed = RGB.convert("L")
    keyed.info["transparency"] = int(grey[0, 0])
    keyed_rgb = RGB.copy()
    keyed_rgb.info["transparency"] = RGB.getpixel((0, 0))
    return {
        **{mode: RGB.convert(mode) for mode in ("1", "L", "RGB", "CMYK", "YCbCr", "LAB", "HSV")},
        "RGBA": with_alpha,
        "LA": with_alpha.convert("LA"),
        "P": palette,
        "P with alpha": seethrough,
        "L with a key": keyed,
        "RGB with a key": keyed_rgb,
        "PA": with_alpha.convert("PA"),
        "I;16": Image.fromarray(grey.astype(np.uint16) * 200 + 17),
        "I": Image.fromarray(grey.astype(np.int32) * 200),
        "F": Image.fromarray(grey.astype(np.float32)),
    }


@functools.cache
def _files() -> dict[str, bytes]:
    """Return name → a file, in every format and mode that Pillow writes, turned, and with profiles."""
    named: dict[bytes, str] = {}
    formats = ("JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP", "PPM", *(["AVIF"] if features.check("avif") else []))
    for kind, (mode, image) in itertools.product(formats, _images().items()):
        for orientation in range(1, 9) if mode in TURNED else (1, 6):
            extras: dict[str, Any] = {"exif": turned(orientation)} if orientation > 1 else {}
            with_key = {"transparency": key} if (key := image.info.get("transparency")) is not None else {}
            profile = PROFILES.get(image.mode, PROFILES["RGB"])
            for name, given in {"": {}, " with a profile": {"icc_profile": profile}}.items():
                with contextlib.suppress(
                    OSError, ValueError, KeyError, TypeError, UserWarning
                ):  # not written by Pillow
                    data = encoded(image, kind, **OPTIONS.get(kind, {}), **extras, **given, **with_key)
                    named.setdefault(data, f"{kind} {mode}, {orientation}{name}")
    files = {name: data for data, name in named.items()}
    for kind, orientation in itertools.product(["JPEG", "PNG", "WEBP", "TIFF"], range(2, 9)):
        files[f"{kind} by XMP, {orientation}"] = xmp_file(kind, RGB, orientation)
    deep = np.asarray(_images()["RGBA"]).astype(np.uint16) * 257 + 31
    for colour_type, channels in ((2, [0, 1, 2]), (4, [0, 3]), (6, [0, 1, 2, 3])):
        files[f"PNG of 16 bits, {len(channels)}"] = png16(deep[..., channels], colour_type)
    files["JPEG with sRGB"] = encoded(RGB, "JPEG", icc_profile=profiles.rgb(profiles.SRGB, 2.2))
    files["JPEG progressive, 6"] = encoded(RGB, "JPEG", progressive=True, exif=turned(6))
    return files


@pytest.fixture(scope="module")
def packed() -> dict[str, npt.NDArray[np.uint8]]:
    """Name → the pixels that packing a file without loss and without a resize gives, for those that can be packed."""
    found = {}
    for name, data in _files().items():
        with contextlib.suppress(SampleError):
            found[name] = np.asarray(Image.open(io.BytesIO(pack_image(data, AS_THEY_ARE).image)).convert("RGB"))
    return found


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tar of all files, indexed in place. A file of a format that shards do not have is called a PNG."""
    root = tmp_path_factory.mktemp("indexed")
    members = []
    for number, (name, data) in enumerate(_files().items()):
        members.append((f"{number:05}.{PARTS.get(name.split()[0], 'png')}", data))
    write_tar(root / "a.tar", members)
    sf.index(root)
    return root


def _payloads(indexed: Path) -> Iterator[tuple[str, memoryview, npt.NDArray[np.int64]]]:
    split = sf.open(indexed)["train"]
    sizes = split.image_sizes()
    for number, name in enumerate(_files()):
        (payload,) = split.reader.read(*split.locate(number)).parts.values()
        yield name, payload, sizes[number : number + 1]


def test_all_kinds_are_among_the_files(packed: dict[str, npt.NDArray[np.uint8]]) -> None:
    """The files are of every format, mode and orientation, and packing refuses floats and grey of 32 bits alone."""
    assert len(packed) > 400
    refused = {name.partition(",")[0] for name in set(_files()) - set(packed)}
    assert refused <= {"TIFF F", "TIFF I", "PPM F"}


def test_whole_images(indexed: Path, packed: dict[str, npt.NDArray[np.uint8]]) -> None:
    """Whole images are equal, pixel by pixel, to what packing gives; what it refuses fails to decode."""
    data = sf.Loader(indexed, batch_size=1, decoder=sf.decoders.Image(), fields=("image",), num_workers=0).dataset
    wrong = []
    for number, name in enumerate(_files()):
        if name not in packed:
            with pytest.raises(SampleError):
                data[number]
        elif not np.array_equal(data[number][0].permute(1, 2, 0).numpy(), packed[name]):
            wrong.append(name)
    assert wrong == []


def test_crops(indexed: Path, packed: dict[str, npt.NDArray[np.uint8]]) -> None:
    """Crops, views and what a device decodes are cut out of the same upright pixels, with a known size and without."""
    crop = sf.decoders.RandomResizedCrop(12)
    decoders = [crop, sf.decoders.CenterCrop(12, resize=14), sf.decoders.MultiView([crop, crop])]
    keys = np.array([7], dtype=np.uint64)
    wrong = []
    for name, payload, size in itertools.islice(
        _payloads(indexed), 0, None, 5
    ):  # 5 and 8 orientations share no divisor
        if name not in packed:
            continue
        whole = packed[name].copy()
        height, width = whole.shape[:2]
        for decoder, known in itertools.product(decoders, [size, np.zeros_like(size)]):
            found = decoder([payload], known, keys)
            expected = decoder([whole], np.array([[width, height]]), keys)
            if found.failures or not all(map(torch.equal, _views(found.images), _views(expected.images))):
                wrong.append((name, decoder, known))
            views = found.crops if isinstance(found.crops, tuple) else (found.crops,)
            if any(one is None or one.source.tolist() != [[width, height]] for one in views):
                wrong.append((name, decoder, known))
        for decoder in decoders:  # a file that no dataset has
            expected = decoder([whole], np.array([[width, height]]), np.zeros(1, np.uint64))
            if not all(map(torch.equal, _views(decoder.read(bytes(payload))), _views(expected.images))):
                wrong.append((name, decoder, "read"))
        rows = sf.decoders.Raw()([payload], size, keys).images
        assert isinstance(rows, torch.Tensor)
        if not torch.equal(sf.device.DecodeJpeg(crop)(rows, torch.device("cpu")), crop([whole], size, keys).images):
            wrong.append((name, "DecodeJpeg", size))
    assert wrong == []


def _views(images: Any) -> tuple[torch.Tensor, ...]:
    return images if isinstance(images, tuple) else (images,)


def test_annotations_are_of_the_upright_image(tmp_path: Path) -> None:
    """Masks, boxes and keypoints of turned images lie on what they mark, in whole images and in crops."""
    picture = np.full((60, 90, 3), 20, np.uint8)
    picture[8:24, 50:80] = 230
    mask = encoded(Image.fromarray((picture[..., 0] > 100).astype(np.uint8)), "PNG")
    marks = json.dumps({"boxes": [[50, 8, 80, 24]], "points": [[65, 16]]}).encode()
    members = []
    for orientation, kind in itertools.product(range(1, 9), ("JPEG", "PNG")):
        image = encoded(stored(Image.fromarray(picture), orientation), kind, exif=turned(orientation))
        key = f"{kind}{orientation}"
        members += [(f"{key}.{PARTS[kind]}", image), (f"{key}.mask.png", mask), (f"{key}.json", marks)]
    write_tar(tmp_path / "a.tar", members)
    boxes, points = sf.annotations.Boxes("json", "boxes", "xyxy"), sf.annotations.Keypoints("json", "points", "xy")
    sf.index(tmp_path, annotations=sf.annotations.Annotations(masks=("mask.png",), boxes=boxes, keypoints=points))
    fields = ("image", "mask", "boxes", "keypoints")
    for decoder in (sf.decoders.Image(stack=False), sf.decoders.RandomResizedCrop(64, scale=(0.5, 1.0))):
        loader = sf.Loader(tmp_path, batch_size=4, decoder=decoder, fields=fields, num_workers=0)
        for batch in loader:
            for image, masked, ((left, top, right, bottom),), ((x, y),) in zip(*batch, strict=True):
                is_bright = image[0] > 125
                assert (is_bright == (masked[0] > 0)).float().mean() > 0.98
                rows, columns = (is_bright.any(axis).nonzero().flatten() for axis in (1, 0))
                found = torch.tensor([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
                assert (found - torch.stack([left, top, right, bottom])).abs().max() < 2
                if 0 <= x < image.shape[2] and 0 <= y < image.shape[1]:
                    assert is_bright[int(y), int(x)]


def test_previews(indexed: Path, packed: dict[str, npt.NDArray[np.uint8]]) -> None:
    """A contact sheet shows the same pixels, and says the size of the upright image."""
    for name, payload, _ in _payloads(indexed):
        if name in packed:
            picture, size = decode_picture(bytes(payload)) or (None, None)
            np.testing.assert_array_equal(np.asarray(picture), packed[name], err_msg=name)
            assert size == packed[name].shape[1::-1], name


def test_pixel_cache(tmp_path: Path) -> None:
    """With decoded images on disk, an epoch has the same pixels, in the first epoch and in the next."""
    images = [data for name, data in _files().items() if "F" not in name.split(",")[0]]
    write_tar(tmp_path / "tars/a.tar", [(f"{n:05}.png", data) for n, data in enumerate(images)])
    sf.index(tmp_path / "tars")
    options: dict[str, Any] = {"batch_size": 64, "decoder": sf.decoders.CenterCrop(12), "fields": ("image", "index")}
    plain = sf.Loader(tmp_path / "tars", shuffle=False, num_workers=0, **options)
    cached = sf.Loader(
        tmp_path / "tars", shuffle=False, num_workers=0, cache=sf.Cache(tmp_path / "cache", pixels="1 GB"), **options
    )
    for expected in plain:
        assert expected[0].any()
    for _ in range(2):
        for (one, numbers), (other, others) in zip(plain, cached, strict=True):
            assert numbers.tolist() == others.tolist()
            assert torch.equal(one, other)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """`Decoder.read` takes a path or bytes; what is not an image, and a file that is not there, raise their errors."""
    (tmp_path / "a.png").write_bytes(encoded(RGB, "PNG"))
    crop = sf.decoders.CenterCrop(8)
    assert torch.equal(crop.read(tmp_path / "a.png"), crop.read(encoded(RGB, "PNG")))
    with pytest.raises(SampleError, match="not an image"):
        crop.read(b"text")
    (tmp_path / "cut.png").write_bytes(encoded(RGB, "PNG")[:60])
    with pytest.raises(SampleError, match=r"cut\.png: .*image"):
        crop.read(tmp_path / "cut.png")
    with pytest.raises(FileNotFoundError, match=r"b\.png"):
        crop.read(str(tmp_path / "b.png"))
