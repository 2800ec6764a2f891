from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.helpers.command import COMMAND
from tests.helpers.making import make_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two samples."""
    folder = tmp_path_factory.mktemp("colours") / "set"
    make_dataset(folder, [2])
    return folder


def _shown(*arguments: object, **environment: str) -> str:
    """Return what a command shows in a terminal."""
    ours, theirs = pty.openpty()
    variables = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    subprocess.run(
        [*COMMAND, *map(str, arguments)], stdout=theirs, stderr=theirs, env={**variables, **environment}, check=False
    )
    os.close(theirs)
    with os.fdopen(ours, "rb") as terminal:
        shown = b""
        while chunk := _read(terminal.fileno()):
            shown += chunk
    return shown.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # a terminal that no process has open any more
        return b""


def test_colours_are_for_terminals(dataset: Path) -> None:
    """Verdicts and errors have a colour in a terminal, not with NO_COLOR, and not in a pipe."""
    assert "\x1b[32mno damage:" in _shown("verify", dataset)
    assert "\x1b[31m\x1b[1mshardflow:" in _shown("verify", dataset / "none")
    for arguments in (("verify", dataset), ("verify", dataset / "none")):
        assert "[3" not in _shown(*arguments, NO_COLOR="1")
    piped = subprocess.run([*COMMAND, "verify", str(dataset)], capture_output=True, check=True).stdout
    assert b"\x1b" not in piped
