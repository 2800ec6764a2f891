"""A proxy between client and S3 server that injects the faults of networks and servers into some requests.

It keeps the `Host` header, so that signatures hold. It logs every request, so that tests can count them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

_CHUNK = 256 << 10


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of a request or its answer. Several fields may be set."""

    before: Callable[[], object] | None = None  # run before the request goes on
    latency_s: float = 0.0
    flip_sent: int | None = None  # one bit of this byte of what the client sends
    status: int | None = None  # answered in place of the server, with an S3 error body of this code
    code: str = "InternalError"
    body: bytes | None = None  # … or with this body
    reaches_server: bool = False  # … after the server has done what was asked: the answer alone is lost
    answer_headers: tuple[tuple[str, str], ...] = ()  # added to the answer; an empty value removes
    reset: bool = False  # the connection is reset in place of an answer
    hang: bool = False  # there is no answer, and the connection stays open
    reset_after: int | None = None  # … in the middle of the body, after so many bytes
    end_after: int | None = None  # the connection ends, although more bytes were promised
    hang_after: int | None = None
    short_by: int = 0  # fewer bytes than there are, promised and sent
    flip: int | None = None  # one bit of this byte of the body
    bytes_per_s: float | None = None


@dataclass
class Rule:
    """A fault and its requests: of those that match, `times` ones from number `first` (from 0) on."""

    fault: Fault
    method: str = ""
    contains: str = ""  # in the path with its query
    first: int = 0
    times: int = 1 << 30
    seen: int = 0

    def applies(self, method: str, target: str) -> bool:
        """Count a request, and say whether it is one of those."""
        if not method.startswith(self.method) or self.contains not in target:
            return False
        self.seen += 1
        return self.first < self.seen <= self.first + self.times


@dataclass
class Proxy:
    """A running proxy."""

    upstream: str
    rules: list[Rule] = field(default_factory=list)
    log: list[tuple[str, str, str]] = field(default_factory=list)  # method, path with query, Range
    latency_s: float = 0.0  # of every request
    bytes_per_s: float | None = None  # of every connection
    body_bytes: int = 0  # of all answers together
    endpoint: str = ""
    _serving: set[asyncio.Task[None] | None] = field(default_factory=set, repr=False)

    def add(self, fault: Fault, **which: Any) -> Rule:
        """Let a fault happen to some requests; see Rule."""
        rule = Rule(fault, **which)
        self.rules.append(rule)
        return rule

    def clear(self) -> None:
        """Forget rules and log."""
        self.rules.clear()
        self.log.clear()

    def count(self, method: str = "", contains: str = "") -> int:
        """Return how many requests there were of a kind."""
        return sum(got.startswith(method) and contains in target for got, target, _ in self.log)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a client."""
        task = asyncio.current_task()
        self._serving.add(task)  # the loop itself would let a task be collected that waits for a silent peer
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._serving.discard(task)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        method, target, headers = await _head(reader)
        if headers.pop("expect", ""):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await _body(reader, headers)
        self.log.append((method, target, headers.get("range", "")))
        fault = next((rule.fault for rule in [*self.rules] if rule.applies(method, target)), Fault())
        if fault.before:
            await asyncio.to_thread(fault.before)
        if fault.flip_sent is not None and fault.flip_sent < len(body):
            body = body[: fault.flip_sent] + bytes([body[fault.flip_sent] ^ 1]) + body[fault.flip_sent + 1 :]
        await asyncio.sleep(self.latency_s + fault.latency_s)
        in_place = fault.status is not None or fault.reset or fault.hang
        if in_place and fault.reaches_server:
            _, upstream = await self._forward(method, target, headers, body)
            await _drained(*upstream)
        if fault.reset:
            return _reset(writer)
        if fault.hang:
            await reader.read()  # until the client has had enough
            return False
        if fault.status is not None:
            text = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>by the proxy</Message></Error>"
            content = text.encode() if fault.body is None else fault.body
            await _answer(writer, fault.status, content, fault.answer_headers, method)
            return True
        status_line, (source, upstream_writer) = await self._forward(method, target, headers, body)
        try:
            return await self._pass(method, status_line, source, writer, fault)
        finally:
            upstream_writer.close()

    async def _forward(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Any:
        address = urlsplit(self.upstream)
        source, sink = await asyncio.open_connection(address.hostname, address.port, limit=1 << 20)
        sent = {**headers, "connection": "close"}
        head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        sink.write(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body)
        try:
            await sink.drain()
            return await source.readline(), (source, sink)
        except BaseException:
            sink.close()
            raise

    async def _pass(
        self, method: str, status_line: bytes, source: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: Fault
    ) -> bool:
        """Pass the server's answer on, as far as the fault lets it."""
        headers = await _fields(source)
        length = int(headers.get("content-length", 0))
        if "content-length" in headers:
            headers["content-length"] = str(length - fault.short_by)
        headers.pop("connection", None)
        for name, value in fault.answer_headers:
            headers[name.lower()] = value
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value)
        writer.write(status_line + f"{lines}\r\n".encode())
        sent, rate, begun = 0, fault.bytes_per_s or self.bytes_per_s, time.monotonic()
        chunk_bytes = min(_CHUNK, max(1, int(rate / 20))) if rate else _CHUNK
        ends = [end for end in (fault.reset_after, fault.end_after, fault.hang_after) if end is not None]
        want = length - fault.short_by if "content-length" in headers else 1 << 60
        while method != "HEAD" and sent < want:
            limit = min([want, *ends]) - sent
            data = bytearray(await source.read(min(chunk_bytes, limit))) if limit else bytearray()
            if not data:
                break
            if fault.flip is not None and sent <= fault.flip < sent + len(data):
                data[fault.flip - sent] ^= 1
            writer.write(data)
            await writer.drain()
            sent += len(data)
            self.body_bytes += len(data)
            if rate:  # by the clock and not by the chunk, so that what sleeps overrun does not add up
                await asyncio.sleep(begun + sent / rate - time.monotonic())
        if sent not in ends:  # the body was shorter than the fault
            return "content-length" in headers
        if fault.reset_after is not None:
            await asyncio.sleep(0.02)  # let what was sent arrive: a reset overtakes it
            return _reset(writer)
        if fault.hang_after is not None:
            await asyncio.sleep(60)
        return False


@contextlib.contextmanager
def proxying(upstream: str) -> Iterator[Proxy]:
    """Run a proxy in a thread until the body ends."""
    proxy, loop, ready = Proxy(upstream), asyncio.new_event_loop(), threading.Event()

    async def main() -> None:
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 20)
        proxy.endpoint = "http://{}:{}".format(*server.sockets[0].getsockname())
        ready.set()
        await stop.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0.01)  # closed connections are let go in the next round of the loop

    stop = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(main(),), name="proxy", daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


async def _head(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]]:
    line = await reader.readline()
    if not line:
        raise ConnectionError
    method, target, _ = line.decode("latin-1").split(" ", 2)
    return method, target, await _fields(reader)


async def _fields(reader: asyncio.StreamReader) -> dict[str, str]:
    fields = {}
    while line := (await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        fields[name.strip().lower()] = value.strip()
    return fields


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "chunked" not in headers.get("transfer-encoding", ""):
        return await reader.readexactly(int(headers.get("content-length", 0)))
    raw = b""
    while True:  # passed on as it came, chunks and all
        line = await reader.readline()
        size = int(line.split(b";")[0], 16)
        raw += line + await reader.readexactly(size + 2)
        if not size:
            return raw


async def _drained(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        await source.read()
    finally:
        sink.close()


async def _answer(
    writer: asyncio.StreamWriter, status: int, body: bytes, headers: tuple[tuple[str, str], ...], method: str
) -> None:
    fields = {"content-type": "application/xml", "content-length": str(len(body)), **dict(headers)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    writer.write(f"HTTP/1.1 {status} Said\r\n{lines}\r\n".encode() + (b"" if method == "HEAD" else body))
    await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> bool:
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False
