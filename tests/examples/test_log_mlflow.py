from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardflow
from examples.growing import grow, pack_some
from examples.scripts import run

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's own


def test_an_interrupted_run_goes_on_with_the_data_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One MLflow run has the record of its data and every step once, though the dataset was extended in between."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    url = pack_some(tmp_path)
    options = ["--checkpoint", tmp_path / "run.pt", "--size", 16, "--workers", 1, "--batch-size", 4]
    first = run("log_mlflow.py", url, *options, "--stop-after", 2)
    began_with = shardflow.open(url).fingerprint
    grow(tmp_path)
    began_at = (tmp_path / "run.pt").read_bytes()
    (tmp_path / "held.pt").hardlink_to(tmp_path / "run.pt")
    second = run("log_mlflow.py", url, *options)
    assert (tmp_path / "held.pt").read_bytes() == began_at  # a checkpoint is replaced, and never overwritten
    lines = [line.partition(";")[0] for line in (first + second).splitlines()]
    assert lines == ["epoch 0: 8 samples", "epoch 0: 16 samples", "epoch 1: 24 samples"]

    from mlflow import MlflowClient  # here, because it takes seconds to import

    client = MlflowClient()
    (found,) = client.search_runs(["0"])
    assert found.data.params["data.fingerprint"] == began_with != shardflow.open(url).fingerprint
    record = json.loads(Path(client.download_artifacts(found.info.run_id, "data.json")).read_text())
    decoder = shardflow.RandomResizedCropDecoder(16)
    loader = shardflow.Loader(url, batch_size=4, decoder=decoder, version=began_with, num_workers=1)
    assert record == loader.describe()
    history = {name: client.get_metric_history(found.info.run_id, name) for name in found.data.metrics}
    assert sorted(history) == ["data.first_batch_s", "data.images_per_s", "data.waiting_share", "loss"]
    assert [metric.step for metric in history["loss"]] == list(range(1, 13))
    assert [metric.step for metric in history["data.images_per_s"]] == [2, 6, 12]
    assert all(metric.value > 0 for metric in history["data.images_per_s"])
