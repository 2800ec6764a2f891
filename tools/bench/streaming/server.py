"""The S3 server and the proxies before it, each in a process of its own, and uploads to the bucket."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from bench.environments import PROJECT

sys.path.append(str(PROJECT))  # behind the installed packages, for the helpers of the tests

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


def upload_blobs(endpoint: str, count: int, size: int) -> list[dict[str, Any]]:
    """Put random blobs into the bucket behind a first small one, and return their keys, sizes and SHA-256."""
    server, blobs = Server(endpoint), []
    for number in range(count + 1):
        data, key = random.Random(number).randbytes(size if number else 1000), f"blobs/{number:02}.tar"
        server.client().pipe_file(f"{server.bucket}/{key}", data)
        blobs.append({"key": key, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    return blobs


def passing(blobs: list[dict[str, Any]], streams: list[int]) -> list[float]:
    """Return the MB/s that arrive at so many curls at once."""
    import boto3

    client, bucket, rates = boto3.client("s3"), Server(os.environ["AWS_ENDPOINT_URL"]).bucket, []
    for count in streams:
        curls = []
        for blob in blobs[:count]:
            link = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": blob["key"]})
            command = ["curl", "-s", "-f", "--max-time", "60", "-o", "/dev/null", "-w", "%{time_total}", link]
            curls.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        slowest = max(float(curl.communicate()[0]) for curl in curls)
        if failed := [curl.returncode for curl in curls if curl.returncode]:
            raise RuntimeError(f"curl ended with code {failed[0]}")
        rates.append(sum(blob["size"] for blob in blobs[:count]) / 1e6 / slowest)
    return rates
