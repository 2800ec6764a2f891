"""A phase of the run: one function, called in its own process, with a limit in time.

The processes are forked from one that has imported what they need (the fork server of `multiprocessing`): imports take
seconds, and there are some fifty phases. That one has not touched the GPU, because CUDA does not work after a fork.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

from bench.processes import FailedError
from bench.usage import tree

_PRELOADED = ["bench.gpu.measure"]
_LAST_WORDS_S = 10.0  # a process that waits for a broken GPU does not even end when it is killed


@dataclass(frozen=True, slots=True)
class Phase:
    """A function by its full name, its arguments, how long it may take, and the package it needs."""

    name: str
    function: str
    timeout_s: float
    arguments: dict[str, Any] = field(default_factory=dict)
    needs: str = ""

    def results(self, timeout_s: float, log: Path) -> Iterator[dict[str, Any]]:
        """Call the function; what it returns or yields are the results, and what it prints goes to the log.

        Raises `FailedError` when it fails or takes too long. All of its processes end with it.
        """
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_call, args=(self.function, self.arguments, sender, str(log)))
        process.start()
        sender.close()
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                ready = connection.wait([receiver, process.sentinel], max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise FailedError(f"not done after {timeout_s:.0f} s")
                try:
                    if receiver not in ready:
                        raise EOFError
                    done, error, result = receiver.recv()
                except EOFError:
                    process.join(_LAST_WORDS_S)
                    raise FailedError(f"the process ended with code {process.exitcode}") from None
                if error:
                    raise FailedError(error)
                if done:
                    return
                yield result
        finally:
            receiver.close()
            _kill(process.pid)
            process.join(_LAST_WORDS_S)


def _call(function: str, arguments: dict[str, Any], sender: connection.Connection, log: str) -> None:
    os.setpgrp()  # so that workers that outlive it can be found by their group
    multiprocessing.set_start_method(None, force=True)  # the platform's: loaders start workers as they do elsewhere
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    print(f"\n--- {function} {arguments}", flush=True)
    module, _, name = function.rpartition(".")
    error = ""
    try:
        result = getattr(importlib.import_module(module), name)(**arguments)
        for value in result if isinstance(result, Generator) else [result]:
            sender.send((False, "", value))
    except BaseException as raised:
        traceback.print_exc()
        message = str(raised).strip().partition("\n")[0]
        error = f"{type(raised).__name__}: {message}"[:200].replace("|", "/")
    sender.send((True, error, None))
    sys.stdout.flush()
    os._exit(0)  # some libraries wait for threads that do not end


def _kill(pid: int) -> None:
    """Kill a process, its descendants, and those of its group whose parents have ended."""
    for each in tree(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
