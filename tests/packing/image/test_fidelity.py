"""How far packed images may be from a reference resize of their sources.

Before encoding at least 50 dB of PSNR; 40 dB where a JPEG four times as large or larger is decoded at a reduced scale.
What the encoder adds is no more than it adds to the reference itself, to 0.1 dB; 1 dB from a reduced decode.
"""

from __future__ import annotations

import functools
import io

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from shardflow import native
from shardflow.formats import seek_table
from shardflow.packing.image.pipeline import pack_image
from shardflow.packing.recipe import make_recipe
from tests.helpers.folders import encoded
from tests.helpers.jpegs import pixels
from tests.helpers.reference import Pixels, decoded, psnr_db, resized

WHOLE_DB, REDUCED_DB = 50.0, 40.0
WHOLE_LOSS_DB, REDUCED_LOSS_DB = 0.1, 1.0

SIZES = [(640, 480), (481, 641), (300, 1000), (1602, 1203), (97, 96)]
KINDS = {
    "JPEG": {"quality": 93},
    "JPEG 4:4:4": {"quality": 93, "subsampling": 0},
    "JPEG progressive": {"quality": 80, "progressive": True},
    "PNG": {},
    "WEBP": {"quality": 90},
}

pytestmark = pytest.mark.usefixtures("either_decoder")


@functools.cache  # the same for both decoders, and for several tests
def _source(kind: str, number: int, size: tuple[int, int]) -> bytes:
    return encoded(Image.fromarray(pixels(number, *size)), kind.partition(" ")[0], **KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_those_of_the_reference(kind: str) -> None:
    """Where the encoder loses nothing, every packed image is the reference to 50 dB, 40 dB from a reduced decode."""
    for number, size in enumerate(SIZES):
        data = _source(kind, number, size)
        for short_side in (64, 90):
            packed = decoded(pack_image(data, make_recipe(short_side=short_side, format="png")).image)
            assert min(packed.shape[:2]) == short_side
            wanted = _wanted(data, packed.shape[1], packed.shape[0])
            reduced = kind.startswith("JPEG") and min(size) >= 4 * short_side
            assert psnr_db(packed, wanted) > (REDUCED_DB if reduced else WHOLE_DB)


@pytest.mark.parametrize("settings", [{}, {"quality": 75}, {"quality": 95, "subsampling": "4:4:4"}], ids=str)
def test_encoding_adds_what_the_encoder_must(settings: dict[str, object]) -> None:
    """A packed JPEG is as near to the reference as the reference itself after the same encoder, to 0.1 or 1 dB."""
    for number, size in enumerate(SIZES):
        data = _source("JPEG", number, size)
        packed = decoded(pack_image(data, make_recipe(short_side=96, **settings)).image)
        wanted = _wanted(data, packed.shape[1], packed.shape[0])
        best = _encoded(wanted.round().astype(np.uint8), **{"quality": 90, "subsampling": "4:2:0", **settings})
        loss = REDUCED_LOSS_DB if min(size) >= 4 * 96 else WHOLE_LOSS_DB
        assert psnr_db(packed, wanted) > psnr_db(best, wanted) - loss


@functools.cache
def _wanted(data: bytes, width: int, height: int) -> Pixels:
    return resized(decoded(data), width, height)


def _encoded(picture: npt.NDArray[np.uint8], **how: object) -> npt.NDArray[np.uint8]:
    return decoded(encoded(Image.fromarray(picture), "JPEG", **how))


def test_default_recipe_is_frozen() -> None:
    """By default the bytes of pictures that Pillow encodes are those of a few plain lines with the same libraries."""
    sources = [_source("PNG", 2, (300, 420))]
    if not native.available():
        sources += [_source("JPEG", 1, (640, 480)), _source("JPEG", 3, (100, 90))]
        sources += [encoded(Image.open(io.BytesIO(_source("JPEG", 4, (500, 600)))).convert("L"), "JPEG")]
    for data in sources:
        assert pack_image(data, make_recipe()).image == _plainly(data)


def _plainly(data: bytes) -> bytes:
    image = Image.open(io.BytesIO(data))
    scale = min(1.0, 256 / min(image.size))
    image = image.resize((int(image.width * scale + 0.5), int(image.height * scale + 0.5)), Image.Resampling.BICUBIC)
    jpeg = encoded(image.convert("RGB"), "JPEG", quality=90, subsampling="4:2:0")
    segment = native.seek_table(jpeg) if native.available() else None
    return seek_table.insert(jpeg, segment) if segment else jpeg
