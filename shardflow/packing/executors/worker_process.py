"""A worker: a process that does tasks, and may die of one without taking anybody along.

It is started as a fresh interpreter, not through `multiprocessing`: a fork would copy the locks of the caller's
threads, and a spawn would run the caller's script again, which asks every script for an `if __name__ == "__main__"`.
Tasks and results are pickled over a socket pair that only these two processes hold, so an end of file on it means
that the worker is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe

from shardflow.errors import ShardflowError, WorkerError
from shardflow.formats.receipt import Receipt
from shardflow.packing.jobs import Finish, Piece, PieceResult

Task = Piece | Finish
Outcome = PieceResult | Receipt

_BOOT = (
    "import sys; sys.path[:] = sys.argv[3:]; from shardflow.packing.executors.worker_process import serve; "
    "serve(*map(int, sys.argv[1:3]))"
)
_END_PATIENCE_S = 10.0
_PR_SET_PDEATHSIG = 1


class Worker:
    """The caller's side.

    Args:
        inherited: Descriptors to hold for as long as the worker lives, such as the destination's lock.
    """

    def __init__(self, inherited: Sequence[int]) -> None:
        self.connection, other = Pipe()
        self.task: Task | None = None
        self.ordinal: int | None = None  # the input it is at
        self._heard = self._patience_s = 0.0
        self._end: str | None = None
        command = [sys.executable, "-c", _BOOT, str(other.fileno()), str(os.getpid()), *map(str, sys.path)]
        # In a session of its own, Ctrl-C reaches the caller alone, which then ends the worker.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(other.fileno(), *inherited),
            start_new_session=True,
        )
        other.close()

    def give(self, task: Task, patience_s: float) -> None:
        """Hand over a task, and expect some word at least every `patience_s`.

        A worker that is dead by now says so through its connection.
        """
        self.task, self.ordinal, self._heard, self._patience_s = task, None, time.monotonic(), patience_s
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(task)

    def hear(self) -> Outcome | None:
        """Take what the worker said; return the outcome of its task, None when there is none yet.

        Raises:
            WorkerError: It is dead; the message says of what.
            ShardflowError: The task failed.
            RuntimeError: The task met an unexpected error.
        """
        while self.connection.poll():
            try:
                message = self.connection.recv()
            except (EOFError, OSError):
                raise WorkerError(self.end()) from None
            self._heard = time.monotonic()
            if message is None or isinstance(message, int):
                self.ordinal = message
                continue
            self.task = None
            if isinstance(message, Exception):
                raise message
            outcome: Outcome = message
            return outcome
        return None

    def overdue_s(self) -> float:
        """Return for how long it has been silent beyond patience; negative while it has not."""
        return time.monotonic() - self._heard - self._patience_s

    def end(self, reason: str | None = None) -> str:
        """End the process, if it has not ended by itself, and return how it ended."""
        if self._end is None:
            if reason is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_END_PATIENCE_S)
            self._process.kill()
            code = self._process.wait()
            how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            self._end = reason or f"its process ended with {how}"
            self.connection.close()
        return self._end


def serve(descriptor: int, caller: int) -> None:
    """Do the tasks that come over a connection until it is closed; the worker's side."""
    # Work for a caller that was killed would only stand in the way of its next attempt.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != caller:
        return
    # Libraries that decode write there what they think of bad bytes; the caller hears of it as a reason.
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    with contextlib.suppress(EOFError, ConnectionError):  # the caller is gone, or has nothing more to do
        _work(Connection(descriptor))


def _work(connection: Connection) -> None:
    while True:
        task: Task = connection.recv()
        try:
            outcome: Outcome | Exception = task.run(connection.send)
        except ShardflowError as error:
            outcome = error
        except ConnectionError:
            raise
        except Exception:
            outcome = RuntimeError(f"a worker met an unexpected error:\n{traceback.format_exc()}")
        connection.send(outcome)
