from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.growing import run_in_halves


def logged(folder: Path) -> list[dict[str, Any]]:
    """What an offline run wrote, as W&B's own command reads it."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(folder)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout
    return [json.loads(line) for line in printed.splitlines()]


def test_an_interrupted_run_goes_on_with_the_data_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both halves are one W&B run, with the same data in its config and every step once, though the dataset grew."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    began_with = run_in_halves("log_wandb.py", tmp_path)

    halves = [logged(folder) for folder in sorted(tmp_path.glob("wandb/offline-run-*"))]
    runs = [record["run"] for half in halves for record in half if record["type"] == "run"]
    assert len(runs) == 2
    assert runs[0]["run_id"] == runs[1]["run_id"]
    assert [run["config"]["update"]["data"] for run in runs] == [began_with] * 2
    history = [record["history"]["item"] for half in halves for record in half if record["type"] == "history"]
    assert [row["_step"] for row in history] == list(range(1, 13))
    assert all(row["loss"] > 0 for row in history)
    fed = {row["_step"]: row["data.images_per_s"] for row in history if "data.images_per_s" in row}
    assert sorted(fed) == [2, 6, 12]
    assert all(rate > 0 for rate in fed.values())
