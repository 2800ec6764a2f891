"""Metrics: the statistics of a loader, for Prometheus and OpenTelemetry."""

from typing import TYPE_CHECKING

from ._imports import lazy_names

if TYPE_CHECKING:
    from .diagnostics.metrics import OpenTelemetryExporter as OpenTelemetryExporter
    from .diagnostics.metrics import PrometheusExporter as PrometheusExporter
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
