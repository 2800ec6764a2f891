from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardflow.storage.remote import PIECE_BYTES, _ranges


@given(size=st.integers(0, 1000), piece_bytes=st.integers(8, 50))
def test_pieces_are_the_blob(size: int, piece_bytes: int) -> None:
    """The pieces of a blob follow each other from its first byte to its last, none empty and none too large."""
    end = 0
    for start, stop in _ranges(size, piece_bytes):
        assert start == end
        assert start < stop <= start + piece_bytes
        end = stop
    assert end == size


def test_head_of_a_blob_comes_first() -> None:
    """The first piece of a blob is short, so that the head of a shard is there early; a small one is not cut."""
    pieces = list(_ranges(3 * PIECE_BYTES, PIECE_BYTES))
    assert pieces[0] == (0, PIECE_BYTES // 8)
    assert {stop - start for start, stop in pieces[1:-1]} == {PIECE_BYTES}
    assert len(list(_ranges(PIECE_BYTES, PIECE_BYTES))) == 2
    assert len(list(_ranges(PIECE_BYTES // 2, PIECE_BYTES))) == 1


def test_a_piece_that_is_asked_for_without_the_size_is_not_cut() -> None:
    """What follows a first piece, by which the size was found out, goes on in whole pieces."""
    assert list(_ranges(20, 8, start=8)) == [(8, 16), (16, 20)]
