"""What a command costs, all processes that it starts included."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import time
from pathlib import Path

from environments import FailedError

TIMEOUT_S = 900
_PR_SET_CHILD_SUBREAPER = 36


def run(command: list[str]) -> str:
    """Run a command to its end and return what it printed; raises `FailedError` with the last line of its errors."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise FailedError(f"did not end within {TIMEOUT_S} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise FailedError(lines[-1].strip()[:200].replace("|", "/"))
    return done.stdout


def measure(command: list[str]) -> dict[str, float]:
    """Run a command, and return its wall time, its CPU time, and the share of the machine that others used meanwhile.

    Processes that outlive the one that started them become children of this one, so that none escapes the account.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    busy, cpu, begun = _busy_s(), _children_s(), time.monotonic()
    run(command)
    wall = time.monotonic() - begun
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    used = _children_s() - cpu
    passed = time.monotonic() - begun
    others = max(0.0, (_busy_s() - busy - used) / (passed * (os.cpu_count() or 1)))
    return {"wall_s": wall, "cpu_s": used, "others": others}


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _busy_s() -> float:
    """User, nice, system and interrupt time of all cores (proc(5), /proc/stat)."""
    fields = Path("/proc/stat").read_text().split()
    return sum(int(fields[column]) for column in (1, 2, 3, 6, 7)) / os.sysconf("SC_CLK_TCK")
