"""The conditions under which everything is measured: how far away the server is, and how often it is met."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WARM = 3
"""Epochs that are measured as one after the cold one: at the speed of memory one is over too soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What lies between client and server. The bare loopback has no proxy, because a proxy would be felt."""

    name: str
    title: str
    latency_s: float = 0.0
    bytes_per_s: float = 0.0  # of each connection; 0 for no limit
    proxied: bool = True


DIRECT = Condition(name="direct", title="bare loopback", proxied=False)
FAR = Condition(name="far", title="50 ms, 90 MB/s per connection", latency_s=0.05, bytes_per_s=90e6)
CONDITIONS = (DIRECT, FAR)
UNCAPPED = Condition(name="uncapped", title="the proxy alone")


class Far:
    """A running proxy."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.endpoint = self._line()

    def count(self) -> dict[str, Any]:
        """Return the requests and the bytes since the last call."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        counted: dict[str, Any] = json.loads(self._line())
        return counted

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextlib.contextmanager
def proxy(endpoint: str, condition: Condition) -> Iterator[Far]:
    """Run a proxy before an endpoint until the body ends."""
    command = [sys.executable, str(Path(__file__).with_name("far.py")), endpoint]
    command += [str(condition.latency_s), str(condition.bytes_per_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Far(process)
        finally:
            process.terminate()
