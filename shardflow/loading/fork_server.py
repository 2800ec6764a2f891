"""For multiprocessing's fork server, which imports it: signals to the job must not end it, as its workers would end.

Its children have the server's earlier dispositions: they may be of other libraries, which end them by SIGTERM.
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


if any("multiprocessing.forkserver" in argument for argument in sys.orig_argv):  # in any other process, nothing
    ignore()
    os.register_at_fork(after_in_child=_restore)
