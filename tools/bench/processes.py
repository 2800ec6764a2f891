"""Child processes that call a function of this package, in any interpreter."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.child import MARK
from bench.usage import tree

TIMEOUT_S = 600
Variables = Iterable[tuple[str, str]]


class FailedError(Exception):
    """Something could not be installed, prepared or run; the text is the reason."""


class Child:
    """A running child."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def receive(self) -> Any:
        """Return the next value."""
        for line in self._process.stdout or ():
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        raise EOFError

    def resume(self) -> None:
        """Let a generator go on."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()


@contextlib.contextmanager
def child(
    python: str, function: str, *, variables: Variables = (), timeout_s: float | None = TIMEOUT_S, **arguments: Any
) -> Iterator[Child]:
    """Run a function, named as in "loaders.measure.epochs", while the body runs, and wait for its end.

    Raises `FailedError` when it fails. It is killed with all its children after `timeout_s`, or when the body raises.
    """
    script = str(Path(__file__).with_name("child.py"))
    command = [python, script, *function.rsplit(".", 1), json.dumps(arguments, default=str)]
    timed_out = threading.Event()
    with tempfile.TemporaryFile("w+") as errors:
        environment, pipe = {**os.environ, **dict(variables)}, subprocess.PIPE
        process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=errors, text=True)

        def stop() -> None:
            timed_out.set()
            _kill(process.pid)

        timer = threading.Timer(timeout_s or 0, stop)
        if timeout_s is not None:
            timer.start()
        complete = True
        try:
            try:
                yield Child(process)
            except EOFError:
                complete = False
            process.communicate()
        finally:
            timer.cancel()
            if process.poll() is None:
                _kill(process.pid)
                process.communicate()
        if timed_out.is_set():
            raise FailedError(f"not done after {timeout_s:.0f} s")
        if process.returncode or not complete:
            errors.seek(0)
            raise FailedError(_reason(errors.read()))


def call(python: str, function: str, **options: Any) -> Any:
    """Run a function in a child and return its result; takes the options of `child`."""
    with child(python, function, **options) as process:
        return process.receive()


def _reason(text: str) -> str:
    """Return the last line that names an error, or else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no message"]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (errors or lines)[-1][:200].replace("|", "/")


def _kill(pid: int) -> None:
    for each in tree(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, 9)
