"""Signals to a whole job: the main process handles them, and worker processes ignore them.

Slurm (`scancel`, `--signal`) signals each process of a step; torchrun, Ctrl-C and a notebook's interrupt signal process
groups. The main process still needs its workers then, to save its state or to shut down in order.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

FOR_THE_JOB = signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Block these signals while this thread starts processes, which inherit the mask until they call `ignore`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_JOB)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore() -> None:
    """Ignore these signals from now on. Call this in the main thread of a worker process."""
    for number in FOR_THE_JOB:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_JOB)
