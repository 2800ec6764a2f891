from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardflow.packing.image.encoded_image import Geometry
from shardflow.packing.image.pipeline import pack_image
from shardflow.packing.recipe import Recipe
from shardflow.packing.sample_recipe import pack_boxes, transform_mask
from tests.helpers.examples import examples
from tests.helpers.folders import encoded, stored, turned

WIDE = Geometry((400, 200), 1, resized=(200, 100), window=(0, 0, 200, 100))
CUT = Geometry((200, 400), 6, resized=(200, 100), window=(50, 0, 150, 100))


def point(geometry: Geometry, x: float, y: float) -> tuple[float, float]:
    """Where a point of the upright image is in the packed one."""
    moved: tuple[float, float] = tuple(geometry.crops.move(np.array([[x, y]]), np.zeros(1, np.int64))[0].tolist())
    return moved


def rectangle(geometry: Geometry, *box: float) -> tuple[float, ...] | None:
    """What is left of a rectangle in the packed image; None where nothing is."""
    found = tuple(pack_boxes(np.array([box], np.float64), geometry.crops)[0][0].tolist())
    return found if any(found) else None


def _marked(width: int, height: int, x: int, y: int, orientation: int) -> bytes:
    """A black picture with a white spot of 8 pixels about a point, such that viewers show it so; stored turned."""
    upright = np.zeros((height, width, 3), np.uint8)
    upright[max(0, y - 4) : y + 4, max(0, x - 4) : x + 4] = 255
    return encoded(stored(Image.fromarray(upright), orientation), "PNG", exif=turned(orientation))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    "recipe", [Recipe(short_side=40, format="png"), Recipe(short_side=40, square=True, format="png")]
)
def test_points_follow_the_pixels(orientation: int, recipe: Recipe) -> None:
    """A point of the upright picture is mapped to where its pixels went, however the file stores them."""
    for x, y in [(60, 30), (110, 70), (80, 50)]:
        packed = pack_image(_marked(160, 100, x, y, orientation), recipe)
        shown = np.asarray(Image.open(io.BytesIO(packed.image)).convert("L")).astype(float)
        total = shown.sum()
        centre = (
            (shown.sum(0) @ (np.arange(shown.shape[1]) + 0.5)) / total,
            (shown.sum(1) @ (np.arange(40) + 0.5)) / total,
        )
        assert point(packed.geometry, x, y) == pytest.approx(centre, abs=0.3)
        assert packed.geometry.upright == (160, 100)
        assert packed.geometry.size == shown.shape[::-1]


def test_rectangles() -> None:
    """A rectangle is scaled, cut at the borders of what was kept, and gone when it lay outside of them."""
    assert rectangle(WIDE, 10, 20, 30, 60) == (5, 10, 15, 30)
    assert rectangle(CUT, 120, 20, 140, 60) == (10, 10, 20, 30)
    assert rectangle(CUT, 0, 0, 200, 400) == (0, 0, 50, 100)
    assert rectangle(CUT, 0, 0, 100, 200) is None
    assert rectangle(CUT, 350, 0, 390, 200) is None


def test_rectangles_without_area() -> None:
    """A line or a point stays one at its place if it is in what was kept, its border included."""
    assert rectangle(WIDE, 10, 20, 10, 60) == (5, 10, 5, 30)
    assert rectangle(WIDE, 10, 20, 10, 20) == (5, 10, 5, 10)
    assert rectangle(WIDE, 0, 20, 0, 60) == (0, 10, 0, 30)
    assert rectangle(CUT, 0, 20, 200, 20) == (0, 10, 50, 10)
    assert rectangle(CUT, 90, 20, 90, 60) is None
    assert rectangle(CUT, 0, 20, 100, 20) is None


@examples(60)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 50), st.booleans(), st.booleans())
def test_corners_meet(width: int, height: int, short_side: int, square: bool, enlarge: bool) -> None:
    """The corners of what was kept are the corners of the packed picture, and it lies within the upright one."""
    recipe = Recipe(short_side=short_side, square=square, enlarge=enlarge)
    geometry = pack_image(encoded(Image.new("L", (width, height)), "BMP"), recipe).geometry
    sides = np.array((width, height) * 2)
    left, top, right, bottom = (np.array(geometry.window) * sides / np.tile(geometry.resized, 2)).tolist()
    assert point(geometry, left, top) == pytest.approx((0, 0), abs=1e-9)
    assert point(geometry, width, height) == tuple(np.array(geometry.resized) - geometry.window[:2])
    mask = transform_mask(encoded(Image.new("L", (width, height)), "PNG"), geometry)
    assert Image.open(io.BytesIO(mask)).size == geometry.size
    assert point(geometry, right, bottom) == pytest.approx(geometry.size)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
