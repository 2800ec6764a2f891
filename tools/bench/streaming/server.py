"""The S3 server and the proxies before it, each in its own process, and uploads to the bucket."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from bench.environments import PROJECT

sys.path.append(str(PROJECT))  # after the installed packages, for the helpers of the tests

from tests.helpers.s3_proxy import proxying
from tests.helpers.s3_server import Server, running


def serve(folder: str) -> Generator[dict[str, Any]]:
    """Run a server while the caller waits; yields its endpoint, its bucket, and the variables with the credentials."""
    with running(Path(folder)) as server:
        yield {"endpoint": server.endpoint, "bucket": server.bucket, "variables": server.environment()}


def proxy(endpoint: str, latency_s: float = 0.0, bytes_per_s: float | None = None) -> Generator[Any]:
    """Run a proxy, with limits for each connection; yields its endpoint, and then requests and bytes since the last."""
    with proxying(endpoint) as running_proxy:
        running_proxy.latency_s, running_proxy.bytes_per_s = latency_s, bytes_per_s
        yield running_proxy.endpoint
        while True:
            counted = {"requests": len(running_proxy.log), "bytes": running_proxy.body_bytes}
            running_proxy.log.clear()
            running_proxy.body_bytes = 0
            yield counted


def upload(endpoint: str, folder: str) -> None:
    """Put a folder into the bucket."""
    Server(endpoint).client().put(folder, Server(endpoint).bucket, recursive=True)
