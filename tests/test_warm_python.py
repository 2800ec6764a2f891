from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.folders import write_tree
from tests.helpers.processes import numbers
from tests.helpers.warm_python import python

PROJECT = Path(__file__).parents[1]
SAY_ALL = """
import json, os, sys
own = [name for name in sys.modules if name.startswith("tests")]
print(json.dumps([sys.argv, sys.path[0], os.getcwd(), os.environ["SAID"], sys.stdin.read(), __name__, own]))
print("to the other", file=sys.stderr)
"""
SAY_PID = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"


def run(executable: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run an executable with these arguments."""
    command = [executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


@pytest.mark.parametrize("kind", ["-c", "-m", "script", "-u"])
def test_it_is_a_python(kind: str, tmp_path: Path) -> None:
    """Arguments, paths, directory, environment and streams are those that a plain `python` has."""
    (tmp_path / "say.py").write_text(SAY_ALL)
    how = {"-c": ["-c", SAY_ALL], "-m": ["-m", "say"], "script": ["say.py"], "-u": ["-u", "say.py"]}[kind]
    where: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "SAID": "é"}, "input": "read"}
    expected, found = (run(executable, *how, "a", "--b", **where) for executable in (sys.executable, python()))
    assert (found.returncode, found.stderr) == (expected.returncode, expected.stderr) == (0, "to the other\n")
    assert json.loads(found.stdout) == json.loads(expected.stdout)


def test_the_project_is_the_one_of_its_path(tmp_path: Path) -> None:
    """A process has what the server imported of the project, unless another copy of the project is on its path."""
    code = "import sys, shardflow.errors as errors; print(errors.__file__, 'shardflow.loading.loader' in sys.modules)"
    given = run(python(), "-c", code, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(PROJECT)})
    assert given.stdout == f"{PROJECT}/shardflow/errors.py True\n"
    write_tree(tmp_path / "shardflow", {"__init__.py": b"", "errors.py": b""})
    for kind in (["-c", code], [tmp_path / "say.py"], ["-m", "say"]):
        (tmp_path / "say.py").write_text(code)
        assert run(python(), *kind, cwd=tmp_path).stdout == f"{tmp_path}/shardflow/errors.py False\n"


@pytest.mark.parametrize(
    "code",
    [
        "raise SystemExit(7)",
        "raise SystemExit('a message')",
        "import atexit; atexit.register(print, 'at the end')",
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.kill(os.getpid(), 6)",
    ],
)
def test_it_ends_as_a_python(code: str) -> None:
    """Exit codes, messages and deadly signals arrive."""
    expected, found = (run(executable, "-c", code) for executable in (sys.executable, python()))
    assert (found.returncode, found.stdout, found.stderr) == (expected.returncode, expected.stdout, expected.stderr)


def test_an_error_is_printed() -> None:
    """An error that nothing catches is on the standard error, and the exit code is 1."""
    found = run(python(), "-c", "1 / 0")
    assert found.returncode == 1
    assert found.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signals_arrive(number: signal.Signals) -> None:
    """A signal to the process that was started ends the fork, SIGKILL included."""
    with subprocess.Popen(
        [python(), "-c", SAY_PID], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as asker:
        assert asker.stdout is not None
        pid = int(asker.stdout.readline())
        asker.send_signal(number)
        asker.communicate()
    assert asker.returncode in (-number, 1)  # 1: the fork printed a KeyboardInterrupt
    deadline = time.monotonic() + 20
    while pid in numbers():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_a_start_alone_can_give_is_given() -> None:
    """With a seed for hashes, or options, it is a plain `python`."""
    environment = {**os.environ, "PYTHONHASHSEED": "3"}
    expected, found = (run(one, "-c", "print(hash('a'))", env=environment) for one in (sys.executable, python()))
    assert found.stdout == expected.stdout
    assert run(python(), "-X", "utf8=1", "-c", "import sys; print(sys.flags.utf8_mode)").stdout == "1\n"


def test_descriptors_are_inherited_by_their_numbers() -> None:
    """A descriptor that a process is given is open there under its number, and no other is."""
    reader, writer = os.pipe()
    os.write(writer, b"passed on" * 2)
    os.close(writer)
    number = fcntl.fcntl(reader, fcntl.F_DUPFD, 50)  # a free one: 50 itself may be somebody's
    code = (
        f"import os; print(os.read({number}, 9),"
        " [each for each in range(3, 999) if os.path.exists(f'/proc/self/fd/{each}')])"
    )
    for executable in (sys.executable, python()):
        found = run(executable, "-c", code, pass_fds=(number,))
        assert (found.returncode, found.stdout) == (0, f"b'passed on' [{number}]\n"), found.stderr
    os.close(number)
    os.close(reader)
