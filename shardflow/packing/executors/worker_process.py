"""A worker process: does tasks, and may die of a task without harm to other processes.

It is a new interpreter without `multiprocessing`: a fork would copy the locks of the caller's threads, and a spawn
would run the caller's script again, which then needs an `if __name__ == "__main__"`. Tasks and results are pickled over
a socket pair that only these two processes hold, so an end of file on it means that the worker is gone. Its current
input, and the time of its start, are in shared memory: a message for each input would wake the caller.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import signal
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe

from shardflow._signals import held_back
from shardflow.errors import ShardflowError, WorkerError
from shardflow.packing.jobs import Finish, Outcome, Piece

Task = Piece | Finish

_BOOT = (
    "import sys; sys.path[:] = sys.argv[4:]; from shardflow.packing.executors.worker_process import serve; "
    "serve(*map(int, sys.argv[1:4]))"
)
_EXIT_TIMEOUT_S = 10.0
_START_DEADLINE_S = 60.0  # a busy machine starts an interpreter late
_SINCE, _ORDINAL = struct.Struct("d"), struct.Struct("q")  # in shared memory, one after the other
_NO_INPUT = -1
_PR_SET_PDEATHSIG = 1


class Worker:
    """The caller's side of a worker, which keeps the `inherited` descriptors open, such as the destination's lock."""

    def __init__(self, inherited: Sequence[int]) -> None:
        self.connection, other = Pipe()
        self.task: Task | None = None
        self._sent_s = self._timeout_s = 0.0
        self._end: str | None = None
        shared = os.memfd_create("shardflow")
        os.ftruncate(shared, _SINCE.size + _ORDINAL.size)
        self._progress = mmap.mmap(shared, 0)
        _ORDINAL.pack_into(self._progress, _SINCE.size, _NO_INPUT)
        same_names = ["-X", f"utf8={sys.flags.utf8_mode}"]  # so that the worker decodes paths in the same way
        arguments = [str(other.fileno()), str(shared), str(os.getpid()), *map(str, sys.path)]
        command = [sys.executable, *same_names, "-c", _BOOT, *arguments]
        # In another session, Ctrl-C reaches only the caller, which then ends the worker.
        with held_back():  # for as long as it lives
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(other.fileno(), shared, *inherited),
                start_new_session=True,
            )
        other.close()
        os.close(shared)

    @property
    def ordinal(self) -> int | None:
        """The ordinal of the worker's current input; None between inputs."""
        ordinal: int = _ORDINAL.unpack_from(self._progress, _SINCE.size)[0]
        return None if ordinal == _NO_INPUT else ordinal

    def send(self, task: Task, timeout_s: float) -> None:
        """Send a task, none of whose inputs may take longer than `timeout_s`. `receive` reports a dead worker."""
        self.task, self._sent_s, self._timeout_s = task, time.monotonic(), timeout_s
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(task)

    def receive(self) -> Outcome | None:
        """Return the outcome of the task, None if it has not arrived; raise `WorkerError` if the worker is dead.

        An error of the task is raised too.
        """
        if not self.connection.poll():
            return None
        try:
            outcome: Outcome | Exception = self.connection.recv()
        except (EOFError, OSError):
            raise WorkerError(self.stop()) from None
        self.task = None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def is_overdue(self) -> bool:
        """Return whether the current input, or the start of the process, takes too long."""
        since_s: float = _SINCE.unpack_from(self._progress)[0]
        timeout_s = self._timeout_s if since_s else max(self._timeout_s, _START_DEADLINE_S)
        return time.monotonic() - max(self._sent_s, since_s) > timeout_s

    def stop(self, reason: str | None = None) -> str:
        """Kill the process if it has not ended; return the reason for its end."""
        if self._end is None:
            if reason is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_EXIT_TIMEOUT_S)
            self._process.kill()
            code = self._process.wait()
            how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            self._end = reason or f"its process ended with {how}"
            self.connection.close()
        return self._end


def serve(descriptor: int, shared: int, caller: int) -> None:
    """Do the tasks that arrive over a connection until it is closed: the worker's side."""
    # A worker that outlives its caller would only block the next attempt.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != caller:
        return
    # Decoders print messages about bad bytes to stderr; the caller gets them as reasons.
    with open(os.devnull, "wb") as devnull:
        os.dup2(devnull.fileno(), 2)
    connection, progress = Connection(descriptor), mmap.mmap(shared, 0)

    def announce(ordinal: int | None) -> None:
        _SINCE.pack_into(progress, 0, time.monotonic())  # first, or a new input could seem overdue to the caller
        _ORDINAL.pack_into(progress, _SINCE.size, _NO_INPUT if ordinal is None else ordinal)

    gc.freeze()  # objects of imports are permanent
    with contextlib.suppress(EOFError, ConnectionError):  # the caller is gone, or has no more tasks
        while True:
            task: Task = connection.recv()
            try:
                outcome: Outcome | Exception = task.run(announce)
            except ShardflowError as error:
                outcome = error
            except Exception:
                outcome = RuntimeError(f"a worker met an unexpected error:\n{traceback.format_exc()}")
            connection.send(outcome)
