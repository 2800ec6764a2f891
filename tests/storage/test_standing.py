from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from fsspec.asyn import get_loop

from shardflow.errors import DeadlineError
from shardflow.storage import remote as store_module
from shardflow.storage.remote import RemoteStorage


def test_an_event_loop_that_stands_still_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While something blocks the event loop, readers end with a DeadlineError; afterwards they read again."""
    storage = RemoteStorage(f"local://{tmp_path}")
    storage.put("a", b"1")
    monkeypatch.setattr(store_module, "_PULSE_S", 0.2)
    monkeypatch.setattr(store_module, "_CLOSE_S", 0.1)
    go_on = threading.Event()
    get_loop().call_soon_threadsafe(go_on.wait)
    try:
        for access in (lambda: storage.read("a"), lambda: storage.size("a")):
            with pytest.raises(DeadlineError, match="stood still"):
                access()
    finally:
        go_on.set()
    assert storage.read("a") == b"1"


def test_a_slow_answer_is_no_standing_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long an answer takes, a loop that runs is waited for: what runs there has deadlines of its own."""
    monkeypatch.setattr(store_module, "_PULSE_S", 0.2)
    slow = asyncio.run_coroutine_threadsafe(asyncio.sleep(0.7, 7), get_loop())
    assert store_module._awaited(slow) == 7
