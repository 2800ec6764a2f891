"""Codings that few encoders write: any sampling, RGB, a scan for each component, incomplete progressive files."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from shardflow import native
from shardflow.native.binding import Status
from tests.helpers import huffman, jpegs

WIDTH, HEIGHT = 150, 101

SAMPLINGS = {
    "4:4:4": [(1, 1), (1, 1), (1, 1)],
    "4:2:2": [(2, 1), (1, 1), (1, 1)],
    "4:2:0": [(2, 2), (1, 1), (1, 1)],
    "4:4:0": [(1, 2), (1, 1), (1, 1)],
    "4:1:1": [(4, 1), (1, 1), (1, 1)],
    "4:1:0": [(4, 2), (1, 1), (1, 1)],
    "one fourth as high": [(1, 4), (1, 1), (1, 1)],
    "one third as wide": [(3, 1), (1, 1), (1, 1)],
    "one third as high": [(1, 3), (1, 1), (1, 1)],
    "each chroma its own": [(2, 2), (2, 1), (1, 2)],
    "more chroma than luma": [(1, 1), (2, 2), (1, 1)],
    "grey, of two blocks": [(2, 2)],
}


def sampled(name: str, *, rgb: bool = False, **how: object) -> bytes:
    """Return a JPEG of random shades with this sampling."""
    rng = random.Random(name)
    components = huffman.random_components(rng, (WIDTH, HEIGHT), SAMPLINGS[name])
    ids = (82, 71, 66) if rgb else (1, 2, 3)
    return huffman.encode_components(components, (WIDTH, HEIGHT), *huffman.random_tables(rng), ids=ids, **how)  # type: ignore[arg-type]


def incomplete(scans: int, **how: object) -> bytes:
    """Return a progressive JPEG of which only the first scans have come."""
    payload, kept, seen = jpegs.make(3, WIDTH, HEIGHT, progressive=True, quality=60, **how), b"\xff\xd8", 0
    for marker, segment in jpegs.segments(payload):
        seen += marker == 0xDA
        if seen <= scans:
            kept += segment
    return kept + b"\xff\xd9"


CODINGS: dict[str, Callable[[], bytes]] = {
    **{name: lambda name=name: sampled(name) for name in SAMPLINGS},
    **{
        f"{name}, not interleaved": lambda name=name: sampled(name, interleaved=False)
        for name in ("4:4:4", "4:2:0", "4:4:0", "4:1:1")
    },
    **{f"{name}, RGB": lambda name=name: sampled(name, rgb=True) for name in ("4:4:4", "4:2:2", "4:2:0")},
    **{f"{name}, restart markers": lambda name=name: sampled(name, restart=3) for name in ("4:4:0", "4:1:1")},
    "not interleaved, restart markers": lambda: sampled("4:2:0", restart=5, interleaved=False),
    **{
        f"the first {scans} scans, subsampling {subsampling}": lambda scans=scans, subsampling=subsampling: incomplete(
            scans, subsampling=subsampling
        )
        for scans in (1, 2, 4, 7)
        for subsampling in (0, 1, 2)
    },
    "the first 2 scans, grey": lambda: incomplete(2, mode="L"),
}


def crop(payload: bytes, box: tuple[int, int, int, int], *, fast: bool = True) -> NDArray[np.uint8]:
    """Return the pixels of a part of an image as they are, [3, height, width]."""
    out = np.full((1, 3, box[3], box[2]), 9, np.uint8)
    with jpegs.decoder(fast=fast):
        problems = native.decode_views([payload], [native.View(np.array([box], np.int32), np.zeros(1, np.bool_), out)])
    assert problems == []
    return out[0]


@pytest.mark.parametrize("coding", CODINGS)
def test_crops_are_parts_of_the_whole(coding: str) -> None:
    """A crop has the pixels of the whole image, wherever it lies, and the whole is torchvision's within one level."""
    payload, everything = CODINGS[coding](), (0, 0, WIDTH, HEIGHT)
    whole = crop(payload, everything)
    np.testing.assert_array_equal(crop(payload, everything, fast=False), whole)
    assert np.abs(whole.astype(int) - jpegs.decoded(payload)).max() <= 1
    assert whole.std() > 5
    rng = random.Random(coding)
    for _ in range(60):
        x, y = rng.randrange(WIDTH), rng.randrange(HEIGHT)
        width, height = rng.randint(1, WIDTH - x), rng.randint(1, HEIGHT - y)
        found = crop(payload, (x, y, width, height))
        np.testing.assert_array_equal(found, whole[:, y : y + height, x : x + width])


def test_fill_bytes_before_markers() -> None:
    """Fill bytes may stand before a restart marker and the end, and are no fault."""
    payload = sampled("4:2:0", restart=3)
    filled = bytearray()
    for at in range(len(payload)):
        is_marker = payload[at] == 0xFF and payload[at + 1] in (*range(0xD0, 0xD8), 0xD9)
        filled += b"\xff" * (3 * is_marker) + payload[at : at + 1]
    assert len(filled) > len(payload) + 20
    out, everything = np.zeros((1, 3, HEIGHT, WIDTH), np.uint8), np.array([(0, 0, WIDTH, HEIGHT)], np.int32)
    with jpegs.decoder(fast=True) as made:
        assert native.decode_views([bytes(filled)], [native.View(everything, np.zeros(1, np.bool_), out)]) == []
        assert made.faults == 0
    np.testing.assert_array_equal(out[0], crop(payload, (0, 0, WIDTH, HEIGHT)))


def test_lossless_is_unsupported() -> None:
    """A lossless JPEG (SOF3) is for a general decoder; it is not corrupt."""
    out, box = np.zeros((1, 3, 4, 4), np.uint8), np.array([(0, 0, 4, 4)], np.int32)
    (problem,) = native.decode_views([huffman.lossless(16, 8)], [native.View(box, np.zeros(1, np.bool_), out)])
    assert problem.status == Status.UNSUPPORTED
    assert problem.message
