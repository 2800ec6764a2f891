"""Imported by multiprocessing's fork server alone: signals to the whole job must not end it, as its workers would end.

Its children have the server's earlier dispositions: they may be of other libraries, which end them by SIGTERM.
"""

from __future__ import annotations

import os
import signal

from shardflow._signals import FOR_THE_JOB, ignore

_before = {number: signal.getsignal(number) for number in FOR_THE_JOB}


def _restore() -> None:
    for number, disposition in _before.items():
        signal.signal(number, disposition)


ignore()
os.register_at_fork(after_in_child=_restore)
