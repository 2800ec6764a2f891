"""A process that is spoken to by lines: it prints one when it has something to say, and waits for one to go on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from environments import FailedError
from measure import tree

TIMEOUT_S = 90


class Spoken:
    """A running process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def say(self) -> None:
        """Let it go on."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def heard(self) -> Any:
        """Return the next line of JSON; libraries print other things as well."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                return json.loads(line)
        raise EOFError


@contextlib.contextmanager
def speaking(command: list[str], variables: Mapping[str, str]) -> Iterator[Spoken]:
    """Run a process until it ends; it is killed, with all below it, when it takes too long or the body raises."""
    late = threading.Event()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, env={**variables}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )

        def end() -> None:
            late.set()
            _kill(process.pid)

        timer = threading.Timer(TIMEOUT_S, end)
        timer.start()
        try:
            yield Spoken(process)
            process.wait()
        except EOFError:
            process.wait()
            errors.seek(0)
            raise FailedError(f"not done after {TIMEOUT_S} s" if late.is_set() else reason(errors.read())) from None
        finally:
            timer.cancel()
            if process.poll() is None:
                _kill(process.pid)
                process.wait()


def reason(text: str) -> str:
    """Return the line that says what went wrong: the last that names an error, or else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no message"]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (named or lines)[-1][:200].replace("|", "/")


def _kill(pid: int) -> None:
    for each in tree(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, 9)
