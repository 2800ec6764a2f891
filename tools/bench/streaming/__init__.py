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
from dataclasses import dataclass
from typing import Any

from bench import harness
from bench.harness import Row
from bench.processes import Child
from bench.usage import tree

TIMEOUT_S = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What lies between client and server."""

    title: str
    latency_s: float = 0.0
    bytes_per_s: float = 0.0  # of each connection; 0 for no limit
    proxied: bool = True


CONDITIONS = {
    "direct": Condition(title="bare loopback", proxied=False),
    "far": Condition(title="50 ms, 90 MB/s per connection", latency_s=0.05, bytes_per_s=90e6),
}


class Far:
    """A proxy before the server, in a process of its own.

    Attributes:
        endpoint: Its URL.
        pid: The process.
    """

    def __init__(self, process: Child) -> None:
        self._process, self.pid = process, process.pid
        self.endpoint: str = process.receive()

    def count(self) -> dict[str, float]:
        """Return the requests, and the bytes of the answers' bodies, since the last call."""
        self._process.resume()
        counted: dict[str, float] = self._process.receive()
        return counted


class Streaming(harness.Workload):
    """What both workloads share: a server, proxies before it, and the tables."""

    page = "streaming.md"
    rounds = 2

    def facts(self) -> dict[str, Any]:
        """Run the server until the workload ends."""
        folder = self.stack.enter_context(tempfile.TemporaryDirectory(dir=self.data))
        process = self.stack.enter_context(
            self.child("streaming", "streaming.server.serve", folder=folder, timeout_s=None)
        )
        self.server: dict[str, Any] = process.receive()
        self.servers = [process.pid]  # their children are found when they are needed
        return {"what": self.name}

    def proxy(self, stack: contextlib.ExitStack, condition: Condition) -> Far:
        """Run a proxy until the stack is closed."""
        arguments = {"latency_s": condition.latency_s, "bytes_per_s": condition.bytes_per_s, "timeout_s": None}
        endpoint = self.server["endpoint"]
        return Far(stack.enter_context(self.child("streaming", "streaming.server.far", endpoint=endpoint, **arguments)))

    def served_by(self) -> list[int]:
        """Return the processes of the server and of the proxies."""
        return [pid for server in self.servers for pid in tree(server)]

    def client(
        self, row: Row | str, function: str, far: Far | None, **arguments: Any
    ) -> contextlib.AbstractContextManager[Child]:
        """Run a function of a client of the server, or of a proxy."""
        endpoint = far.endpoint if far else self.server["endpoint"]
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

    def where(self, results: dict[str, Any]) -> str:
        """Return the part of the caption that both have."""
        measured = [run for row in results["rows"] for run in row["rounds"]]
        return (
            f"server and proxy on the same {results['hardware']}; {results['date']}; medians of "
            f"{max((run['round'] for run in measured), default=0)} interleaved rounds, in which others used at most "
            f"{max(map(self.others, measured), default=0.0):.0%} of the machine."
        )


def main(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Run one of the workloads."""
    from .epochs import Epochs
    from .store import Store

    store = arguments[:1] == ["store"]
    harness.run(Store if store else Epochs, parser, arguments[store:])
