"""A receiver of OpenTelemetry's protocol over HTTP, with OpenTelemetry's own messages."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Metric,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.http_answers import Asked, HttpAnswers

METRICS_PATH, TRACES_PATH = "/v1/metrics", "/v1/traces"


def metrics_data(*names: str) -> bytes:
    """Return metrics with these names, as a client pushes them."""
    scope = ScopeMetrics(metrics=[Metric(name=name) for name in names])
    data = MetricsData(resource_metrics=[ResourceMetrics(scope_metrics=[scope])])
    return data.SerializeToString()


class Received(NamedTuple):
    """One metric, with the attributes of the resource that it is of."""

    name: str
    resource: dict[str, str]


class OtlpReceiver:
    """Takes what is sent to it. ``status`` is what it answers."""

    def __init__(self) -> None:
        self.status = 200
        self._answers = HttpAnswers(lambda _: (self.status, b""))

    @property
    def url(self) -> str:
        """The endpoint, as exporters are told it."""
        return self._answers.url

    @property
    def asked(self) -> list[Asked]:
        """Every request so far."""
        return self._answers.asked

    def metrics(self) -> list[Received]:
        """Return every metric so far. Raises if a request is none of OpenTelemetry's."""
        return [one for asked in list(self.asked) for one in _metrics_of(asked)]

    def metric_names(self, **resource: str) -> set[str]:
        """Return the names of the metrics of resources that have these attributes."""
        return {one.name for one in self.metrics() if resource.items() <= one.resource.items()}

    def spans(self) -> list[Span]:
        """Return every span so far. Raises if a request is none of OpenTelemetry's."""
        return [
            span
            for asked in list(self.asked)
            if asked.path == TRACES_PATH
            for of_resource in ExportTraceServiceRequest.FromString(asked.data).resource_spans
            for scope in of_resource.scope_spans
            for span in scope.spans
        ]

    def __enter__(self) -> Self:
        """Begin to answer."""
        self._answers.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End."""
        self._answers.__exit__(exc_type, exc, traceback)


def _metrics_of(asked: Asked) -> Iterator[Received]:
    assert asked.path == METRICS_PATH
    assert asked.headers["content-type"] == "application/x-protobuf"
    for of_resource in ExportMetricsServiceRequest.FromString(asked.data).resource_metrics:
        attributes = {one.key: one.value.string_value for one in of_resource.resource.attributes}
        for scope in of_resource.scope_metrics:
            for metric in scope.metrics:
                yield Received(metric.name, attributes)
