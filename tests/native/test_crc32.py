"""The kernel's CRC-32 is zlib's, by the processor's instructions and without them."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.native import binding


@pytest.mark.parametrize("way", [binding.Way.FAST, binding.Way.PLAIN])
@given(data=st.binary(max_size=300), repeats=st.integers(1, 9), start=st.integers(0, 70))
def test_is_that_of_zlib(way: binding.Way, data: bytes, repeats: int, start: int) -> None:
    """Bytes of any length, from any place on, have the CRC-32 that zlib computes."""
    kernel = binding.load()
    assert not isinstance(kernel, str)
    piece = (data * repeats)[start:]
    assert kernel.dll.sf_crc32(piece, len(piece), way) == zlib.crc32(piece)
