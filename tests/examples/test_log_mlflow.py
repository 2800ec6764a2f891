from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.growing import run_in_halves

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's own


def test_an_interrupted_run_goes_on_with_the_data_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One MLflow run has the record of its data and every step once, though the dataset was extended in between."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    began_with = run_in_halves("log_mlflow.py", tmp_path)

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
