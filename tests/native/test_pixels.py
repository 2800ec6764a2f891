"""The kernel's pixels are torchvision's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms.v2 import functional as F  # noqa: N812 - its usual name

from shardflow import native
from shardflow.native.transcoding import Interpolation
from tests.helpers import jpegs
from tests.helpers.examples import examples

KINDS = {
    "4:2:0": {},
    "4:2:2": {"subsampling": 1},
    "4:4:4": {"subsampling": 0},
    "grey": {"mode": "L"},
    "progressive": {"progressive": True},
    "restart markers": {"restart_marker_blocks": 3},
    "optimised tables": {"optimize": True},
    "low quality": {"quality": 30},
}
SIZES = [(64, 48), (63, 47), (97, 33), (16, 16), (17, 130), (341, 256)]


def empty(count: int, height: int, width: int, *, channels_last: bool = False) -> NDArray[np.uint8]:
    """Return an array for decoded images, full of sevens."""
    if channels_last:
        return np.full((count, height, width, 3), 7, np.uint8).transpose(0, 3, 1, 2)
    return np.full((count, 3, height, width), 7, np.uint8)


def random_box(rng: np.random.Generator, width: int, height: int) -> tuple[int, int, int, int]:
    """Draw a crop inside an image."""
    w, h = int(rng.integers(1, width + 1)), int(rng.integers(1, height + 1))
    return int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1)), w, h


def decode_one(payload: bytes, box: tuple[int, int, int, int], size: tuple[int, int], flip: bool) -> NDArray[np.uint8]:
    """Return the crop of one image, [3, height, width]; `size` is height, width."""
    out = empty(1, *size)
    assert native.decode_views([payload], [native.View(np.array([box], np.int32), np.array([flip]), out)]) == []
    return out[0]


def assert_close(found: NDArray[np.uint8], wanted: NDArray[np.uint8], levels: int = 1) -> tuple[int, int]:
    """Fail where a pixel is more than `levels` off; returns how many are off at all, and how many there are."""
    difference = np.abs(found.astype(int) - wanted.astype(int))
    assert difference.max() <= levels
    return int((difference > 0).sum()), difference.size


@pytest.mark.parametrize("kind", KINDS)
def test_crops_equal_torchvisions(kind: str) -> None:
    """Crops of any size and place, flipped or not, enlarged or reduced, are torchvision's within one level."""
    rng = np.random.default_rng(5)
    different = total = 0
    for number, (width, height) in enumerate(SIZES):
        payload = jpegs.make(number, width, height, **KINDS[kind])
        boxes = [(0, 0, width, height), (width - 1, height - 1, 1, 1), (0, 0, 1, height), (0, 0, width, 1)]
        boxes += [random_box(rng, width, height) for _ in range(40)]
        for box in boxes:
            size = (int(rng.integers(1, 80)), int(rng.integers(1, 80)))
            flip = bool(rng.integers(2))
            wanted = jpegs.reference(payload, box, size, flip)
            one = assert_close(decode_one(payload, box, size, flip), wanted)
            different, total = different + one[0], total + one[1]
    assert different <= 0.005 * total


@examples(150)
@given(data=st.data())
def test_any_crop_of_any_jpeg(data: st.DataObject) -> None:
    """Whatever the image's size, the crop and the target, the pixels are torchvision's within one level."""
    width, height = data.draw(st.integers(1, 90)), data.draw(st.integers(1, 90))
    how = KINDS[data.draw(st.sampled_from(sorted(KINDS)))]
    x, y = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    box = (x, y, data.draw(st.integers(1, width - x)), data.draw(st.integers(1, height - y)))
    size = (data.draw(st.integers(1, 70)), data.draw(st.integers(1, 70)))
    payload = jpegs.make(data.draw(st.integers(0, 3)), width, height, **how)
    flip = data.draw(st.booleans())
    assert_close(decode_one(payload, box, size, flip), jpegs.reference(payload, box, size, flip))


def test_extreme_reduction_and_enlargement() -> None:
    """A long side of thousands of pixels becomes one, and one pixel becomes hundreds."""
    payload = jpegs.make(1, 3000, 40)
    for box, size in [((0, 0, 3000, 40), (1, 1)), ((3, 1, 2990, 39), (50, 2)), ((2999, 39, 1, 1), (300, 301))]:
        assert_close(decode_one(payload, box, size, True), jpegs.reference(payload, box, size, True))


def test_layouts_hold_the_same_pixels() -> None:
    """Planes and channels-last hold the same pixels, and neither writes beside its images, whatever the width."""
    payloads = [jpegs.make(i, 80, 60) for i in range(3)]
    boxes, flips = np.array([[3, 5, 70, 50]] * 3, np.int32), np.array([False, True, False])
    for height, width in itertools.product([1, 9], [*range(1, 36), 63, 64, 65]):
        planes = empty(5, height, width)
        assert native.decode_views(payloads, [native.View(boxes, flips, planes[1:4])]) == []
        last = empty(5, height, width, channels_last=True)
        assert native.decode_views(payloads, [native.View(boxes, flips, last[1:4])]) == []
        np.testing.assert_array_equal(planes, last)
        assert (planes[[0, 4]] == 7).all()


def test_plain_loops_make_the_same_pixels() -> None:
    """The loops for processors without AVX2 write exactly what the AVX2 loops write."""
    rng = np.random.default_rng(0)
    payloads = [jpegs.make(i, 90, 70) for i in range(4)]
    flips = np.array([True, False, True, False])
    for channels_last, interpolation in itertools.product([False, True], ["bilinear", "bicubic", "lanczos"]):
        for _ in range(25):
            boxes = np.array([random_box(rng, 90, 70) for _ in payloads], np.int32)
            height, width = rng.integers(1, 100, 2)
            made = []
            for fast in (True, False):
                with jpegs.decoder(fast=fast):
                    out = empty(4, height, width, channels_last=channels_last)
                    assert (
                        native.decode_views(payloads, [native.View(boxes, flips, out)], interpolation=interpolation)
                        == []
                    )
                    made.append(out)
            np.testing.assert_array_equal(*made)


def test_window_of_a_resize() -> None:
    """`resized` makes the window that torchvision's resize and centre crop make, without making the rest."""
    for number, (width, height) in enumerate([(100, 60), (61, 90), (341, 256), (40, 40)]):
        payload = jpegs.make(number, width, height)
        for short, size in [(48, 40), (64, 64), (130, 57)]:
            ratio = short / min(width, height)
            new = (short, int(height * ratio)) if width < height else (int(width * ratio), short)
            left, top = round((new[0] - size) / 2), round((new[1] - size) / 2)
            image = decode_jpeg(torch.frombuffer(bytearray(payload), dtype=torch.uint8), mode=ImageReadMode.RGB)
            wanted = F.center_crop(F.resize(image, [new[1], new[0]], antialias=True), [size, size])
            for flip in (False, True):
                out = empty(1, size, size)
                window = np.array([[*new, left, top]], np.int32)
                assert native.decode_views([payload], [native.View(None, np.array([flip]), out, resized=window)]) == []
                assert_close(out[0], (F.hflip(wanted) if flip else wanted).numpy())


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
def test_resized_images_equal_pillows(interpolation: Interpolation) -> None:
    """At full scale a resized image is Pillow's with the same filter, within two levels (its weights are finer)."""
    filters = {
        "bilinear": Image.Resampling.BILINEAR,
        "bicubic": Image.Resampling.BICUBIC,
        "lanczos": Image.Resampling.LANCZOS,
    }
    payload = jpegs.make(2, 200, 151)
    image = decode_jpeg(torch.frombuffer(bytearray(payload), dtype=torch.uint8), mode=ImageReadMode.RGB)
    pillow = Image.fromarray(image.permute(1, 2, 0).numpy())
    for width, height in [(64, 48), (199, 150), (37, 140), (250, 300)]:
        out = np.zeros((height, width, 3), np.uint8)
        assert native.decode_resized(payload, out, interpolation=interpolation, oversampling=0) is None
        wanted = np.asarray(pillow.resize((width, height), filters[interpolation]))
        different, total = assert_close(out, wanted, levels=2)
        assert different <= 0.02 * total


def test_reduced_scale_is_close_to_full_scale() -> None:
    """Decoding at a reduced scale is off by a level or two on average, and does not shift the image."""
    payload = jpegs.make(3, 1003, 777)
    for width, height in [(100, 77), (240, 190), (124, 96)]:
        full, reduced = np.zeros((height, width, 3), np.uint8), np.zeros((height, width, 3), np.uint8)
        assert native.decode_resized(payload, full, oversampling=0) is None
        assert native.decode_resized(payload, reduced, oversampling=2) is None
        error = reduced.astype(float) - full
        assert np.abs(error).mean() < 1.5
        assert abs(error.mean()) < 0.1
        assert (error != 0).any(), "it was decoded at full scale"


def test_payloads_are_read_in_place() -> None:
    """Slices of a larger buffer, as of a memory map, give the same pixels as bytes of their own."""
    payloads = [jpegs.make(i, 50, 40) for i in range(3)]
    whole = memoryview(b"padding".join(payloads))
    slices, at = [], 0
    for payload in payloads:
        slices.append(whole[at : at + len(payload)])
        at += len(payload) + len(b"padding")
    boxes, flips = np.array([[1, 2, 40, 30]] * 3, np.int32), np.zeros(3, np.uint8)
    own, mapped, mixed = empty(3, 20, 20), empty(3, 20, 20), empty(3, 20, 20)
    assert native.decode_views(payloads, [native.View(boxes, flips, own)]) == []
    assert native.decode_views(slices, [native.View(boxes, flips, mapped)]) == []
    assert native.decode_views([payloads[0], slices[1], payloads[2]], [native.View(boxes, flips, mixed)]) == []
    np.testing.assert_array_equal(own, mapped)
    np.testing.assert_array_equal(own, mixed)


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_cropped_like_the_file_they_come_from(kind: str) -> None:
    """Images that are decoded already give, among encoded ones, exactly what their files give."""
    rng = np.random.default_rng(5)
    for number, (width, height) in enumerate(SIZES):
        payload = jpegs.make(number, width, height, **KINDS[kind])
        pixels = np.empty((height, width, 3), np.uint8)
        assert native.decode_resized(payload, pixels, oversampling=0) is None
        for size in [(24, 24), (7, 90), (1, 1), (height, width)]:
            boxes = np.array([random_box(rng, width, height) for _ in range(8)], np.int32)
            flips = rng.random(8) < 0.5
            for channels_last in (False, True):
                wanted = empty(8, *size, channels_last=channels_last)
                found = empty(8, *size, channels_last=channels_last)
                assert native.decode_views([payload] * 8, [native.View(boxes, flips, wanted)]) == []
                assert native.decode_views([pixels, payload] * 4, [native.View(boxes, flips, found)]) == []
                np.testing.assert_array_equal(found, wanted)
