"""Signals to a whole job: they are for its main process, and its worker processes ignore them.

Slurm sends them to each process of a step (`scancel`, `--signal`), torchrun, a terminal's Ctrl-C and a notebook's
interrupt to process groups. The main process then saves its state, or ends in its own way; a worker that died of the
same signal would cost it that.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

FOR_THE_JOB = signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold them back while this thread starts processes, which inherit that, until they call `ignore`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_JOB)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore() -> None:
    """Ignore them from now on; for the main thread of a worker process."""
    for number in FOR_THE_JOB:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_THE_JOB)
