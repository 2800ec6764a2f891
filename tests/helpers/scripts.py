"""Running the examples as a reader would, from the command line."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from tests.helpers.processes import left_by, numbers
from tests.helpers.warm_python import MORE, python

FOLDER = Path(__file__).parents[2] / "examples"
DEADLINE_S = 100
LIBRARIES = {"train_lightning.py": "lightning"}
"""Example → what takes each of its processes seconds to import."""


def run(name: str, *arguments: object, ranks: int | None = None) -> str:
    """Run an example, under torchrun if ranks are given, and return what it printed.

    One that hangs is ended with all its processes, and each of them leaves the stacks of its threads in the message.
    """
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
    executable, before = python(), numbers()
    example = subprocess.Popen(
        [executable, *launcher, str(FOLDER / name), *map(str, arguments)],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONFAULTHANDLER": "1",
            "PYTHON_EXEC": executable,  # torchrun's
            MORE: LIBRARIES.get(name, ""),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        stdout, stderr = example.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        for process in left_by(os.getpid(), before):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGABRT)
        stdout, stderr = example.communicate()
        raise AssertionError(f"{name} hung:\n{stdout}\n{stderr}") from None
    assert example.returncode == 0, stderr
    return stdout
