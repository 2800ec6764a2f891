"""The processes of a test run: found by their parents or by a mark in their environment, and ended when they are left.

A run is one call of pytest, with or without workers of pytest-xdist. Everything that it starts has the run's folder in
its environment, and what a process of pytest starts, that process's number; so what lost its parent is found as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

RUN = "SHARDFLOW_TEST_RUN"
"""The environment variable with the run's folder."""

OWNER = "SHARDFLOW_TEST_OWNER"
"""The environment variable with the number of the process of pytest whose test started a process."""

_PR_SET_CHILD_SUBREAPER = 36
_HELPERS = b"multiprocessing.resource_tracker", b"multiprocessing.forkserver"  # Python's own: they serve all tests


def parents() -> dict[int, int]:
    """Return the parent of each process that runs, by their numbers; zombies have ended."""
    found = {pid: _parent(pid) for pid in numbers()}
    return {pid: parent for pid, parent in found.items() if parent is not None}


def runs(pid: int) -> bool:
    """Whether a process has not ended."""
    return _parent(pid) is not None


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split(maxsplit=2)[:2]
    except OSError:  # it has ended
        return None
    return None if state in b"ZX" else int(parent)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has ended
            found += map(int, thread.read_text().split())
    return found


def descendants(ancestors: Iterable[int]) -> set[int]:
    """Return the running children of some processes, their children, and so on."""
    running, found, size = parents(), set(ancestors), 0
    known = frozenset(found)
    while len(found) > size:
        size = len(found)
        found |= {pid for pid, parent in running.items() if parent in found}
    return found - known


def marked(variable: str, value: str) -> set[int]:
    """Return the running processes that began with an environment variable of this value."""
    wanted = f"{variable}={value}".encode()
    return {pid for pid in parents() if wanted in _read(pid, "environ").split(b"\0")}


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs; see PR_SET_CHILD_SUBREAPER in prctl(2)."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def bury(keep: Iterable[int]) -> None:
    """Wait for the adopted children of this process that have ended; its own, which others wait for, are to be kept."""
    for pid in set(_children(os.getpid())) - set(keep):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def left_by(owner: int, before: set[int]) -> set[int]:
    """Return what the tests of a process have started, directly or not, that was not there before and still runs."""
    found = (descendants([owner]) | marked(OWNER, str(owner))) - before - {owner}
    return {pid for pid in found if not any(name in _read(pid, "cmdline") for name in _HELPERS)}


def end(pids: Iterable[int]) -> None:
    """Kill processes; those that have ended already are no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def ancestors(pid: int) -> Iterator[int]:
    """Yield a process, its parent, and so on."""
    running = parents()
    while pid:
        yield pid
        pid = running.get(pid, 0)


def numbers() -> set[int]:
    """Return the numbers of all processes, zombies included."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def _read(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:  # it ended meanwhile, or is another user's
        return b""
