"""A preload module for multiprocessing's fork server: signals to the job must not end the server and its workers.

Forked children get the server's earlier dispositions back: they may belong to libraries that end them by SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys

from shardflow._signals import FOR_THE_JOB, ignore

_before = {number: signal.getsignal(number) for number in FOR_THE_JOB}


def _restore() -> None:
    for number, disposition in _before.items():
        signal.signal(number, disposition)


if any("multiprocessing.forkserver" in argument for argument in sys.orig_argv):  # no effect elsewhere
    ignore()
    os.register_at_fork(after_in_child=_restore)
