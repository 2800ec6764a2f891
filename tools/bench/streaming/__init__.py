"""Streaming from S3: training epochs, and with `store` the clients of S3 alone.

    python3 tools/bench streaming [--images DIR]
    python3 tools/bench streaming store

Makes the environments, the images and every loader's own format of them, runs an S3 server on loopback, uploads
everything to it, and measures each row twice: on the bare loopback, and through a proxy that delays every answer and
caps every connection. Takes 25 and 10 minutes, and the first time 13 GB of disk and some downloads. What does not
install or run is reported in the table.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from typing import Any

from bench import harness
from bench.harness import Row
from bench.processes import Child
from bench.usage import tree

TIMEOUT_S = 90


CONDITIONS = {"direct": "bare loopback", "far": "50 ms, 90 MB/s per connection"}
"""Networks between client and server, and their titles."""
FAR = {"latency_s": 0.05, "bytes_per_s": 90e6}
"""The proxy of the condition "far"."""


class Proxy:
    """A proxy before the server, in a process of its own."""

    def __init__(self, process: Child) -> None:
        self._process, self.pid = process, process.pid
        self.endpoint: str = process.receive()

    def count(self) -> dict[str, float]:
        """Return the requests, and the bytes of the answers' bodies, since the last call."""
        self._process.resume()
        return self._process.receive()


class Streaming(harness.Workload):
    """What both workloads share: a server, proxies before it, and the tables."""

    page = "streaming.md"
    rounds = 2

    def facts(self) -> dict[str, Any]:
        """Run the server until the workload ends."""
        folder = self.stack.enter_context(tempfile.TemporaryDirectory(dir=self.data))
        serving = self.child("streaming", "streaming.server.serve", folder=folder, timeout_s=None)
        process = self.stack.enter_context(serving)
        self.server: dict[str, Any] = process.receive()
        self.servers = [process.pid]  # their children are found when they are needed
        return {"what": self.name}

    def proxy(self, **limits: float) -> Proxy:
        """Run a proxy until the workload ends."""
        limits = {"timeout_s": None, "endpoint": self.server["endpoint"], **limits}
        return Proxy(self.stack.enter_context(self.child("streaming", "streaming.server.proxy", **limits)))

    def served_by(self) -> list[int]:
        """Return the processes of the server and of the proxies."""
        return [pid for server in self.servers for pid in tree(server)]

    def client(
        self, row: Row | str, function: str, proxy: Proxy | None, **arguments: Any
    ) -> contextlib.AbstractContextManager[Child]:
        """Run a function of a client of the server, or of a proxy."""
        endpoint = proxy.endpoint if proxy else self.server["endpoint"]
        variables = {
            **self.server["variables"],
            "AWS_ENDPOINT_URL": endpoint,
            "S3_ENDPOINT_URL": endpoint,  # MosaicML Streaming's name for it
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        return self.child(row, f"streaming.{function}", variables=variables.items(), timeout_s=TIMEOUT_S, **arguments)

    def marks(self, results: dict[str, Any]) -> dict[str, str]:
        """Return tables and caption by their marks in the page, which begin with the workload's name."""
        return {f"{self.name} {mark}": content for mark, content in super().marks(results).items()}

    def setting(self, results: dict[str, Any]) -> str:
        """Return the part of the caption that both have."""
        where, others = self.where(results)
        return f"server and proxy on the same {where}, in which others used at most {others:.0%} of the machine."


def main(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Run one of the workloads."""
    from .epochs import Epochs
    from .store import Store

    store = arguments[:1] == ["store"]
    harness.run(Store if store else Epochs, parser, arguments[store:])
