from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.formats.segments import Segment
from shardflow.geometry.crops import Crops
from shardflow.geometry.segment_masks import move_segment, segment_mask

Polygons = list[list[tuple[int, int]]]
CORNERS = st.lists(st.tuples(st.integers(-40, 160), st.integers(-40, 160)), max_size=7)  # tenths of a pixel


def is_inside(x: float, y: float, polygon: npt.NDArray[Any]) -> bool:
    """Whether a point is in a polygon, by the even-odd rule, edge by edge."""
    count = 0
    for (x1, y1), (x2, y2) in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        if (y1 <= y) != (y2 <= y) and x1 + (y - y1) * (x2 - x1) / (y2 - y1) < x:
            count += 1
    return count % 2 == 1


def distance(x: float, y: float, polygon: npt.NDArray[Any]) -> float:
    """The distance of a point from the edges of a polygon."""
    edges = np.roll(polygon, -1, axis=0) - polygon
    lengths = np.maximum((edges * edges).sum(1), 1e-12)
    along = (((x, y) - polygon) * edges).sum(1) / lengths
    return float(np.linalg.norm(polygon + edges * along.clip(0, 1)[:, None] - (x, y), axis=1).min())


@st.composite
def any_crops(draw: st.DrawFn) -> Crops:
    """Draw any crop of an image of 12x10 pixels."""
    left, top = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    box = (left, top, draw(st.integers(1, 12 - left)), draw(st.integers(1, 10 - top)))
    resized = (draw(st.integers(1, 14)), draw(st.integers(1, 14)))
    offset = tuple(draw(st.integers(0, side - 1)) for side in resized)
    return Crops.of([(12, 10)], box=[box], resized=resized, offset=offset, flip=[draw(st.booleans())])


@given(st.lists(CORNERS, max_size=3), any_crops())
def test_a_pixel_is_in_an_object_if_its_centre_is(polygons: Polygons, crops: Crops) -> None:
    """In any crop, a pixel is 1 if its centre lies in one of the polygons, edge by edge; 1e-6 from an edge, either."""
    arrays = [np.array(each, dtype=np.float64).reshape(-1, 2) / 10 for each in polygons]
    segment = Segment.parse([each.ravel().tolist() for each in arrays], (12, 10))
    mask = segment_mask(segment, crops, 0)
    moved = [crops.move(each, np.zeros(len(each), dtype=np.int64)) for each in arrays if len(each)]
    assert mask.shape == tuple(crops.extents[0][::-1])
    for y, x in np.ndindex(*mask.shape):
        centre = (x + 0.5, y + 0.5)
        if min((distance(*centre, each) for each in moved), default=1) > 1e-6:
            assert mask[y, x] == any(is_inside(*centre, each) for each in moved)


@given(st.lists(CORNERS, max_size=3), any_crops())
def test_a_mirrored_mask_is_the_mirror_image(polygons: Polygons, crops: Crops) -> None:
    """A crop that is mirrored has exactly the mirrored mask, of polygons and of runs."""
    polygon = Segment.parse([np.ravel(each).astype(float).tolist() for each in polygons], (12, 10))
    runs = Segment.of_mask(segment_mask(polygon, Crops.of([(12, 10)]), 0))
    other = Crops.of([(12, 10)], box=crops.box, resized=crops.resized, offset=crops.offset, flip=~crops.flip)
    for segment in (polygon, runs):
        assert (segment_mask(segment, crops, 0) == segment_mask(segment, other, 0)[:, ::-1]).all()
    assert (segment_mask(runs, crops, 0) == crops.crop_mask(0, runs.run_mask())).all()
    assert (move_segment(runs, crops).run_mask() == segment_mask(runs, crops, 0)).all()


@pytest.mark.parametrize("rows", [4, 200])
def test_large_polygons_take_little_memory(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges are taken in parts, by how many rows they may cross, with the same mask."""
    rng = np.random.default_rng(1)
    segment = Segment.parse([rng.uniform(-1e30, 1e30, 80).tolist(), rng.uniform(0, 300, 80).tolist()], (300, rows))
    crops = Crops.of([(300, rows)])
    whole = segment_mask(segment, crops, 0)
    monkeypatch.setattr("shardflow.geometry.segment_masks._MOST_CROSSINGS", 500)
    assert (segment_mask(segment, crops, 0) == whole).all()
    assert 0 < whole.sum() < whole.size
