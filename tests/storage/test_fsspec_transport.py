from __future__ import annotations

import contextlib
import functools
import gzip
import http.server
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fsspec.implementations.memory import MemoryFileSystem

import shardflow
from shardflow.errors import StoreError, TransientError
from shardflow.storage.remote import remote_storage
from shardflow.storage.retry import RetryPolicy
from tests.helpers.making import make_dataset

PIECE = 1 << 14


class Whole(http.server.SimpleHTTPRequestHandler):
    """A server that counts its answers, without ranges as Python's own, until `knows_ranges` is set."""

    sent: ClassVar[Counter[str]] = Counter()
    knows_ranges: ClassVar[bool] = False
    failing: ClassVar[dict[str, int]] = {}  # path → status

    def do_GET(self) -> None:
        """Count, and send."""
        self.sent[self.path] += 1
        if status := self.failing.get(self.path.rstrip("/")):
            self.send_error(status)
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None or not self.knows_ranges:
            super().do_GET()
            return
        data = Path(self.translate_path(self.path)).read_bytes()[int(asked[1]) : int(asked[2]) + 1]
        self.send_response(206)
        if self.path.endswith(".csv"):  # stored compressed, with the header that makes clients expand it
            self.send_header("Content-Range", f"bytes {asked[1]}-{asked[2]}/{len(data)}")
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The URL of a server without ranges, and the folder that it serves."""
    Whole.sent.clear()
    (tmp_path / "served").mkdir()
    handler = functools.partial(Whole, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", tmp_path / "served"
        server.shutdown()


def test_a_server_without_ranges_sends_a_file_once(served: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first answer that was the whole file, all pieces of a file come from one answer, in any order."""
    url, folder = served
    data = bytes(range(256)) * 1024
    for name in ("first", "second", "third"):
        (folder / name).write_bytes(data)
    storage = remote_storage(url, piece_bytes=PIECE)
    assert [storage.read(name) for name in ("first", "second", "third")] == [data] * 3
    assert (Whole.sent["/second"], Whole.sent["/third"]) == (1, 1)
    assert storage.read_range("second", 100, 200) == data[100:200]
    assert storage.read_range("second", 300, len(data) + 5) == data[300:]
    assert Whole.sent["/second"] == 2
    assert storage.read_range("first", 0, 10) == data[:10]
    (folder / "first").write_bytes(data[5:])
    assert storage.read_range("first", 0, 10) == data[5:15]
    for number in range(8):
        (folder / str(number)).write_bytes(data[number:])
        assert storage.read_range(str(number), 0, 10) == data[number : number + 10]
    monkeypatch.setattr(Whole, "knows_ranges", True)  # as another server behind the same name may
    assert storage.read("third") == data


@pytest.mark.parametrize(("status", "error"), [(404, StoreError), (500, TransientError)])
def test_a_folder_that_cannot_be_listed_is_an_error(
    served: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, status: int, error: type[Exception]
) -> None:
    """A class whose folder the server does not list is not left out; a missing root is empty."""
    url, folder = served
    for name in ("a/1", "a/deeper/2", "a b/3", "c/4"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    storage = remote_storage(url, retry_policy=RetryPolicy(attempts=2, backoff_s=0.01))
    assert list(storage.listing()) == ["a%20b/3", "a/1", "a/deeper/2", "c/4"]
    assert remote_storage(f"{url}/absent").listing() == {}
    monkeypatch.setattr(Whole, "failing", {"/a/deeper": status})
    with pytest.raises(error, match=r"/a/deeper|the server failed"):
        storage.listing()


def test_folders_without_end_are_an_error(served: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers every path with the same page, with a folder in it, is not listed for ever."""
    url, folder = served
    page = folder / "page.html"
    page.write_text('<a href="more/">more</a>')
    monkeypatch.setattr(Whole, "translate_path", lambda *_: str(page))
    with pytest.raises(StoreError, match="folders more than 100 levels deep"):
        remote_storage(url).listing()


def test_threads_share_no_client(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread has a file system to itself: the client of `sftp://` loses answers if threads share it."""
    users: dict[int, set[int]] = {}
    both, read = threading.Barrier(2), MemoryFileSystem.cat_file

    def cat_file(self: MemoryFileSystem, path: str, start: int, end: int) -> Any:
        if start:  # the first piece is read alone
            users.setdefault(id(self), set()).add(threading.get_ident())
            both.wait(10)
        return read(self, path, start, end)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
    storage = remote_storage(f"memory://{prefix}", piece_bytes=4)
    storage.put("a", b"123456789")
    assert storage.read("a") == b"123456789"
    assert [len(threads) for threads in users.values()] == [1, 1]


def test_a_dataset_behind_a_server_without_ranges(served: tuple[str, Path], tmp_path: Path) -> None:
    """A dataset behind such a server can be copied."""
    url, folder = served
    dataset = make_dataset(folder / "set", [40, 30])
    shardflow.sync(f"{url}/set", tmp_path / "copy")
    assert shardflow.open(tmp_path / "copy").fingerprint == shardflow.open(dataset).fingerprint
    assert shardflow.verify(tmp_path / "copy") == []


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_a_compressed_file_is_refused(
    served: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, knows_ranges: bool
) -> None:
    """A table that the server sends with Content-Encoding is an error: its first bytes alone would lack rows."""
    url, folder = served
    monkeypatch.setattr(Whole, "knows_ranges", knows_ranges)
    rows = "".join(f"{number}.png,{number % 2}\n" for number in range(200))
    (folder / "labels.csv").write_bytes(gzip.compress(f"image,label\n{rows}".encode()))
    if not knows_ranges:
        monkeypatch.setattr(Whole, "end_headers", _with_encoding)
    with pytest.raises(StoreError, match=r"labels\.csv: the server sends it compressed"):
        shardflow.pack(f"{url}/labels.csv", tmp_path / "out", workers=1)


def _with_encoding(self: Whole) -> None:
    self.send_header("Content-Encoding", "gzip")
    http.server.SimpleHTTPRequestHandler.end_headers(self)


class _Endless(http.server.BaseHTTPRequestHandler):
    """Says that a file has 1000 bytes, and sends bytes for ever, without ranges."""

    protocol_version = "HTTP/1.1"
    sent: ClassVar[int] = 0

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(OSError):
            while type(self).sent < _ENDLESS:
                self.wfile.write(b"%x\r\n%b\r\n" % (1 << 20, bytes(1 << 20)))
                type(self).sent += 1 << 20


_ENDLESS = 1 << 30


def test_an_answer_without_end_is_not_read(tmp_path: Path) -> None:
    """Of a file that a server without ranges sends for ever, no more is read than the bytes that it should have."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Endless) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/photos"
        storage = remote_storage(url, retry_policy=RetryPolicy(attempts=2, backoff_s=0.01))
        with pytest.raises(TransientError, match="expected 1000 bytes"):
            storage.read("shardflow.json")
        with pytest.raises(TransientError, match="expected 1000 bytes"):
            storage.get("train/000000.tar", tmp_path / "tar", size=1000, sha256="0" * 64)
        server.shutdown()
    assert _Endless.sent < _ENDLESS // 4
    assert not (tmp_path / "tar").exists()
