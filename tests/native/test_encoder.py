"""Encoded JPEGs are those of libjpeg-turbo, byte for byte, and their seek tables those of their scans."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from shardflow import native
from shardflow.formats import seek_table
from shardflow.native.transcoding import SAMPLINGS, Transcoded, transcode
from tests.helpers import jpegs
from tests.helpers.examples import examples

Planes = NDArray[np.uint8]


def save(planes: Planes, **how: Any) -> bytes:
    """Return what libjpeg-turbo encodes of YCbCr, [height, width, 3]."""
    buffer = io.BytesIO()
    bands = [Image.fromarray(np.ascontiguousarray(planes[..., c])) for c in range(3)]
    Image.merge("YCbCr", bands).save(buffer, "JPEG", **how)
    return buffer.getvalue()


def planes_of(jpeg: bytes) -> Planes:
    """Return YCbCr as libjpeg-turbo decodes it, [height, width, 3]."""
    image = Image.open(io.BytesIO(jpeg))
    image.draft("YCbCr", None)
    return np.asarray(image)


def shared(samples: Planes, across: int, down: int) -> Planes:
    """Return chroma in which so many neighbours are their mean, rounded along each axis; a last one keeps its own."""
    for axis, count in ((1, across), (0, down)):
        if count == 2:
            pairs = np.pad(samples, [(0, (a == axis) * (samples.shape[a] % 2)) for a in (0, 1)], "edge").astype(int)
            even, odd = (np.take(pairs, range(first, pairs.shape[axis], 2), axis) for first in (0, 1))
            means = ((even + odd + 1) // 2).astype(np.uint8)
            samples = np.take(means.repeat(2, axis), range(samples.shape[axis]), axis)
    return samples


def draw(kind: str, seed: int, width: int, height: int) -> Planes:
    """Return planes of a kind, [height, width, 3]."""
    rng = np.random.default_rng(seed)
    shape = (height, width, 3)
    if kind == "noise":
        return rng.integers(0, 256, shape, np.uint8)
    if kind == "extremes":  # the largest coefficients that there are
        return rng.choice(np.array([0, 255], np.uint8), shape)
    if kind == "checks":
        return ((np.indices(shape)[: 1 + seed % 2].sum(0) + seed) % 2 * 255).astype(np.uint8)
    if kind == "flat":
        return np.full(shape, rng.integers(0, 256, 3), np.uint8)
    return jpegs.pixels(seed % 100, width, height)


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "plain"])
@examples(200)
@given(
    kind=st.sampled_from(["shades", "noise", "extremes", "checks", "flat"]),
    seed=st.integers(0, 2**31),
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)) | st.tuples(st.integers(90, 200), st.integers(90, 200)),
    quality=st.integers(1, 100),
    subsampling=st.sampled_from([*SAMPLINGS]),
)
def test_bytes_are_those_of_libjpeg(
    fast: bool, kind: str, seed: int, size: tuple[int, int], quality: int, subsampling: str
) -> None:
    """Whatever planes, size, quality and sampling are, the bytes are libjpeg-turbo's, with the seek table added."""
    source = save(draw(kind, seed, *size), quality=100, subsampling="4:4:4")
    how: dict[str, Any] = {"stored": size, "resized": size, "orientation": 1, "window": (0, 0, *size)}
    how |= {"interpolation": "bicubic", "quality": quality, "subsampling": subsampling}
    with jpegs.decoder(fast=fast):
        made, with_table = (transcode(source, **how, with_seek_table=wanted) for wanted in (False, True))
        assert isinstance(made, Transcoded)
        assert isinstance(with_table, Transcoded)
        planes = planes_of(source).copy()
        for chroma in (1, 2):
            planes[..., chroma] = shared(planes[..., chroma], *SAMPLINGS[subsampling])
        assert made.image == save(planes, quality=quality, subsampling=subsampling)
    segment = native.seek_table(made.image)
    assert with_table.image == (seek_table.insert(made.image, segment) if segment else made.image)


def test_memory_grows_with_the_data() -> None:
    """A picture whose data are many times those of the ones before is as libjpeg-turbo encodes it."""
    for size in ((16, 16), (1200, 900), (16, 16), (2500, 40)):
        source = save(draw("extremes", 1, *size), quality=100, subsampling="4:4:4")
        how: dict[str, Any] = {"stored": size, "resized": size, "orientation": 1, "window": (0, 0, *size)}
        how |= {"interpolation": "bicubic", "quality": 100, "subsampling": "4:4:4", "with_seek_table": False}
        made = transcode(source, **how)
        assert isinstance(made, Transcoded)
        assert made.image == save(planes_of(source), quality=100, subsampling="4:4:4")
