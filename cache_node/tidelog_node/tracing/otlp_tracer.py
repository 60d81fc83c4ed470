"""Traces by OpenTelemetry's SDK, which the extra ``tracing`` brings, sent by OTLP over HTTP.

A thread of the SDK sends ended spans. Its queue is bounded, and spans beyond it are lost: the
node never waits for the receiver. Nothing of this is imported unless ``tracing.otlp.endpoint`` is
set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Thread
from typing import TYPE_CHECKING

from tidelog_core.config import NodeConfig
from tidelog_core.errors import InvalidConfig
from tidelog_core.setting_values.urls import parse_otlp_endpoint, parse_otlp_headers

from tidelog_node.tracing.tracer import Attributes, Span

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

PATH = "/v1/traces"
QUEUE_SPANS_MAX = 2_048
REQUEST_SPANS_MAX = 512
REQUEST_SECONDS_MAX = 5.0
DELAY_MS = 1_000  # between two requests, unless there is enough for one
LAST_SECONDS_MAX = 2.0  # for the spans that are left when the node stops


class OtlpTracer:
    """The tracer of a node; ``close`` sends the last spans."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("tidelog")

    def span(
        self, name: str, attributes: Attributes, *, carrier: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Span]:
        """Begin a span, within the current one or the one that the carrier names."""
        return self._span(name, attributes, carrier)

    async def close(self) -> None:
        """Send the spans that are left, if that is possible immediately."""
        loop, is_done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # The loop has not waited.
                loop.call_soon_threadsafe(is_done.set)

        # A daemon: the process does not wait for a receiver that is away.
        Thread(target=shut_down, name="traces-end", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS_MAX):
                await is_done.wait()

    @contextmanager
    def _span(
        self, name: str, attributes: Attributes, carrier: Mapping[str, str] | None
    ) -> Iterator[Span]:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = None
        if carrier is not None:
            context = TraceContextTextMapPropagator().extract(carrier)
        with self._tracer.start_as_current_span(name, context, attributes=attributes) as begun:
            yield _ExportedSpan(begun)


class _ExportedSpan:
    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def note_errors(self, names: str) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("tidelog.errors", names)
        self._span.set_status(StatusCode.ERROR, names)


def open_tracer(config: NodeConfig, broker_id: int, *, version: str) -> OtlpTracer | None:
    """Return the tracer, ``None`` if traces have nowhere to go.

    Raises ``InvalidConfig`` if the libraries are missing.
    """
    endpoint = parse_otlp_endpoint(config.tracing_otlp_endpoint)
    if not endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ImportError:
        problem = "tracing.otlp.endpoint needs libraries: pip install 'tidelog[tracing]'"
        raise InvalidConfig([problem]) from None
    resource = Resource.create(
        {
            "service.name": "tidelog",
            "service.version": version,
            "service.instance.id": str(broker_id),
        }
    )
    sampler = ParentBased(TraceIdRatioBased(config.tracing_sampling_ratio))
    provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(
        endpoint=endpoint + PATH,
        headers=dict(parse_otlp_headers(config.tracing_otlp_headers)),
        timeout=REQUEST_SECONDS_MAX,
    )
    processor = BatchSpanProcessor(
        exporter,
        max_queue_size=QUEUE_SPANS_MAX,
        schedule_delay_millis=DELAY_MS,
        max_export_batch_size=REQUEST_SPANS_MAX,
    )
    provider.add_span_processor(processor)
    return OtlpTracer(provider)
