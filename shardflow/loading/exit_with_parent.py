"""No orphans: a worker ends when the training process does, whatever ended that and whoever started the worker.

torch's own watchdog asks whether the parent has changed. Under the start method "forkserver" the parent is the fork
server, which lives as long as any worker, so after a SIGKILL of the training process both would stay for ever.
"""

from __future__ import annotations

import os
import select
import threading


def exit_with_parent(pid: int) -> None:
    """Make this process end at once when process `pid` does. Linux tells when, without polling (`pidfd_open(2)`)."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(1)
    except OSError:
        return  # a kernel before 5.3, or a sandbox: torch's watchdog is left
    threading.Thread(target=_wait, args=(descriptor,), name="end-with-training", daemon=True).start()


def _wait(descriptor: int) -> None:
    select.select([descriptor], [], [])
    os._exit(1)
