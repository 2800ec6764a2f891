"""Metrics: the statistics of a training loop for Prometheus and OpenTelemetry.

Values are read on demand, by a scrape or an OpenTelemetry reader; no thread is started and no port opened. Counters
count from the start of the run, over all epochs.

Sources: https://prometheus.io/docs/practices/naming/ and
https://opentelemetry.io/docs/specs/semconv/general/metrics/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from shardflow.errors import ConfigError
from shardflow.loading.distributed import resolve_group
from shardflow.loading.stats import Stats


class _Measured(Protocol):
    def stats(self, *, whole_run: bool = False) -> Stats: ...


class _Counter(NamedTuple):
    """A counter: its field of `Stats`, its name, unit for OpenTelemetry (UCUM), and suffix in Prometheus."""

    field: str
    name: str
    unit: str
    suffix: str
    about: str


_COUNTERS = (
    _Counter("batches", "batches", "{batch}", "", "Batches handed out"),
    _Counter("samples", "samples", "{sample}", "", "Samples handed out"),
    _Counter(
        "waiting_s", "waiting", "s", "_seconds", "Time that training waited, without the first batch of each epoch"
    ),
    _Counter("total_s", "running", "s", "_seconds", "Time since the first batch, by epoch"),
    _Counter("read_bytes", "read", "By", "_bytes", "Bytes of samples read, cached or local"),
    _Counter("network_bytes", "network", "By", "_bytes", "Bytes of shards downloaded"),
    _Counter("replaced", "replaced", "{sample}", "_samples", "Damaged samples that others replaced"),
)
_QUANTILES = {"0.5": "wait_p50_s", "0.95": "wait_p95_s", "0.99": "wait_p99_s"}
_ABOUT_WAITS = "Quantiles of the wait for a batch, over the last 10,000 batches"


class PrometheusExporter:
    """A collector of prometheus_client for a loader, a mix or a device prefetcher, registered on creation.

    >>> exporter = shardflow.metrics.PrometheusExporter(shardflow.Loader("photos256", batch_size=256))

    Args:
        loader: The iterable of the training loop: a loader or a prefetcher.
        registry: A `CollectorRegistry`; by default the global one of prometheus_client.
        rank: The label `rank`; by default the rank of this process.

    Raises:
        ConfigError: prometheus_client is not installed.
    """

    def __init__(self, loader: _Measured, registry: Any = None, *, rank: int | None = None) -> None:
        try:
            from prometheus_client import REGISTRY
        except ImportError:
            raise ConfigError("metrics for Prometheus need pip install 'shardflow[prometheus]'") from None
        self._loader, self._rank = loader, str(_rank(rank))
        (REGISTRY if registry is None else registry).register(self)

    def describe(self) -> Iterable[Any]:
        """Return the metrics without values."""
        return [family for family, _ in self._families()]

    def collect(self) -> Iterator[Any]:
        """Yield the metrics, for a scrape."""
        stats = self._loader.stats(whole_run=True)
        for family, values in self._families():
            for labels, field in values:
                family.add_metric([self._rank, *labels], getattr(stats, field))
            yield family

    def _families(self) -> list[tuple[Any, list[tuple[list[str], str]]]]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: list[tuple[Any, list[tuple[list[str], str]]]] = []
        for each in _COUNTERS:
            name = f"shardflow_{each.name}{each.suffix}"
            families.append((CounterMetricFamily(name, each.about, labels=["rank"]), [([], each.field)]))
        waits = GaugeMetricFamily("shardflow_wait_seconds", _ABOUT_WAITS, labels=["rank", "quantile"])
        return [*families, (waits, [([quantile], field) for quantile, field in _QUANTILES.items()])]


class OpenTelemetryExporter:
    """Observable instruments of OpenTelemetry for a loader, a mix or a device prefetcher.

    >>> exporter = shardflow.metrics.OpenTelemetryExporter(shardflow.Loader("photos256", batch_size=256))

    Args:
        loader: The iterable of the training loop: a loader or a prefetcher.
        meter: A `Meter`; by default `opentelemetry.metrics.get_meter("shardflow")` of the global provider.
        rank: The attribute `rank`; by default the rank of this process.

    Raises:
        ConfigError: opentelemetry-api is not installed.
    """

    def __init__(self, loader: _Measured, meter: Any = None, *, rank: int | None = None) -> None:
        try:
            from opentelemetry import metrics
        except ImportError:
            raise ConfigError("metrics for OpenTelemetry need pip install 'shardflow[opentelemetry]'") from None
        meter = metrics.get_meter("shardflow") if meter is None else meter
        attributes = {"rank": _rank(rank)}

        def read(field: str) -> Callable[[Any], Iterator[Any]]:
            def observe(_: Any) -> Iterator[Any]:
                yield metrics.Observation(getattr(loader.stats(whole_run=True), field), attributes)

            return observe

        def waits(_: Any) -> Iterator[Any]:
            stats = loader.stats(whole_run=True)
            for quantile, field in _QUANTILES.items():
                yield metrics.Observation(getattr(stats, field), {**attributes, "quantile": float(quantile)})

        for each in _COUNTERS:
            meter.create_observable_counter(
                f"shardflow.{each.name}", callbacks=[read(each.field)], unit=each.unit, description=each.about
            )
        meter.create_observable_gauge("shardflow.wait", callbacks=[waits], unit="s", description=_ABOUT_WAITS)


def _rank(rank: int | None) -> int:
    return resolve_group(None)[0] if rank is None else rank
