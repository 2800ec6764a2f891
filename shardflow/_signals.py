"""Signals to a whole job: the main process handles them, and worker processes ignore them.

Slurm (`scancel`, `--signal`) signals each process of a step; torchrun, Ctrl-C and a notebook's interrupt signal process
groups. The main process still needs its workers then, to save its state or to shut down in order.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

FOR_THE_JOB = signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold these signals back while this thread starts processes, which inherit the mask until they call `ignore`.

    A mask is not enough: the system gives a signal to any thread that does not block it, and Python then calls the
    handler in the main thread, which may be the one that starts processes.
    """
    handlers, came = dict[int, Any](), list[int]()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_JOB)
        for number in FOR_THE_JOB if threading.current_thread() is threading.main_thread() else ():
            if callable(handler := signal.getsignal(number)):
                handlers[number] = handler
                signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for held, handler in handlers.items():
            signal.signal(held, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for late in came:
            signal.raise_signal(late)


def ignore() -> None:
    """Ignore these signals from now on. Call this in the main thread of a worker process."""
    for number in FOR_THE_JOB:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_JOB)
