from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardflow.remote.store import PIECE_BYTES, PIECES, _ranges


@given(size=st.integers(0, 1000), piece_bytes=st.integers(PIECES, 50))
def test_pieces_are_the_blob(size: int, piece_bytes: int) -> None:
    """The pieces of a blob follow each other from its first byte to its last, none empty and none too large."""
    end = 0
    for start, stop in _ranges(size, piece_bytes):
        assert start == end
        assert start < stop <= start + piece_bytes
        end = stop
    assert end == size


def test_head_of_a_large_blob_comes_first() -> None:
    """Of a blob that takes several windows, the first window is what one later piece is; a small one is not cut so."""
    large = list(_ranges(PIECES * PIECE_BYTES + 1, PIECE_BYTES))
    assert large[PIECES - 1][1] == PIECE_BYTES
    assert len(large) == 2 * PIECES
    assert len(list(_ranges(PIECES * PIECE_BYTES, PIECE_BYTES))) == PIECES
