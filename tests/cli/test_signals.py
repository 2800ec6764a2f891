"""Ctrl-C and SIGTERM while the command is still importing modules: a real process, stopped at a known import."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command import COMMAND
from tests.helpers.making import make_dataset

AS_MODULE = [sys.executable, "-m", "shardflow"]


def stopped_at(module: str, number: signal.Signals, *command: str) -> tuple[int, list[str]]:
    """Start a command, send the signal when `module` has been imported; return exit code and what it then said."""
    timed = [command[0], "-X", "importtime", *command[1:]]  # Python reports each import at once
    with subprocess.Popen(timed, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.rstrip().endswith(f"| {module}") or line.rstrip().endswith(f" {module}"):
                process.send_signal(number)
                break
        # Where click runs already, it ends the terminal's line, after "^C".
        said = [line for line in process.stderr if line != "\n" and not line.startswith("import time:")]
        return process.wait(), said


@pytest.mark.parametrize("command", [COMMAND, AS_MODULE], ids=["command", "module"])
@pytest.mark.parametrize("module", ["click.core", "numpy.version", "shardflow.dataset.sample"])
def test_ctrl_c_during_the_imports_ends_at_once(command: list[str], module: str, tmp_path: Path) -> None:
    """While the command imports what it needs, Ctrl-C gives one line and exit code 130, never a traceback."""
    code, said = stopped_at(module, signal.SIGINT, *command, "info", str(tmp_path))
    assert (code, said) == (130, ["shardflow: interrupted\n"])


@pytest.mark.parametrize("module", ["click.core", "numpy.version", "torch.version"])
def test_sigterm_during_the_imports_ends_at_once(module: str, tmp_path: Path) -> None:
    """SIGTERM gives one line and exit code 143, also while a command imports torch."""
    url = make_dataset(tmp_path / "set", [8])  # one that is missing is an error before torch is imported
    code, said = stopped_at(module, signal.SIGTERM, *AS_MODULE, "bench", str(url))
    assert (code, said) == (143, ["shardflow: terminated\n"])
