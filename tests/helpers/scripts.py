"""Running the examples as a reader would, from the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples"
DEADLINE_S = 100


def run(name: str, *arguments: object, ranks: int | None = None) -> str:
    """Run an example, under torchrun if ranks are given, and return what it printed.

    One that hangs is ended with all its processes, and each of them leaves the stacks of its threads in the message.
    """
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
    example = subprocess.Popen(
        [sys.executable, *launcher, str(FOLDER / name), *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = example.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        os.killpg(example.pid, signal.SIGABRT)
        stdout, stderr = example.communicate()
        raise AssertionError(f"{name} hung:\n{stdout}\n{stderr}") from None
    assert example.returncode == 0, stderr
    return stdout
