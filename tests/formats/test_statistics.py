from __future__ import annotations

import functools
import json
import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.errors import ManifestError
from shardflow.formats.statistics import PixelSums, Statistics, median

SIDES = st.integers(1, 70_000)
IMAGES = st.lists(
    st.tuples(st.tuples(SIDES, SIDES), st.tuples(SIDES, SIDES), st.lists(st.integers(0, 5), max_size=2), st.booleans())
)


def counted(images: list[Any]) -> Statistics:
    """Statistics of some images."""
    statistics = Statistics()
    for before, after, labels, turned in images:
        statistics.count(before=before, after=after, labels=labels, bytes_before=9, **({"turned": 1} if turned else {}))
    return statistics


@given(st.lists(IMAGES, min_size=1, max_size=4), st.randoms())
def test_order_and_grouping_make_no_difference(groups: list[list[Any]], random: Any) -> None:
    """However images are dealt out and in whichever order the parts are added, the statistics are the same."""
    parts = [counted(group) for group in groups]
    random.shuffle(parts)
    total = functools.reduce(operator.add, parts)
    everything = [image for group in groups for image in group]
    random.shuffle(everything)
    assert total == counted(everything)
    assert total.counts["images"] == len(everything)
    assert sum(total.widths_after.values()) == len(everything)
    assert sum(total.classes.values()) == sum(len(labels) for _, _, labels, _ in everything)
    assert json.dumps(total.to_json()) == json.dumps(counted(everything).to_json())


@given(IMAGES)
def test_round_trip(images: list[Any]) -> None:
    """What is written as JSON can be read again."""
    assert Statistics.from_json(json.loads(json.dumps(counted(images).to_json()))) == counted(images)


@given(SIDES)
def test_sides_are_nearly_exact(side: int) -> None:
    """A side is counted as itself up to 31 pixels, and never as more than it is, nor as less than 15/16 of it."""
    ((found, number),) = counted([((side, 1), (1, 1), [], False)]).widths_before.items()
    assert number == 1
    assert side * 15 / 16 < found <= side
    assert found == side or side > 31


def test_any_number_of_images_needs_little_room() -> None:
    """A million different sizes are some hundred numbers."""
    statistics = counted([((side, side), (side, side), [], False) for side in range(1, 65_536, 7)])
    assert len(statistics.widths_before) < 200


def test_mean_and_deviation_are_those_of_all_pixels() -> None:
    """The sums of several images give the mean and the standard deviation over the pixels of all, in 0 … 1."""
    images = [np.random.default_rng(seed).integers(0, 100 * seed, (5 * seed, 3)) for seed in (1, 2)]
    sums = [PixelSums(len(each), tuple(each.sum(0).tolist()), tuple((each**2).sum(0).tolist())) for each in images]
    total, pixels = sums[0] + sums[1], np.concatenate(images) / 255
    assert total.mean == pytest.approx(pixels.mean(0), abs=1e-6)
    assert total.std == pytest.approx(pixels.std(0), abs=1e-6)
    assert PixelSums().mean is PixelSums().std is None
    assert PixelSums() + total == total == PixelSums.from_json(json.loads(json.dumps(total.to_json())))


@pytest.mark.parametrize(("values", "middle"), [({}, 0), ({7: 1}, 7), ({1: 1, 9: 1}, 1), ({1: 1, 5: 1, 9: 1}, 5)])
def test_median(values: dict[int, int], middle: int) -> None:
    """The median is the lower one of the two in the middle."""
    assert median(values) == middle


@pytest.mark.parametrize(
    "content",
    [
        *({"counts": {"images": number}} for number in (0, -1, True, 1.5, "1")),
        *({"classes": {"cat": 1}}, {"counts": [1]}, {"other": {}}, [], 7),
    ],
    ids=str,
)
def test_other_contents_are_refused(content: Any) -> None:
    """Whatever is not the statistics of a dataset is one typed error."""
    with pytest.raises(ManifestError, match="statistics"):
        Statistics.from_json({**Statistics().to_json(), **content} if isinstance(content, dict) else content)
