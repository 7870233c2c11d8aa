"""A real SDK that keeps what it is given, for nodes in one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from softmutex_adapters.observers.otel import OpenTelemetry


class Kept:
    """Spans and metrics of everybody who has `observer` among the observers."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.observer = OpenTelemetry(
            tracer_provider=self.tracer_provider, meter_provider=self.meter_provider, **options
        )
        self.application = self.tracer_provider.get_tracer("application")

    def spans(self, name: str = "softmutex.") -> list[ReadableSpan]:
        """Finished ones, by the time at which they began."""
        found = [span for span in self._exporter.get_finished_spans() if span.name.startswith(name)]
        return sorted(found, key=lambda span: span.start_time or 0)

    def points(self) -> dict[str, list[Any]]:
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        metrics = [m for resource in data.resource_metrics for scope in resource.scope_metrics for m in scope.metrics]
        return {metric.name: list(metric.data.data_points) for metric in metrics}

    def sum(self, metric: str, /, **labels: str) -> float:
        """Of all points that have these labels; counts, where the metric is a histogram."""
        wanted = {f"softmutex.{key}": value for key, value in labels.items()}
        return sum(
            point.value if hasattr(point, "value") else point.count
            for point in self.points().get(metric, [])
            if wanted.items() <= dict(point.attributes).items()
        )

    def close(self) -> None:
        self.tracer_provider.shutdown()
        self.meter_provider.shutdown()


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    return dict(span.attributes or {})


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def links_of(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]
