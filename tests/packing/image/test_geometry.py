from __future__ import annotations

import io
import zlib

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shardflow.errors import DecodeError
from shardflow.packing.image.geometry import Geometry
from shardflow.packing.recipe import Recipe
from tests.helpers.folders import encoded, png16, turned

WIDE = Geometry(stored=(400, 200), orientation=1, box=(0, 0, 400, 200), size=(200, 100))
CUT = Geometry(stored=(200, 400), orientation=6, box=(100, 0, 300, 200), size=(100, 100))


def _marked(width: int, height: int, x: int, y: int, orientation: int) -> bytes:
    """A black picture with a white spot of 8 pixels about a point, such that viewers show it so; stored turned."""
    upright = np.zeros((height, width, 3), np.uint8)
    upright[max(0, y - 4) : y + 4, max(0, x - 4) : x + 4] = 255
    back = {1: [], 2: ["h"], 3: ["h", "v"], 4: ["v"], 5: ["t"], 6: ["r"], 7: ["t", "h", "v"], 8: ["l"]}[orientation]
    stored = upright
    for step in back:
        match step:
            case "h":
                stored = stored[:, ::-1]
            case "v":
                stored = stored[::-1]
            case "t":
                stored = stored.transpose(1, 0, 2)
            case "r" | "l":
                stored = np.rot90(stored, 1 if step == "r" else -1)
    return encoded(Image.fromarray(np.ascontiguousarray(stored)), "PNG", exif=turned(orientation))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    "recipe", [Recipe(short_side=40, format="png"), Recipe(short_side=40, square=True, format="png")]
)
def test_points_follow_the_pixels(orientation: int, recipe: Recipe) -> None:
    """A point of the upright picture is mapped to where its pixels went, however the file stores them."""
    for x, y in [(60, 30), (110, 70), (80, 50)]:
        packed = recipe.process(_marked(160, 100, x, y, orientation))
        shown = np.asarray(Image.open(io.BytesIO(packed.image)).convert("L")).astype(float)
        total = shown.sum()
        centre = (
            (shown.sum(0) @ (np.arange(shown.shape[1]) + 0.5)) / total,
            (shown.sum(1) @ (np.arange(40) + 0.5)) / total,
        )
        assert packed.geometry.point(x, y) == pytest.approx(centre, abs=0.3)
        assert packed.geometry.upright == (160, 100)
        assert packed.geometry.size == shown.shape[::-1]


def test_rectangles() -> None:
    """A rectangle is scaled, cut at the borders of what was kept, and gone when it lay outside of them."""
    assert WIDE.rectangle(10, 20, 30, 60) == (5, 10, 15, 30)
    assert CUT.rectangle(120, 20, 140, 60) == (10, 10, 20, 30)
    assert CUT.rectangle(0, 0, 200, 400) == (0, 0, 50, 100)
    assert CUT.rectangle(0, 0, 100, 200) is None
    assert CUT.rectangle(350, 0, 390, 200) is None


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 50), st.booleans(), st.booleans())
def test_corners_meet(width: int, height: int, short_side: int, square: bool, enlarge: bool) -> None:
    """The corners of what was kept are the corners of the packed picture, and it lies within the upright one."""
    recipe = Recipe(short_side=short_side, square=square, enlarge=enlarge)
    geometry = recipe.process(encoded(Image.new("L", (width, height)), "BMP")).geometry
    left, top, right, bottom = geometry.box
    assert geometry.point(left, top) == (0, 0)
    assert Image.open(io.BytesIO(geometry.mask(encoded(Image.new("L", (width, height)), "PNG")))).size == geometry.size
    assert geometry.point(right, bottom) == pytest.approx(geometry.size)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


LABELS = (np.arange(200 * 400).reshape(200, 400) // 7 % 251).astype(np.uint8)
PALETTE = [value for entry in range(256) for value in (entry, 255 - entry, entry // 2)]


def _palette() -> Image.Image:
    image = Image.fromarray(LABELS)
    image.putpalette(PALETTE)
    return image


MASKS: dict[str, tuple[Image.Image, npt.NDArray[np.generic]]] = {
    "8 bits": (Image.fromarray(LABELS), LABELS),
    "16 bits": (Image.fromarray(LABELS.astype(np.uint16) * 257), LABELS.astype(np.uint16) * 257),
    "palette": (_palette(), LABELS),
    "bilevel": (Image.fromarray(LABELS > 99), LABELS > 99),
    "colours": (
        Image.fromarray(np.stack([LABELS, LABELS // 2, LABELS * 0], -1)),
        np.stack([LABELS, LABELS // 2, LABELS * 0], -1),
    ),
}


@pytest.mark.parametrize("case", MASKS)
@pytest.mark.parametrize("geometry", [WIDE, CUT], ids=["whole", "cut"])
def test_masks(case: str, geometry: Geometry) -> None:
    """A mask keeps its values, its depth and its palette, and each pixel takes the value of the nearest one."""
    image, values = MASKS[case]
    made = Image.open(io.BytesIO(geometry.mask(encoded(image, "PNG"))))
    left, top, right, bottom = geometry.box
    columns = (left + (np.arange(geometry.size[0]) + 0.5) * (right - left) / geometry.size[0]).astype(int)
    rows = (top + (np.arange(geometry.size[1]) + 0.5) * (bottom - top) / geometry.size[1]).astype(int)
    assert (np.asarray(made) == values[np.ix_(rows, columns)]).all()
    assert made.format == "PNG"
    assert made.mode == image.mode
    assert made.getpalette() == image.getpalette()


@pytest.mark.parametrize("format_name", ["BMP", "GIF", "TIFF"])
def test_masks_in_other_formats(format_name: str) -> None:
    """Whatever lossless format a mask comes in, it leaves as a PNG with the same values."""
    made = Image.open(io.BytesIO(WIDE.mask(encoded(Image.fromarray(LABELS), format_name))))
    assert (np.asarray(made) == LABELS[1::2, 1::2]).all()


UNFIT = {
    "lossy": (encoded(Image.fromarray(LABELS), "JPEG"), "not an image in one of the formats PNG"),
    "of another size": (
        encoded(Image.fromarray(LABELS[:100]), "PNG"),
        "a mask of 400x100 pixels for a picture of 400x200",
    ),
    "translucent": (encoded(Image.fromarray(LABELS).convert("LA"), "PNG"), "mode LA has no plain label values"),
    "floating point": (encoded(Image.new("F", (400, 200)), "TIFF"), "mode F has no plain label values"),
    "cut short": (encoded(Image.fromarray(LABELS), "PNG")[:300], "."),
    "empty": (b"", "the file is empty"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_unfit_masks(case: str) -> None:
    """A mask whose values or places could be wrong is refused rather than guessed at."""
    data, said = UNFIT[case]
    with pytest.raises(DecodeError, match=said):
        WIDE.mask(data)


def test_depths_that_pillow_changes_are_refused() -> None:
    """Grey of 2 or 4 bits would be spread, label 1 becoming 85 or 17, and colours of 16 bits cut to 8: refused."""
    with pytest.raises(DecodeError, match="no plain label values"):
        WIDE.mask(png16(np.zeros((200, 400, 3), np.uint16), 2))
    plain = encoded(Image.new("1", (400, 200)), "PNG")
    for bits in (2, 4):
        with pytest.raises(DecodeError, match="no plain label values"):
            WIDE.mask(_with_depth(plain, bits))


def _with_depth(data: bytes, bits: int) -> bytes:
    head = data[12:24] + bytes([bits, 0]) + data[26:29]
    return data[:12] + head + zlib.crc32(head).to_bytes(4, "big") + data[33:]
