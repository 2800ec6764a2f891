"""The kernel's own Huffman decoding finds what libjpeg-turbo's finds: the pixels, or the problem."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from shardflow import native
from shardflow.native.binding import Problem, Status
from tests.helpers import huffman, jpegs
from tests.helpers.examples import examples

Found = tuple[NDArray[np.uint8], list[Problem], int]


def decode(payloads: list[bytes], boxes: list[tuple[int, int, int, int]], oversampling: int = 0, **way: bool) -> Found:
    """Decode a crop of each; returns pixels, problems, and how many images it took libjpeg-turbo to decode."""
    out, flips = np.full((len(payloads), 3, 16, 16), 9, np.uint8), np.zeros(len(payloads), np.bool_)
    with jpegs.decoder(**way) as made:
        problems = native.decode_views(
            payloads, [native.View(np.array(boxes, np.int32), flips, out)], oversampling=oversampling
        )
        return out, problems, made.faults


def assert_same(payloads: list[bytes], boxes: list[tuple[int, int, int, int]], oversampling: int = 0) -> Found:
    """Fail where the ways to decode them differ in a pixel, a status or a word."""
    wanted = decode(payloads, boxes, oversampling, fast=False)
    for plain in (True, False):
        found = decode(payloads, boxes, oversampling, plain=plain)
        assert found[1] == wanted[1]
        np.testing.assert_array_equal(found[0], wanted[0])
    return found


def boxes_of(rng: random.Random, width: int, height: int, count: int) -> list[tuple[int, int, int, int]]:
    """Draw crops inside an image, the first of which is all of it."""
    boxes = [(0, 0, width, height)]
    while len(boxes) < count:
        x, y = rng.randrange(width), rng.randrange(height)
        boxes.append((x, y, rng.randint(1, width - x), rng.randint(1, height - y)))
    return boxes


def coefficients(rng: random.Random) -> list[int]:
    """Draw a block: dense or sparse, with small or the largest values, often up to its last coefficient."""
    density, bits = rng.choice((0.0, 0.02, 0.2, 0.9)), rng.choice((1, 3, 10, 15))
    block = [rng.randint(-(2**bits - 1), 2**bits - 1) if rng.random() < density else 0 for _ in range(64)]
    if rng.random() < 0.3:
        block[63] = rng.choice((-1, 1, 1023, 32767))
    block[0] = rng.choice((0, 5, -1023, 1023, -16000, 16383))
    return block


def random_jpeg(seed: int) -> tuple[bytes, int]:
    """Return a JPEG with tables of its own, 8 pixels high, and its width."""
    rng = random.Random(seed)
    blocks = [coefficients(rng) for _ in range(rng.randint(1, 40))]
    restart = rng.choice((None, None, 1, 3, 40))
    return huffman.encode(blocks, *huffman.random_tables(rng), restart=restart), 8 * len(blocks)


def damaged(payload: bytes, rng: random.Random) -> bytes:
    """Return a JPEG with flipped bits, and now and then cut."""
    data = jpegs.flipped(payload, rng, rng.choice((1, 1, 2, 6)))
    return data[: rng.randrange(len(data))] if rng.random() < 0.2 else data


@examples(300)
@given(seed=st.integers(0, 2**32))
def test_any_coefficients_with_any_tables(seed: int) -> None:
    """Whatever the tables, the runs and the values are, blocks are what was encoded."""
    payload, width = random_jpeg(seed)
    boxes = boxes_of(random.Random(seed), width, 8, 4)
    assert assert_same([payload] * 4, boxes)[1:] == ([], 0)


@examples(40)
@given(seed=st.integers(0, 2**32), sampling=st.sampled_from([(1, 1), (2, 1), (2, 2), (1, 2)]))
def test_any_coefficients_in_colour(seed: int, sampling: tuple[int, int]) -> None:
    """Whatever the coefficients are, also those that no encoder makes, the pixels are those of libjpeg-turbo."""
    rng = random.Random(seed)
    width, height = rng.randint(1, 40), rng.randint(1, 34)
    across, down = -(-width // (8 * sampling[0])), -(-height // (8 * sampling[1]))
    components = [
        huffman.Component(h, v, [[coefficients(rng) for _ in range(across * h)] for _ in range(down * v)])
        for h, v in (sampling, (1, 1), (1, 1))
    ]
    tables, restart = huffman.random_tables(rng), rng.choice((None, None, 2))
    payload = huffman.encode_components(components, (width, height), *tables, restart=restart)
    assert assert_same([payload] * 5, boxes_of(rng, width, height, 5))[1:] == ([], 0)


@examples(60)
@given(
    seed=st.integers(0, 2**32),
    sampling=st.sampled_from([(1, 1), (2, 1), (2, 2), None]),
    scale=st.sampled_from([2, 4, 8]),
)
def test_any_coefficients_at_a_reduced_scale(seed: int, sampling: tuple[int, int] | None, scale: int) -> None:
    """Whatever the coefficients are, blocks of 4 x 4, 2 x 2 and 1 x 1 samples are those of libjpeg-turbo."""
    rng = random.Random(seed)
    width, height = rng.randint(16 * scale, 20 * scale), rng.randint(16 * scale, 20 * scale)
    samplings = [sampling, (1, 1), (1, 1)] if sampling else [(1, 1)]
    across, down = (-(-side // (8 * factor)) for side, factor in zip((width, height), samplings[0], strict=True))
    components = [
        huffman.Component(h, v, [[coefficients(rng) for _ in range(across * h)] for _ in range(down * v)])
        for h, v in samplings
    ]
    payload = huffman.encode_components(components, (width, height), *huffman.random_tables(rng))
    assert assert_same([payload] * 3, [(0, 0, width, height)] * 3, oversampling=1)[1:] == ([], 0)


@examples(150)
@given(seed=st.integers(0, 2**32))
def test_any_damage(seed: int) -> None:
    """Flipped bits, wherever they are, and files that are cut end in the same pixels or the same problem."""
    payload, width = random_jpeg(seed)
    rng = random.Random(seed)
    assert_same([damaged(payload, rng) for _ in range(12)], boxes_of(rng, width, 8, 12))


@pytest.mark.parametrize("last", [1, -40, 9000])
def test_a_run_beyond_the_block(last: int) -> None:
    """A coefficient that would lie behind its block is treated as libjpeg-turbo treats it, which says nothing."""
    rng = random.Random(last)
    for beyond in range(64, 77):
        for before in (1, 300):
            tables = huffman.random_tables(rng)
            block = [100, *[0] * 59, before, *[0] * (beyond - 61), last]
            blocks = [block, coefficients(rng)]
            assert assert_same([huffman.encode(blocks, *tables)], [(0, 0, 16, 8)])[1:] == ([], 0)


@pytest.mark.parametrize(
    "how",
    [
        *({}, {"subsampling": 0}, {"subsampling": 1}, {"mode": "L"}, {"optimize": True}, {"quality": 5}),
        *({"quality": 100, "subsampling": 0}, {"restart_marker_blocks": 2}, {"progressive": True}),
    ],
    ids=str,
)
def test_damaged_pictures(how: dict[str, object]) -> None:
    """Pictures of every coding, with flipped bits and cut, end in the same pixels or the same problem."""
    rng = random.Random(7)
    for number, (width, height) in enumerate([(97, 65), (16, 16), (130, 40)]):
        payload = jpegs.make(number, width, height, **how)
        payloads = [payload, *(damaged(payload, rng) for _ in range(150))]
        _, problems, faults = assert_same(payloads, boxes_of(rng, width, height, len(payloads)))
        assert all(problem.index for problem in problems)
        assert problems
        assert faults < 150


@pytest.mark.parametrize("quality", [1, 50, 100])
def test_noise_and_checks(quality: int) -> None:
    """The busiest pictures there are, in which the last coefficient counts and codes are longest."""
    rng = np.random.default_rng(quality)
    noise = rng.integers(0, 256, (80, 120, 3), dtype=np.uint8)
    checks = (255 * (np.indices((80, 120)).sum(0) % 2)).astype(np.uint8)[..., None].repeat(3, -1)
    for pixels in (noise, checks, 255 * (noise > 127).astype(np.uint8)):
        for subsampling in (0, 2):
            buffer = io.BytesIO()
            Image.fromarray(pixels).save(buffer, "JPEG", quality=quality, subsampling=subsampling)
            boxes = boxes_of(random.Random(quality), 120, 80, 12)
            assert assert_same([buffer.getvalue()] * 12, boxes)[1:] == ([], 0)


def test_restart_markers() -> None:
    """Restart markers are gone over where they should be; a missing, a wrong and a late one is a fault."""
    payload = jpegs.make(1, 200, 100, restart_marker_blocks=3)
    boxes = [(0, 0, 200, 100), (90, 50, 20, 50)]
    assert assert_same([payload] * 2, boxes)[1:] == ([], 0)
    markers = [at for at in range(len(payload) - 1) if payload[at] == 0xFF and 0xD0 <= payload[at + 1] <= 0xD7]
    at = markers[len(markers) // 2]
    wrong = bytes([0xD0 + (payload[at + 1] - 0xD0 + 1) % 8])
    for broken in (
        payload[:at] + payload[at + 2 :],
        payload[: at + 1] + wrong + payload[at + 2 :],
        payload[:at] + b"between" + payload[at:],
    ):
        _, problems, faults = assert_same([broken], boxes[:1])
        assert [problem.status for problem in problems] == [Status.DAMAGED]
        assert faults == 1


def test_tables_are_the_images_own() -> None:
    """Images whose tables differ do not get their neighbours', in whatever order they come."""
    rng = random.Random(1)
    images = [random_jpeg(seed)[0] for seed in range(12)] + [jpegs.make(1, optimize=True), jpegs.make(2)]
    wanted = [decode([image], [(0, 0, 8, 8)], fast=False)[0][0] for image in images]
    for _ in range(20):
        order = [rng.randrange(len(images)) for _ in range(30)]
        out, *rest = decode([images[i] for i in order], [(0, 0, 8, 8)] * 30)
        assert rest == [[], 0]
        np.testing.assert_array_equal(out, np.stack([wanted[i] for i in order]))
