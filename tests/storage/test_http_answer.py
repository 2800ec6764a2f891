from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from shardflow.errors import StoreError
from shardflow.storage.http_answer import close_session, refuse_compressed, web_file_system


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


def test_only_codings_that_are_expanded_are_refused() -> None:
    """A coding that changes no byte, which some uploads leave as a header, is read; a compressed file is not."""
    for coding in ("", "identity", "aws-chunked", "utf-8"):
        refuse_compressed({"Content-Encoding": coding})
    refuse_compressed({})
    for coding in ("gzip", "GZIP", "deflate", "br", "zstd"):
        with pytest.raises(StoreError, match=f"Content-Encoding: {coding.lower()}"):
            refuse_compressed({"Content-Encoding": coding})
