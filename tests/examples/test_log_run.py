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


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_a_run_in_mlflow_goes_on_with_the_data_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One MLflow run has the record of its data and every step once, though the dataset was extended in between."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    began_with = run_in_halves("log_run.py", tmp_path, "--tracker", "mlflow")

    from mlflow import MlflowClient  # here, because it takes seconds to import

    client = MlflowClient()
    (found,) = client.search_runs(["0"])
    assert found.data.params["data.fingerprint"] == began_with["fingerprint"]
    record = json.loads(Path(client.download_artifacts(found.info.run_id, "data.json")).read_text())
    assert record == began_with
    history = {name: client.get_metric_history(found.info.run_id, name) for name in found.data.metrics}
    assert sorted(history) == ["data.first_batch_s", "data.images_per_s", "data.waiting_share", "loss"]
    assert [metric.step for metric in history["loss"]] == list(range(1, 13))
    assert [metric.step for metric in history["data.images_per_s"]] == [2, 6, 12]
    assert all(metric.value > 0 for metric in history["data.images_per_s"])


def test_a_run_in_wandb_goes_on_with_the_data_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both halves are one W&B run, with the same data in its config and every step once, though the dataset grew."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    began_with = run_in_halves("log_run.py", tmp_path, "--tracker", "wandb")

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
