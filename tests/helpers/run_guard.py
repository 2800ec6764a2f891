"""A plugin of pytest: no test waits for ever, and none leaves a process behind.

- A test that fails ends with all processes that it started.
- A test that exceeds its time fails. If that does not end it, because it waits for a process that it started, those are
  killed; if it still goes on, because it hangs in native code, its process of pytest ends.
- A process of pytest that was lost ends the whole run, with the name of its test. pytest-xdist would wait for as long
  as an orphan of that process holds its pipe, and start another.
- In a new checkout the first process that runs tests collects them before the others do: it compiles all modules.
- Servers that all processes of a run share are started by the run's first process, when a test asks for one.
- Signals that the run ignores because it was started in the background are not ignored in what the tests start.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import shared_servers
from tests.helpers.processes import (
    OWNER,
    RUN,
    adopt_orphans,
    ancestors,
    bury,
    descendants,
    end,
    left_by,
    marked,
    numbers,
    runs,
)

_INTERVAL_S = 0.2
_GRACE_S = 2.0  # for a test that was told that its time is over; then what it started is killed
_LAST_S = 10.0  # then its process ends
_STOPPED = "stopped"  # a file in the run's folder
_COMPILING, _COMPILED = "compiling", "compiled"  # others
_COMPILED_S = 100.0  # for the first process to compile all modules
_OTHERS_S = 30.0  # for the tests that still run then
_LOST_S = 2.0  # for pytest-xdist to notice by itself that a process has ended

_DISPOSITIONS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
}
"""Of signals that tests send. Shells ignore the first two for their background jobs, and children inherit that.
SIGHUP stays as it is, so that `nohup` means what it says."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make the run's folder in its first process, and watch from each."""
    config.option.maxworkerrestart = "0"  # before pytest-xdist reads it
    _set_dispositions()
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(_TestWatch())
    else:
        distributed = bool(config.getoption("numprocesses", None))
        config.pluginmanager.register(_RunWatch(distributed))
        if not distributed:
            config.pluginmanager.register(_TestWatch())


def _set_dispositions() -> None:
    for number, handler in _DISPOSITIONS.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _DISPOSITIONS)


class _TestWatch:
    """Watches the tests that run in this process."""

    def __init__(self) -> None:
        os.environ[OWNER] = str(os.getpid())
        self._said = Path(os.environ[RUN], f"test-{os.getpid()}")  # there as long as this process runs tests
        self._said_fd = os.open(self._said, os.O_WRONLY | os.O_CREAT)  # closed when the process ends
        self._before: set[int] = set()
        self._end = float("inf")
        threading.Thread(target=self._watch, name="tests-watch", daemon=True).start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, Any, Any]:
        """Wait for the first process if there are modules to compile: each would take as long to do it as all do."""
        first, deadline = os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0", time.monotonic() + _COMPILED_S
        compiling, compiled = self._said.with_name(_COMPILING), self._said.with_name(_COMPILED)
        while compiling.exists() and not (first or compiled.exists() or time.monotonic() > deadline):
            time.sleep(_INTERVAL_S)
        try:
            return (yield)
        finally:
            compiled.touch()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Say which test runs, for when the run ends here; the last one when the run has lost another process."""
        self._say(item.nodeid)
        if self._said.with_name(_STOPPED).exists():
            item.session.shouldstop = "another process of pytest was lost"
        result = yield
        self._say("")
        return result

    def _say(self, test: str) -> None:
        # In place: a file that is truncated and closed for every test would be flushed to the disk each time.
        os.ftruncate(self._said_fd, 0)
        os.pwrite(self._said_fd, test.encode(), 0)

    def pytest_unconfigure(self) -> None:
        """Say that this process has not been lost."""
        self._said.unlink(missing_ok=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        """Kill what a failing test started before its fixtures are torn down."""
        self._before = numbers()
        try:
            return (yield)
        except pytest.skip.Exception:
            raise
        except BaseException:
            end(left_by(os.getpid(), self._before))
            raise

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self, settings: Any) -> None:
        """Note when the time of a test is over."""
        self._end = time.monotonic() + settings.timeout

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_cancel_timer(self) -> None:
        """Note that a test has ended in time."""
        self._end = float("inf")

    def _watch(self) -> None:
        while True:
            late_s = time.monotonic() - self._end
            if late_s > _GRACE_S:  # it waits for a process, in a `finally` for example
                end(left_by(os.getpid(), self._before))
            if late_s > _LAST_S:
                print(f"\n{self._said.read_text()} cannot be ended, so its process is", file=sys.__stderr__)
                faulthandler.dump_traceback(sys.__stderr__ or 2)
                os._exit(1)
            time.sleep(_INTERVAL_S)


class _RunWatch:
    """Watches the processes of pytest from the first one, which started them."""

    def __init__(self, distributed: bool) -> None:
        self._distributed = distributed
        self._outer = os.environ.get(RUN)
        self._run = self._outer or ""
        if not self._run or not _take(self._run):
            self._run = tempfile.mkdtemp(prefix="shardflow-tests-")
            _take(self._run)
        os.environ[RUN] = self._run
        self._lost: dict[int, float] = {}
        if distributed:
            adopt_orphans()
            if not any(Path(__file__).parents[1].glob("__pycache__/test_*.pyc")):
                Path(self._run, _COMPILING).touch()
        self._servers = shared_servers.Owner(Path(self._run))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="run-watch", daemon=True)
        self._thread.start()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        """End the run if a process was lost; pytest-xdist reports the test that it ran."""
        if error and error != "keyboard-interrupt":
            session = node.config.pluginmanager.getplugin("dsession")  # pytest-xdist's own, which looks at nothing else
            session.shouldstop = session.shouldstop or f"the process of pytest {node.gateway.id} was lost"
            Path(self._run, _STOPPED).touch()

    def pytest_unconfigure(self) -> None:
        """Stop the servers, and kill what is left of the run."""
        self._ended.set()
        self._thread.join()
        self._servers.close()
        end(marked(RUN, self._run) - set(ancestors(os.getpid())))
        if self._run != self._outer:
            shutil.rmtree(self._run, ignore_errors=True)
        os.environ.pop(RUN)
        if self._outer:
            os.environ[RUN] = self._outer

    def _watch(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            self._servers.serve()
            if self._distributed:
                self._mind_processes()

    def _mind_processes(self) -> None:
        """Kill the orphans of lost processes: they can hold pipes whose end pytest-xdist waits for."""
        processes, now = {int(said.name.partition("-")[2]) for said in Path(self._run).glob("test-*")}, time.monotonic()
        own = processes | self._servers.pids
        bury(own)
        self._lost = {pid: self._lost.get(pid, now) for pid in processes if not runs(pid)}
        lost_s = now - min(self._lost.values(), default=now)
        if lost_s > _LOST_S:
            end(descendants([os.getpid()]) - own - descendants(own))
        if lost_s > _OTHERS_S:
            end(processes)


def _take(run: str) -> bool:
    """Whether this is the first pytest with this run's folder, and not one that a test of it has started."""
    try:
        Path(run, "taken").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
