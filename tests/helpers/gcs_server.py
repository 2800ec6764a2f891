"""Google Cloud Storage for the tests: the emulator gcp-storage-emulator, with the conditions that it lacks.

It ignores `ifGenerationMatch`, says no generation when it sends a body, and lists everything at once. All is added
here, as Google's documentation has it; requests are served one after the other, so that a condition and its write are
one step.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import re
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.server import RequestHandler
from gcp_storage_emulator.storage import Storage

from tests.helpers.store import Store

PAGE = 20  # objects that one answer lists; Google's lists up to 1,000, or fewer

_lock = threading.Lock()


class _Handler(RequestHandler):
    _generation = ""

    def do_GET(self) -> None:
        self._serve(super().do_GET)

    def do_POST(self) -> None:
        self._serve(super().do_POST)

    def do_DELETE(self) -> None:
        self._serve(super().do_DELETE)

    def end_headers(self) -> None:
        if self._generation:
            self.send_header("X-Goog-Generation", self._generation)
        super().end_headers()

    def _serve(self, answer: Any) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        place = re.search(r"/b/([^/]+)/o(?:/(.+))?$", parts.path)
        name = query.get("name") or (unquote(place[2]) if place and place[2] else "")
        with _lock:
            found: dict[str, Any] = {}
            if place and name:
                with contextlib.suppress(NotFound):
                    found = self.storage.get_file_obj(place[1], name)
            wanted, current = query.get("ifGenerationMatch"), found.get("generation", "0")
            start = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
            if place and not place[2] and self.command == "GET":
                self._list(place[1], query)
            elif wanted is not None and wanted != current and (found or self.command == "POST"):
                self._refuse(412, "At least one of the pre-conditions you specified did not hold.")
            elif found and start and int(start[1]) >= int(found["size"]):
                self._refuse(416, "The requested range cannot be satisfied.")
            else:
                self._generation = current if found and self.command == "GET" else ""
                answer()
                self._generation = ""

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        try:
            found, _ = self.storage.get_file_list(bucket, query.get("prefix"), None)
        except NotFound:
            self._refuse(404, "The specified bucket does not exist.")
            return
        begin = int(query.get("pageToken", 0))
        page: dict[str, Any] = {"kind": "storage#objects", "items": found[begin : begin + PAGE]}
        if begin + PAGE < len(found):
            page["nextPageToken"] = str(begin + PAGE)
        self._say(200, page)

    def _refuse(self, status: int, message: str) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._say(status, {"error": {"code": status, "message": message}})

    def _say(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def running() -> Iterator[Store]:
    """Run the emulator until the body ends, with one bucket."""
    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
    storage = Storage(use_memory_fs=True)
    storage.create_bucket("tests", {"name": "tests", "kind": "storage#bucket"})
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, storage)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        yield Store(endpoint, "gs://tests", lambda endpoint: {"endpoint_url": endpoint, "token": "anon"})
        server.shutdown()
