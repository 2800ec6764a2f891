"""The tutorial as a reader runs it: every command in one shell, with a real bucket and ranks that are really killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.pages import PAGES, PROJECT, blocks, commands
from tests.helpers.s3_server import Server
from tests.helpers.warm_python import python

TORCHRUN = """#!/bin/sh
[ -e run.pt ] || exec {real} "$@"
exec {warm} -m torch.distributed.run "$@"
"""
"""The first launcher's ranks are killed as its children, so it has to be their parent; later ones start sooner."""


@pytest.mark.timeout(600)
def test_the_tutorial_runs_from_top_to_bottom(server: Server, prefix: str, tmp_path: Path) -> None:
    """Two ranks that were killed go on where their checkpoint was made, and the model recognises the pictures.

    The last command runs twice: the second time its checkpoint is that of the last batch, and nothing is left to train.
    """
    text = PAGES["docs/tutorial.md"].read_text(encoding="utf-8").replace("s3://bucket", server.url(prefix))
    (script,) = (block.code for block in blocks(text) if block.kind == "script")
    (tmp_path / "train.py").write_text(script)
    lines = [command for block in blocks(text) if block.kind == "console" for command, _ in commands(block.code)]
    real = Path(sys.executable).parent
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/torchrun").write_text(TORCHRUN.format(warm=python(), real=real / "torchrun"))
    (tmp_path / "bin/shardflow").write_text(f'#!/bin/sh\nexec {python()} -m shardflow "$@"\n')
    for program in (tmp_path / "bin").iterdir():
        program.chmod(0o700)
    programs = f"{tmp_path / 'bin'}:{real}:{os.environ['PATH']}"
    settings = {"PATH": programs, "PYTHONPATH": str(PROJECT), "XDG_CACHE_HOME": str(tmp_path / "user-cache")}
    settings["PYTHON_EXEC"] = python()  # of the ranks
    done = subprocess.run(
        ["bash", "-e"],
        input="\n".join([*lines, lines[-1]]),
        env={**os.environ, **server.environment(), **settings},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    resumed = [int(left) for left in re.findall(r"resumed in epoch \d with (\d+) of 20 batches to go\n", done.stdout)]
    assert len(resumed) == 2, done.stdout + done.stderr
    assert resumed[0] % 10 == 0
    assert resumed[1] == 0
    right = [int(pictures) for pictures in re.findall(r"(\d+) of 16 images right", done.stdout)]
    assert right[0] == right[1] >= 10
