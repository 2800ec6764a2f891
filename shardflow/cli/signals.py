"""Signals: while modules are imported, Ctrl-C and SIGTERM end the command at once.

An exception from a signal handler during an import may be swallowed, or end in a traceback. The command's work has not
begun, so there is nothing to clean up. This module imports nothing that takes time.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
"""Signal → the message with which the command ends."""


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """Make SIGINT and SIGTERM end the process, with the command's message and exit code, within the body."""
    before = {}
    with contextlib.suppress(ValueError):  # not in the main thread, which handles signals
        for number in WORDS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
    with contextlib.suppress(OSError):
        os.write(2, f"shardflow: {WORDS[signal.Signals(number)]}\n".encode())
    os._exit(128 + number)
