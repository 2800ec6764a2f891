from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardflow.geometry.crops import Crops, centres
from shardflow.geometry.random_boxes import TRIES, draw_sizes, fits_within, place_boxes, random_resized_crops
from shardflow.order import keyed_rng

SIZES = np.array([[90, 70], [40, 120], [1, 1], [400, 10]])
KEYS = keyed_rng.fold_array(keyed_rng.key("test"), np.arange(len(SIZES)))
ROWS = ("source", "box", "resized", "offset", "flip")


def test_a_step_that_is_not_given_is_left_out() -> None:
    """Of sizes alone, the crops are the whole images, each in its own size; nothing moves, and nothing is mirrored."""
    whole = Crops.of(SIZES)
    assert whole.size is None
    assert (whole.extents == SIZES).all()
    assert (whole.shown == np.concatenate([0 * SIZES, SIZES], axis=1)).all()
    points = np.array([[3.0, 2.0], [7.5, 5.0]])
    assert (whole.move(points, np.array([0, 3])) == points).all()
    mask = np.arange(90 * 70).reshape(70, 90)
    assert (whole.crop_mask(0, mask) == mask).all()


def test_crops_end_with_their_boxes_or_with_the_size() -> None:
    """An output has the size of the batch, or less where its resized box ends before."""
    crops = Crops.of(SIZES, resized=(30, 20), offset=(4, 5), size=(20, 20))
    assert crops.extents.tolist() == [[20, 15]] * 4
    assert Crops.of(SIZES, resized=(30, 20), offset=(4, 5)).extents.tolist() == [[26, 15]] * 4


def test_rows_are_replaced_in_place() -> None:
    """A slice of crops shares their memory, and replacing rows changes these rows alone."""
    crops = Crops.of(SIZES, resized=SIZES // 2 + 1, flip=[False, True, False, True])
    before = Crops.of(SIZES, resized=SIZES // 2 + 1, flip=[False, True, False, True])
    other = Crops.of([(8, 9)], box=[(1, 2, 3, 4)], resized=(5, 6), offset=(1, 1), flip=[True])
    crops[2:3].replace(slice(None), other)
    crops.replace(np.array([0]), crops[1:2])
    for name in ROWS:
        found, were = getattr(crops, name), getattr(before, name)
        assert (found[2] == getattr(other, name)[0]).all()
        assert (found[0] == were[1]).all()
        assert (found[[1, 3]] == were[[1, 3]]).all()


@given(st.integers(1, 500), st.integers(1, 500))
def test_centres_are_the_same_wherever_they_are_computed(source: int, resized: int) -> None:
    """Of numpy and of torch, the pixels shown are the exact ones, and all of them are of the source."""
    exact = [(2 * pixel + 1) * source // (2 * resized) for pixel in range(resized)]
    assert centres(np.arange(resized), source, resized).tolist() == exact
    assert centres(torch.arange(resized), torch.tensor(source), resized).tolist() == exact
    assert 0 <= exact[0] <= exact[-1] < source


def test_boxes_drawn_by_torch_are_those_of_numpy() -> None:
    """The same uniform numbers give the same boxes with either library, the central ones included."""
    scale, ratio = (0.3, 1.0), (3 / 4, 4 / 3)
    expected, _ = random_resized_crops(SIZES, KEYS, scale, ratio)
    drawn = torch.from_numpy(keyed_rng.uniforms(KEYS, 2 * TRIES + 3))
    for row, (width, height) in enumerate(SIZES.tolist()):
        central = (round(min(width, height * ratio[1])), round(min(height, width / ratio[0])))
        tried = draw_sizes(torch, drawn[row : row + 1], width * height, scale, ratio)
        fits = fits_within(tried, (width, height))
        found = place_boxes(torch, drawn[row : row + 1, -3:-1], tried, fits, (width, height), central)
        assert found.tolist() == [expected[row].tolist()]
