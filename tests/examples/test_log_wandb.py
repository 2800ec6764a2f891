from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import shardflow
from examples.growing import grow, pack_some
from examples.scripts import run


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
    url = pack_some(tmp_path)
    options = ["--checkpoint", tmp_path / "run.pt", "--size", 16, "--workers", 1, "--batch-size", 4]
    first = run("log_wandb.py", url, *options, "--stop-after", 2)
    began_with = shardflow.open(url).fingerprint
    grow(tmp_path)
    began_at = (tmp_path / "run.pt").read_bytes()
    (tmp_path / "held.pt").hardlink_to(tmp_path / "run.pt")
    second = run("log_wandb.py", url, *options)
    assert (tmp_path / "held.pt").read_bytes() == began_at  # a checkpoint is replaced, and never overwritten
    lines = [line.partition(";")[0] for line in (first + second).splitlines()]
    assert lines == ["epoch 0: 8 samples", "epoch 0: 16 samples", "epoch 1: 24 samples"]

    halves = [logged(folder) for folder in sorted(tmp_path.glob("wandb/offline-run-*"))]
    runs = [record["run"] for half in halves for record in half if record["type"] == "run"]
    assert len(runs) == 2
    assert runs[0]["run_id"] == runs[1]["run_id"]
    decoder = shardflow.RandomResizedCropDecoder(16)
    loader = shardflow.Loader(url, batch_size=4, decoder=decoder, version=began_with, num_workers=1)
    assert [run["config"]["update"]["data"] for run in runs] == [loader.describe()] * 2
    assert began_with == loader.describe()["fingerprint"] != shardflow.open(url).fingerprint
    history = [record["history"]["item"] for half in halves for record in half if record["type"] == "history"]
    assert [row["_step"] for row in history] == list(range(1, 13))
    assert all(row["loss"] > 0 for row in history)
    fed = {row["_step"]: row["data.images_per_s"] for row in history if "data.images_per_s" in row}
    assert sorted(fed) == [2, 6, 12]
    assert all(rate > 0 for rate in fed.values())
