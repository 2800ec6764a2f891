"""What is a plain JPEG, and that it is packed as if Pillow had opened it."""

from __future__ import annotations

import random
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image, ImageCms

from shardflow import native
from shardflow._pillow import open_image
from shardflow.errors import SampleError
from shardflow.formats import seek_table
from shardflow.formats.jpeg_header import plain_header
from shardflow.packing.image import pipeline
from shardflow.packing.image.pipeline import pack_image
from shardflow.packing.recipe import Recipe
from tests.helpers import jpegs
from tests.helpers.folders import encoded, turned

PICTURE = Image.fromarray(jpegs.pixels(3, 60, 44))
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
PLAIN = {
    "4:2:0": encoded(PICTURE, "JPEG"),
    "progressive": encoded(PICTURE, "JPEG", progressive=True),
    "grey": encoded(PICTURE.convert("L"), "JPEG"),
    "profile": encoded(PICTURE, "JPEG", icc_profile=PROFILE),
    "comment": encoded(PICTURE, "JPEG", comment=b"text \xff\xc0"),
    "seek table": seek_table.insert(encoded(PICTURE, "JPEG"), b"\xff\xe9\0\x0csf-seek\0\1\0"),
    "restarts": encoded(PICTURE, "JPEG", restart_marker_blocks=1),
}
OTHERS = {
    "Exif": encoded(PICTURE, "JPEG", exif=turned(6)),
    "CMYK": encoded(PICTURE.convert("CMYK"), "JPEG"),
    "profile in two parts": encoded(PICTURE, "JPEG", icc_profile=PROFILE + bytes(70_000)),
    "two pictures": encoded(PICTURE, "MPO", save_all=True, append_images=[PICTURE]),
    "PNG": encoded(PICTURE, "PNG"),
    "empty": b"",
}


@pytest.mark.parametrize("kind", PLAIN)
def test_headers_say_what_pillow_reads(kind: str) -> None:
    """Size, mode and profile are those that Pillow has."""
    header, image = plain_header(PLAIN[kind]), open_image(PLAIN[kind])
    assert header is not None
    assert (header.size, header.mode, header.profile) == (image.size, image.mode, image.info.get("icc_profile"))


@pytest.mark.parametrize("kind", OTHERS)
def test_other_images_are_not_plain(kind: str) -> None:
    """Whatever could turn an image, hold a second one or need Pillow's judgement is left to Pillow."""
    assert plain_header(OTHERS[kind]) is None


@pytest.mark.skipif(not native.available(), reason=native.describe())
@pytest.mark.parametrize("kind", PLAIN)
def test_what_pillow_refuses_is_refused(kind: str) -> None:
    """However a header is damaged or cut, a plain JPEG that the kernel decodes is one that Pillow opens as well."""
    rng, plain, pixels = random.Random(kind), 0, np.empty((4, 4, 3), np.uint8)
    for _ in range(400):
        data = bytearray(PLAIN[kind][: rng.choice((None, None, rng.randrange(1, 700)))])
        for _ in range(rng.choice((1, 2))):
            data[rng.randrange(min(len(data), 640))] = rng.choice((0, 1, 8, 255, rng.randrange(256)))
        header = plain_header(bytes(data))
        if header is None or header.size != PICTURE.size or native.decode_resized(bytes(data), pixels) is not None:
            continue
        image = open_image(bytes(data))
        assert (header.size, header.mode) == (image.size, image.mode)
        plain += 1
    assert plain > 20


@pytest.mark.skipif(not native.available(), reason=native.describe())
@pytest.mark.parametrize("kind", PLAIN)
def test_plain_files_are_packed_as_others(kind: str) -> None:
    """A plain JPEG becomes the same bytes without Pillow as it does when Pillow opens it first."""
    for settings in ({}, {"square": True, "subsampling": "4:4:4"}, {"short_side": 44}):
        recipe = Recipe(**{"short_side": 20, **settings})
        with patch.object(pipeline, "open_image", side_effect=AssertionError("Pillow was asked")):
            packed = pack_image(PLAIN[kind], recipe)
        with patch.object(pipeline, "plain_header", return_value=None):
            assert pack_image(PLAIN[kind], recipe) == packed


def test_limits_hold_for_plain_files() -> None:
    """A plain JPEG with more pixels than allowed is refused, with the message that any image gets."""
    for data in (PLAIN["4:2:0"], OTHERS["Exif"]):
        with pytest.raises(SampleError, match=r"60.*44.*2,639"):
            pack_image(data, Recipe(short_side=20, max_pixels=60 * 44 - 1))
