from __future__ import annotations

import asyncio
from types import SimpleNamespace

from shardflow.storage.http_answer import close_session, web_file_system


def test_a_client_of_its_own() -> None:
    """Each file system has a session of its own, because a fork would share it, and leaves the closing to its user."""
    first, second = web_file_system(), web_file_system()
    assert first is not second
    assert first.asynchronous


def test_a_session_is_closed_once_it_was_opened() -> None:
    """A file system that made no request has no session to close."""
    closed: list[bool] = []

    async def close() -> None:
        closed.append(True)

    for session in (None, SimpleNamespace(close=close)):
        asyncio.run(close_session(SimpleNamespace(_session=session)))
    assert closed == [True]
