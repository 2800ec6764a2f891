"""Web servers for the tests: one with ranges and ETags, one without either, and a stand-in for the Hugging Face Hub.

The stand-in has those parts of the Hub's HTTP API that reading needs: what a repository is, its tree, and `resolve`,
which redirects to another host as it does for large files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from shardflow.storage.interface import Storage
from shardflow.storage.local import LocalStorage
from tests.helpers.store import Store

REPOSITORY = "someone/photos"
TOKEN = "hf_tests-canary-token"


@dataclass
class Folder:
    """A folder that is served, and how."""

    root: Path
    ranges: bool = True
    busy: int = 0  # requests of files that are answered with 429, as the Hub does
    seen: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, Authorization


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, folder: Folder, *args: Any) -> None:
        self.folder = folder
        super().__init__(*args)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.folder.seen.append((self.command, self.path, self.headers.get("Authorization")))
        self.serve(unquote(urlsplit(self.path).path).lstrip("/"))

    def serve(self, name: str) -> None:
        """Send a file, or the links of a directory."""
        path = self.folder.root / name
        if path.is_dir():
            names = [f"{found.relative_to(self.folder.root)}{'/' * found.is_dir()}" for found in sorted(path.iterdir())]
            self.send(200, "".join(f'<a href="/{quote(found)}">x</a>\n' for found in names).encode())
        elif not path.is_file():
            self.send(404, b"")
        else:
            self.send_file(path.read_bytes())

    def send_file(self, data: bytes, **headers: str) -> None:
        """Send a file or a range of it."""
        tag = f'"{hashlib.sha256(data).hexdigest()}"'
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if self.folder.ranges else None
        if not self.folder.ranges:
            self.send(200, data, **headers)
        elif self.headers.get("If-Match", tag) != tag:
            self.send(412, b"")
        elif asked is None:
            self.send(200, data, ETag=tag, **headers)
        elif int(asked[1]) >= len(data):
            self.send(416, b"", **{"Content-Range": f"bytes */{len(data)}"})
        else:
            start, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
            about = {"ETag": tag, "Content-Range": f"bytes {start}-{last}/{len(data)}", **headers}
            self.send(206, data[start : last + 1], **about)

    def send(self, status: int, body: bytes, **headers: str) -> None:
        """Send an answer."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "Content-Type": "text/html", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class _HubHandler(_Handler):
    """The API of one dataset repository, which is private: without its token it seems not to exist."""

    def do_GET(self) -> None:
        self.folder.seen.append((self.command, self.path, self.headers.get("Authorization")))
        parts = urlsplit(self.path)
        path, api = unquote(parts.path), f"/api/datasets/{REPOSITORY}"
        if path.startswith("/files/"):  # the other host; it must not get the token
            self.serve(path.removeprefix("/files/"))
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}" or REPOSITORY not in path:
            self.send(401, b"", **{"X-Error-Code": "RepoNotFound"})
        elif path.startswith(f"/datasets/{REPOSITORY}/resolve/main/"):
            self._resolve(path.partition("/resolve/main/")[2])
        elif path.startswith(f"{api}/tree/main"):
            below = path.removeprefix(f"{api}/tree/main").strip("/")
            self._json(*self._tree(below, recursive=parse_qs(parts.query).get("recursive", [""])[0].lower() == "true"))
        elif path in (api, f"{api}/revision/main"):
            self._json(200, {"id": REPOSITORY, "sha": "0" * 40, "private": True, "siblings": []})
        else:
            self.send(404, b"", **{"X-Error-Code": "RevisionNotFound"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        found = [self._entry(self.folder.root / path) for path in body["paths"] if (self.folder.root / path).exists()]
        self._json(200, found)

    def _resolve(self, name: str) -> None:
        if self.folder.busy:
            self.folder.busy -= 1
            self.send(429, b"", RateLimit='"resolvers";r=0;t=1')
        elif not (self.folder.root / name).is_file():
            self.send(404, b"", **{"X-Error-Code": "EntryNotFound"})
        elif name.endswith(".tar"):
            host, port = self.server.server_address[:2]
            self.send(302, b"", Location=f"http://localhost:{port}/files/{quote(name)}", **{"X-Linked-Size": "1"})
            assert host == "127.0.0.1"
        else:
            self.send_file((self.folder.root / name).read_bytes())

    def _tree(self, below: str, *, recursive: bool) -> tuple[int, Any]:
        place = self.folder.root / below
        if not place.is_dir():
            return 404, {"error": "not found"}
        found = place.rglob("*") if recursive else place.iterdir()
        return 200, [self._entry(path) for path in sorted(found) if not path.name.startswith(".tmp-")]

    def _entry(self, path: Path) -> dict[str, Any]:
        name = path.relative_to(self.folder.root).as_posix()
        if path.is_dir():
            return {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
        return {"type": "file", "oid": "0" * 40, "size": path.stat().st_size, "path": name}

    def _json(self, status: int, content: Any) -> None:
        self.send(status, json.dumps(content).encode(), **{"Content-Type": "application/json"})


@contextlib.contextmanager
def serving(folder: Folder) -> Iterator[Store]:
    """Serve a folder over HTTP until the body ends."""
    with _running(_Handler, folder) as endpoint:
        yield Store(endpoint, endpoint, lambda _: {})


@contextlib.contextmanager
def hub(folder: Folder) -> Iterator[Store]:
    """Serve a folder as the main revision of a dataset repository of the Hub."""
    with _running(_HubHandler, folder) as endpoint:
        yield Store(endpoint, f"hf://datasets/{REPOSITORY}", lambda host: {"endpoint": host, "token": TOKEN})


@contextlib.contextmanager
def _running(handler: type[_Handler], folder: Folder) -> Iterator[str]:
    folder.root.mkdir(parents=True, exist_ok=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, folder)) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class ServedStorage:
    """A Storage that writes to the folder which a server serves, and reads from the server; see Storage."""

    def __init__(self, files: LocalStorage, served: Storage) -> None:
        self.files, self._served = files, served

    def __getattr__(self, name: str) -> Any:
        writes = ("put", "remove")
        return getattr(self.files if name in writes else self._served, name)

    def __str__(self) -> str:
        return str(self._served)
