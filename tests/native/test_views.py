"""Several crops of one decode have the pixels that each has by itself."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardflow import native
from shardflow.errors import ConfigError
from shardflow.formats import seek_table
from shardflow.native.binding import Payload, Problem, Status
from tests.helpers import jpegs
from tests.helpers.examples import examples
from tests.native.test_pixels import KINDS, empty


@st.composite
def views_of(draw: st.DrawFn, width: int, height: int, count: int) -> native.View:
    """A view of `count` images of this size: any box, a window of it at any size, flipped or not."""
    boxes, resized = [], []
    out = empty(count, draw(st.integers(1, 40)), draw(st.integers(1, 40)), channels_last=draw(st.booleans()))
    for _ in range(count):
        x, y = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
        boxes.append((x, y, draw(st.integers(1, width - x)), draw(st.integers(1, height - y))))
        left, top, right, bottom = (draw(st.integers(0, 9)) for _ in range(4))
        resized.append((left + out.shape[3] + right, top + out.shape[2] + bottom, left, top))
    flips = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    return native.View(np.array(boxes, np.int32), flips, out, np.array(resized, np.int32))


def alone(payloads: list[Payload], view: native.View) -> tuple[list[Problem], native.View]:
    """Return the problems of a view that is decoded by itself, and the view with its pixels."""
    channels_last = not view.out[0].flags.c_contiguous
    own = view._replace(out=empty(len(payloads), *view.out.shape[2:], channels_last=channels_last))
    return native.decode_views(payloads, [own]), own


@examples(120)
@given(data=st.data())
def test_views_are_what_they_are_alone(data: st.DataObject) -> None:
    """Any views of any JPEGs, and of decoded images among them, equal the crops of a decode each, bit by bit."""
    width, height = data.draw(st.integers(1, 200)), data.draw(st.integers(1, 200))
    how = KINDS[data.draw(st.sampled_from(sorted(KINDS)))]
    encoded = jpegs.make(data.draw(st.integers(0, 3)), width, height, **how)
    if data.draw(st.booleans()) and (segment := native.seek_table(encoded)) is not None:
        encoded = seek_table.insert(encoded, segment)
    pixels = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))
    payloads: list[Payload] = data.draw(st.sampled_from([[encoded], [encoded, pixels], [pixels, encoded]]))
    views = [data.draw(views_of(width, height, len(payloads))) for _ in range(data.draw(st.integers(1, 4)))]
    assert native.decode_views(payloads, views, seek_tables=np.ones(len(payloads), np.bool_)) == []
    for view in views:
        problems, own = alone(payloads, view)
        assert problems == []
        np.testing.assert_array_equal(view.out, own.out)


@examples(150)
@given(data=st.data())
def test_damaged_images_are_black_in_every_view(data: st.DataObject) -> None:
    """A damaged image fails in all views or in none; its neighbours are whole."""
    whole = jpegs.make(0, 90, 70, **KINDS[data.draw(st.sampled_from(["4:2:0", "progressive", "restart markers"]))])
    chance = random.Random(data.draw(st.integers(0, 1 << 30)))
    damaged = jpegs.flipped(whole, chance, 1) if data.draw(st.booleans()) else whole[: chance.randrange(len(whole))]
    views = [data.draw(views_of(90, 70, 3)) for _ in range(2)]
    problems = native.decode_views([whole, damaged, whole], views)
    assert [problem.index for problem in problems] in ([], [1])
    failed = bool(problems) and problems[0].status is not Status.DAMAGED
    for view in views:
        _, own = alone([whole, damaged, whole], view)
        np.testing.assert_array_equal(view.out[[0, 2]], own.out[[0, 2]])
        if failed:
            assert not view.out[1].any()
        elif not problems:
            np.testing.assert_array_equal(view.out[1], own.out[1])


@examples(80)
@given(data=st.data())
def test_images_of_different_sizes_are_what_they_are_alone(data: st.DataObject) -> None:
    """Each is written to its place, whole or patch by patch, a damaged one as zeros, and nothing elsewhere."""
    patch = data.draw(st.sampled_from([0, 1, 3, 8, 14, 16, 19]))
    grids = data.draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3))
    files: list[Payload] = [jpegs.make(0, 60, 45, **KINDS["4:2:0"]) for _ in grids]
    if is_damaged := data.draw(st.booleans()):
        files[-1] = b"nothing"
    flips = np.array([data.draw(st.booleans()) for _ in grids])
    sides = np.array(grids) * (patch or data.draw(st.integers(1, 30)))
    begins = np.cumsum([data.draw(st.integers(0, 9)), *(3 * sides.prod(axis=1) + 5)])
    out = np.full(int(begins[-1]), 7, np.uint8)
    places = np.column_stack([begins[:-1], sides])
    problems = native.decode_views(files, [native.View(None, flips, out, places=places, patch=patch)])
    assert [problem.index for problem in problems] == [len(files) - 1] * is_damaged
    expected = np.full_like(out, 7)
    for index, (begin, width, height) in enumerate(places.tolist()):
        image = empty(1, height, width)
        native.decode_views(files[index : index + 1], [native.View(None, flips[index : index + 1], image)])
        rows = image[0].reshape(3, height // (patch or height), patch or height, width // (patch or width), -1)
        expected[begin : begin + image.size] = rows.transpose(1, 3, 0, 2, 4).reshape(-1)
    np.testing.assert_array_equal(out, expected)


def test_places_outside_of_the_memory_are_refused() -> None:
    """So are sides that patches do not fill, and types that the kernel would misread."""
    files, flips = [jpegs.make(0, 60, 45)], np.zeros(1, np.bool_)
    memory, square = np.zeros(192, np.uint8), np.array([[0, 8, 8]])
    wrong = [[0, 16, 16], [-1, 8, 8], [0, 9, 8], [0, 0, 8], [1, 8, 8], [2**63 - 1, 8, 8], [0, 1 << 31, 8]]
    refused = [(memory, np.array([each])) for each in wrong]
    for out, places in [*refused, (memory.reshape(2, 96), square), (memory, square.astype(float))]:
        with pytest.raises(ConfigError):
            native.decode_views(files, [native.View(None, flips, out, None, places, 8)])
