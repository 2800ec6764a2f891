"""Secrets in errors: whatever a client or server makes of a URL or a credential, no message and no log repeats it."""

from __future__ import annotations

import html
import json
import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

import pytest
import yarl

import shardflow as sf
from shardflow.errors import ConfigError, PackIncompleteError, ShardflowError
from shardflow.packing.sources.resolve import list_source
from shardflow.storage.remote import remote_storage
from shardflow.storage.retry import RetryPolicy
from shardflow.storage.urls import shown_url
from tests.helpers.command import run
from tests.helpers.folders import contents, image_folder, photo
from tests.helpers.s3_proxy import Fault, proxying
from tests.helpers.s3_server import Server
from tests.helpers.store import Store
from tests.helpers.web_server import Folder, serving

SIGNATURE = "Zm9v/YmFy+cXV4/c2VjcmV0+canary=="
QUERY = f"se=2031&sig={quote(SIGNATURE, safe='')}"
QUICK = RetryPolicy(attempts=1, request_timeout_s=2.0)

QUOTINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "quoted": lambda text: quote(text, safe=""),
    "quoted in lower case": lambda text: quote(text, safe="").replace("%2F", "%2f").replace("%2B", "%2b"),
    "quoted but for slashes": quote,
    "quoted as a form": quote_plus,
    "quoted twice": lambda text: quote(quote(text, safe=""), safe=""),
    "a plus that is a space": lambda text: text.replace("+", " "),
    "by yarl": lambda text: yarl.URL(f"http://host/?sig={quote(text, safe='')}").query_string,
    "by yarl, shown": lambda text: yarl.URL(f"http://host/?sig={quote(text, safe='')}").human_repr(),
    "in HTML": lambda text: html.escape(text).replace("+", "&#43;").replace("/", "&#x2F;"),
    "in JSON": lambda text: json.dumps({"sig": text}).replace("=", "\\u003d").replace("/", "\\/"),
    "in Python": lambda text: repr(text.encode()),
    "cut off": lambda text: text[:20],
    "in capitals": str.upper,
}


def _check(error: BaseException | None, log: str) -> None:
    assert error is not None
    said = ("".join(traceback.format_exception(error)) + log).lower()
    assert "zm9v" not in said
    assert "c2vjcmv0" not in said
    assert "canary" not in said
    assert "sig=" not in said


class _Echo(BaseHTTPRequestHandler):
    """Refuses each request with the signature in its answer, in the quoting that the path names."""

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", unquote(parts.path.split("/")[2]))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        status, _, quoting = unquote(parts.path).strip("/").partition("/")
        said = QUOTINGS[quoting.partition("/")[0]](SIGNATURE)
        self.send_response(int(status))
        if status == "302":
            self.send_header("Location", f"http://[{quote(said)}/?sig={quote(said)}")
        self.send_header("X-Error-Code", "".join(said.split())[:100])
        body = f"<Error>the signature {said} is not valid</Error>".encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the name that the base class asks for


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    """The URL of a web server that repeats signatures."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("quoting", QUOTINGS)
def test_a_signature_is_not_repeated(quoting: str, host: str, caplog: pytest.LogCaptureFixture) -> None:
    """An error of a signed URL has no part of the signature, however the server quotes it, nor has its cause."""
    caplog.set_level(logging.DEBUG, "shardflow")
    for status in ("403", "418", "503", "302"):
        place = f"{host}/{status}/{quote(quoting)}"
        signed = remote_storage(f"{place}?{QUERY}", retry_policy=QUICK)
        for storage, name in ((signed, "x.jpg"), (remote_storage(place, retry_policy=QUICK), f"x.jpg?{QUERY}")):
            with pytest.raises(ShardflowError) as caught:
                storage.read(name)
            _check(caught.value, caplog.text)
            assert f"{status}/" in str(caught.value)
        with pytest.raises(ShardflowError) as caught:
            signed.listing()
        _check(caught.value, caplog.text)


def test_signatures_in_a_table_are_not_repeated(host: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An image whose signed URL is refused is quarantined without the signature, which is nowhere written or logged."""
    caplog.set_level(logging.DEBUG, "shardflow")
    rows = [f"{host}/403/{quote(quoting)}/{number}.jpg?{QUERY}" for number, quoting in enumerate(QUOTINGS)]
    (tmp_path / "t.csv").write_text("\n".join(["url", *rows]))
    with pytest.raises(PackIncompleteError) as caught:
        sf.pack(tmp_path / "t.csv", tmp_path / "dst", executor="serial")
    _check(caught.value, caplog.text)
    for data in contents(tmp_path / "dst").values():
        _check(ValueError(data), "")


def test_a_signed_table_and_its_arguments(host: str, caplog: pytest.LogCaptureFixture) -> None:
    """A message about a source names its URL without the query."""
    for source in (
        f"{host}/418/as%20it%20is/t.csv?{QUERY}",
        f"{host}/418/as%20it%20is/t.json?{QUERY}",
        f"{host}/418/as%20it%20is/x.tar?{QUERY}",
        f"{host}/418/as%20it%20is/{{0..1}}.tar?{QUERY}",
        f"{host}/418/as%20it%20is/*.tar?{QUERY}",
        f"{host}/418/as%20it%20is?{QUERY}",
    ):
        with pytest.raises(ShardflowError) as caught:
            list_source(source)
        _check(caught.value, caplog.text)
        with pytest.raises(ConfigError, match="418") as refused:
            sf.index(source)
        _check(refused.value, caplog.text)


def test_credentials_in_the_places_of_a_table_are_not_written_down(tmp_path: Path) -> None:
    """The user and password of a URL are in no file of a dataset, whatever the scheme, and within a chain of places."""
    places = ["s3://AKIA:canary@bucket/x.jpg", "gs://me:canary@bucket/x?.jpg", "zip://x.jpg::https://me:canary@[/x.zip"]
    (tmp_path / "x.jpg").write_bytes(photo(1))
    (tmp_path / "t.csv").write_text("\n".join(["path", "x.jpg", *places]))
    table = sf.sources.Table(tmp_path / "t.csv", storage_options={"deadline_s": 0.1, "token": "anon"})
    report = sf.pack(table, tmp_path / "dst", short_side=32, executor="serial", max_errors=3)
    assert (report.packed, report.quarantined) == (1, 3)
    assert not [name for name, data in contents(tmp_path / "dst").items() if b"canary" in data]
    paths = {each.path for each in sf.open(tmp_path / "dst").quarantine()}
    assert paths == {"s3://bucket/x.jpg", "gs://bucket/x?.jpg", "zip://x.jpg::https://[/x.zip"}


def test_commands_show_no_signature_and_no_password(tmp_path: Path) -> None:
    """Commands print the places that they were given without query, user and password."""
    image_folder(tmp_path / "photos", 2)
    (tmp_path / "photos/t.csv").write_text("path\na/0000.jpg\nb/0001.jpg\n")
    sf.pack(tmp_path / "photos/t.csv", tmp_path / "dst", short_side=32, executor="serial")
    with serving(Folder(tmp_path / "photos")) as store:
        done = run("verify", tmp_path / "dst", "--source", f"{store.endpoint}/t.csv?{QUERY}")
    assert "2 of 2 images compared with http://" in done.stdout
    assert "sig" not in done.stdout + done.stderr
    done = run("pack", tmp_path / "photos", "memory://me:canary@place/dst", "--parts", "none", "--dry-run")
    assert done.returncode == 0
    assert "canary" not in done.stdout + done.stderr
    assert shown_url("zip://x::https://me:canary@host/x.zip?sig=1") == "zip://x::https://host/x.zip"


def test_a_redirection_leads_to_no_file(host: str, tmp_path: Path) -> None:
    """A web server that redirects to a file of this machine, or to nowhere, is refused."""
    (tmp_path / "a.jpg").write_bytes(b"canary")
    for scheme in ("file://", "FILE://localhost", "local://"):
        place = f"{host}/to/{quote(f'{scheme}{tmp_path}/a.jpg', safe='')}"
        with pytest.raises(ShardflowError):
            remote_storage(place, retry_policy=QUICK).read("x")


@pytest.mark.parametrize("quoting", QUOTINGS)
def test_a_key_is_not_repeated(quoting: str, server: Server, azure: Store, prefix: str) -> None:
    """An error of a bucket has no part of a key of the options, however the server quotes it."""
    azure_key = azure.options()["connection_string"].partition("AccountKey=")[2].partition(";")[0]
    for store, key in ((server, SIGNATURE), (azure, azure_key)):
        said = QUOTINGS[quoting](key)
        body = f"<Error><Code>{html.escape(said)}</Code><Message>{html.escape(said)}</Message></Error>".encode()
        with proxying(store.endpoint) as proxy:
            proxy.add(Fault(status=403, body=body))
            options = store.options(proxy.endpoint) | ({"token": key} if store is server else {})
            storage = remote_storage(store.url(prefix), options, retry_policy=QUICK)
            for call in (partial(storage.read, "x"), partial(storage.put, "x", b""), storage.listing):
                with pytest.raises(ShardflowError) as caught:
                    call()
                text = "".join(traceback.format_exception(caught.value))
                assert said[:12] not in text
                assert key[:12] not in text
