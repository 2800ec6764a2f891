"""Remote storage without a server: its pieces, and its guard of the event loop."""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
import threading
import time
from pathlib import Path

import pytest
from fsspec.asyn import get_loop
from hypothesis import given
from hypothesis import strategies as st

from shardflow.errors import ConfigError, DeadlineError
from shardflow.storage import remote
from shardflow.storage.remote import PIECE_BYTES, _ranges, remote_storage


@given(size=st.integers(0, 1000), piece_bytes=st.integers(8, 50))
def test_pieces_are_the_blob(size: int, piece_bytes: int) -> None:
    """The pieces of a blob cover it in order from its first byte to its last; none is empty or too large."""
    end = 0
    for start, stop in _ranges(size, piece_bytes):
        assert start == end
        assert start < stop <= start + piece_bytes
        end = stop
    assert end == size


def test_head_of_a_blob_comes_first() -> None:
    """The first piece of a blob is short, so that the beginning of a shard arrives early; a small blob is one piece."""
    pieces = list(_ranges(3 * PIECE_BYTES, PIECE_BYTES))
    assert pieces[0] == (0, PIECE_BYTES // 8)
    assert {stop - start for start, stop in pieces[1:-1]} == {PIECE_BYTES}
    assert len(list(_ranges(PIECE_BYTES, PIECE_BYTES))) == 2
    assert len(list(_ranges(PIECE_BYTES // 2, PIECE_BYTES))) == 1


def test_pieces_after_one_of_unknown_size() -> None:
    """After a first piece, whose answer gave the size, the rest is fetched in whole pieces."""
    assert list(_ranges(20, 8, start=8)) == [(8, 16), (16, 20)]


def test_a_blocked_event_loop_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the event loop is blocked, reads end with a DeadlineError; afterwards they succeed again."""
    storage = remote_storage(f"local://{tmp_path}")
    storage.put("a", b"1")
    monkeypatch.setattr(remote, "_LOOP_TIMEOUT_S", 0.2)
    monkeypatch.setattr(remote, "_CANCEL_TIMEOUT_S", 0.1)
    unblock = threading.Event()
    get_loop().call_soon_threadsafe(unblock.wait)
    try:
        for access in (lambda: storage.read("a"), lambda: storage.version("a")):
            with pytest.raises(DeadlineError, match="has not run for"):
                access()
    finally:
        unblock.set()
    assert storage.read("a") == b"1"
    gc.collect()  # coroutines that never began are closed: they would warn here


def test_a_slow_answer_is_not_a_blocked_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result is waited for as long as the loop runs: the work on it has its own deadlines."""
    monkeypatch.setattr(remote, "_LOOP_TIMEOUT_S", 0.2)
    slow = asyncio.run_coroutine_threadsafe(asyncio.sleep(0.7, 7), get_loop())
    assert remote._wait_for(slow) == 7


def test_a_loop_that_gets_no_core_is_not_a_blocked_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """While this process works, its loop is waited for four times as long."""
    monkeypatch.setattr(remote, "_LOOP_TIMEOUT_S", 0.3)
    monkeypatch.setattr(time, "process_time", itertools.count().__next__)
    get_loop().call_soon_threadsafe(time.sleep, 0.9)
    assert remote._wait_for(asyncio.run_coroutine_threadsafe(asyncio.sleep(0, 7), get_loop())) == 7


def test_the_package_for_a_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL that needs a package which is not installed says which: by our extra, or in the words of fsspec."""
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    for url, remedy in (("gs://bucket/x", r"pip install 'shardflow\[gcs\]'"), ("lakefs://x/y", "lakefs-spec")):
        with pytest.raises(ConfigError, match=rf"{url}: {url.partition(':')[0]}:// URLs need .*{remedy}"):
            remote_storage(url).read("a")
