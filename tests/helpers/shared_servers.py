"""Servers in processes of their own, one of each kind for all processes of a run.

The first process of pytest starts and stops them. One that runs tests asks by a file in the run's folder, and waits for
the answer, the server's endpoint.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from pathlib import Path

from tests.helpers.processes import RUN, descendants

_MODULES = {"azure": "tests.helpers.azure_server", "s3": "tests.helpers.s3_server"}
"""Each has `serving`, a context that yields an endpoint; imported where one is wanted."""
_DEADLINE_S = 120.0


class Owner:
    """The servers of a run, in its first process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._kinds: set[str] = set()
        self.pids: set[int] = set()

    def serve(self) -> None:
        """Start the servers that were asked for meanwhile."""
        for kind in _MODULES.keys() - self._kinds:
            if os.path.exists(self._folder / f"{kind}.wanted"):  # also while a test has no right to look
                self._kinds.add(kind)
                before = descendants([os.getpid()])
                try:
                    serving = importlib.import_module(_MODULES[kind]).serving
                    answer = self._stack.enter_context(serving(self._folder / kind))
                except Exception as error:
                    answer = f"failed: {error}"
                self.pids |= descendants([os.getpid()]) - before
                unfinished = Path(self._folder, f"{kind}.unfinished")
                unfinished.write_text(answer)
                unfinished.rename(self._folder / kind / "endpoint")

    def close(self) -> None:
        """Stop them."""
        self._stack.close()


def endpoint(kind: str) -> str:
    """Return the endpoint of the run's server of a kind, which is started by the first test that asks."""
    folder = Path(os.environ[RUN])
    Path(folder, f"{kind}.wanted").touch()
    deadline = time.monotonic() + _DEADLINE_S
    while not (answer := folder / kind / "endpoint").exists():
        assert time.monotonic() < deadline, f"the run's {kind} server does not start"
        time.sleep(0.05)
    said = answer.read_text()
    assert said.startswith("http://"), said
    return said
