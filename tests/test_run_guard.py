"""The check itself: what happens to tests that hang, fail, or lose their process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.loading import until
from tests.helpers.processes import parents

PROJECT = Path(__file__).parents[1]
PREAMBLE = """
import os, signal, subprocess, sys, time
from pathlib import Path

def start_sleeper(**options):
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(1000)"],
                               stdout=subprocess.PIPE, **options)
    sleeper.stdout.readline()
    Path(__file__).with_name(f"sleeper-{sleeper.pid}").touch()
    return sleeper
"""


def run(folder: Path, tests: str, *options: str, **more: Any) -> tuple[int, str]:
    """Run tests with the plugin alone; return the exit code, and what pytest said."""
    folder.mkdir(exist_ok=True)
    (folder / "pytest.ini").write_text("[pytest]\ntimeout = 2\ntimeout_method = signal\n")
    (folder / "test_it.py").write_text(PREAMBLE + tests)
    (folder / "test_other.py").write_text("import time\ndef test_other():\n    time.sleep(0.1)\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.helpers.run_guard", "-p", "no:cacheprovider", *options]
    said = folder / "said"  # not a pipe, which what is left behind could hold open
    with said.open("wb") as output:
        ended = subprocess.run(
            [*command, str(folder)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            stdout=output,
            stderr=output,
            timeout=120,
            **more,
        )
    return ended.returncode, said.read_text()


def sleepers(folder: Path) -> set[int]:
    """Return the processes that the tests of a folder started and that still run."""
    started = {int(path.name.partition("-")[2]) for path in folder.glob("sleeper-*")}
    assert started
    return started & parents().keys()


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_a_failing_test_leaves_no_process(tmp_path: Path, options: tuple[str, ...]) -> None:
    """A test that fails or hangs fails, with all that it started, and the next one runs."""
    tests = """
import pytest

@pytest.mark.parametrize("body", [
    "start_sleeper(); assert False",
    "with start_sleeper(): assert False",  # whose end waits for the process
    "start_sleeper(start_new_session=True); assert False",
    "start_sleeper().communicate()",
    "with start_sleeper() as one: one.communicate()",
])
def test_bad(body):
    exec(body)

def test_next():
    pass
"""
    code, said = run(tmp_path / "tests", tests, *options)
    assert "5 failed, 2 passed" in said, said
    assert code == 1
    assert not sleepers(tmp_path / "tests")


def test_a_lost_process_ends_the_run(tmp_path: Path) -> None:
    """When a process of pytest ends, the run does, although an orphan of that holds its pipes; the test is named."""
    tests = """
def test_lost():
    if not os.fork():
        Path(__file__).with_name(f"sleeper-{os.getpid()}").touch()
        time.sleep(1000)
    time.sleep(0.2)
    os._exit(1)

def test_behind():
    pass
"""
    code, said = run(tmp_path / "tests", tests, "-n", "2", "--dist", "loadfile")
    assert code != 0
    assert "crashed while running 'test_it.py::test_lost'" in said, said
    assert until(lambda: not sleepers(tmp_path / "tests"))


def test_a_test_that_cannot_be_ended_ends_the_run(tmp_path: Path) -> None:
    """A test that swallows what ends it costs its process, and the run names it."""
    tests = """
def test_deaf():
    start_sleeper()
    end = time.monotonic() + 1000
    while time.monotonic() < end:
        try:
            time.sleep(1000)
        except BaseException:
            pass
"""
    code, said = run(tmp_path / "tests", tests, "-n", "2")
    assert code != 0
    assert "crashed while running 'test_it.py::test_deaf'" in said, said
    assert not sleepers(tmp_path / "tests")


def test_signals_reach_what_tests_start_in_the_background(tmp_path: Path) -> None:
    """Where the run ignores Ctrl-C, as in the background, what its tests start does not."""
    tests = """
def test_interrupted():
    sleeper = start_sleeper(stderr=subprocess.DEVNULL)
    sleeper.send_signal(signal.SIGINT)
    assert sleeper.wait() == -signal.SIGINT
"""
    code, said = run(tmp_path / "tests", tests, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert (code, "2 passed" in said) == (0, True), said
