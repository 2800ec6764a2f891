from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

import shardflow
from tests.helpers.making import flip, make_dataset

SAMPLES, BATCH, EPOCHS = 24, 4, 2


@pytest.fixture
def loader(tmp_path: Path) -> shardflow.Loader:
    """A loader that has run two epochs, in each of which one damaged sample was replaced."""
    root = make_dataset(tmp_path / "set", [SAMPLES])
    damaged = shardflow.open(root)["train"].reader.members(0, 5)[-1]
    flip(root / "train/000000.tar", damaged.offset + damaged.size // 2)
    options = {"batch_size": BATCH, "num_workers": 0, "max_errors": 1, "decoder": shardflow.decoders.CenterCrop(12)}
    loader = shardflow.Loader(root, **options)
    for _ in range(EPOCHS):
        assert len(list(loader)) == SAMPLES // BATCH
    return loader


def expected(loader: shardflow.Loader) -> dict[str, float]:
    """The counters, by their names."""
    stats = loader.stats(whole_run=True)
    assert stats.read_bytes > 0
    return {
        "batches": EPOCHS * SAMPLES // BATCH,
        "samples": EPOCHS * SAMPLES,
        "waiting": stats.waiting_s,
        "running": stats.total_s,
        "read": stats.read_bytes,
        "network": 0,
        "replaced": EPOCHS,
    }


def test_prometheus_scrapes_the_whole_run(loader: shardflow.Loader) -> None:
    """A scrape has counters over all epochs and quantiles of the wait, by rank, and no thread was started for it."""
    threads, registry = threading.active_count(), CollectorRegistry()
    shardflow.metrics.PrometheusExporter(loader, registry, rank=3)
    suffixes = {"waiting": "_seconds", "running": "_seconds", "read": "_bytes", "network": "_bytes"}
    suffixes["replaced"] = "_samples"
    for name, value in expected(loader).items():
        found = registry.get_sample_value(f"shardflow_{name}{suffixes.get(name, '')}_total", {"rank": "3"})
        assert found == value, name
    waits = [
        registry.get_sample_value("shardflow_wait_seconds", {"rank": "3", "quantile": quantile})
        for quantile in ("0.5", "0.95", "0.99")
    ]
    assert 0 < waits[0] <= waits[1] <= waits[2]
    assert b"# TYPE shardflow_samples_total counter" in generate_latest(registry)
    assert threading.active_count() == threads


def test_opentelemetry_observes_the_same(loader: shardflow.Loader) -> None:
    """A reader of OpenTelemetry finds the same counters, with UCUM units and the rank."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    shardflow.metrics.OpenTelemetryExporter(loader, provider.get_meter("shardflow"))
    data: Any = reader.get_metrics_data()
    (scope,) = data.resource_metrics[0].scope_metrics
    points = {metric.name.removeprefix("shardflow."): metric for metric in scope.metrics}
    for name, value in expected(loader).items():
        (point,) = points[name].data.data_points
        assert (point.value, dict(point.attributes)) == (value, {"rank": 0}), name
    assert points["read"].unit == "By"
    assert [point.attributes["quantile"] for point in points["wait"].data.data_points] == [0.5, 0.95, 0.99]
    provider.shutdown()
