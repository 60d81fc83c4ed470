"""GetTelemetrySubscriptions and PushTelemetry: clients push their own metrics (KIP-714).

They are only served if the metrics have somewhere to go. Everyone who may connect may push.
Decompression is bounded and done by one thread, one push after the other and with pauses, so that
pushes take little of the node; a push is answered before it is forwarded. Source: Kafka's
``ClientMetricsManager``, its codes and the order of its checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID, uuid4

from kio.schema.get_telemetry_subscriptions.v0 import request as get_request
from kio.schema.get_telemetry_subscriptions.v0 import response as get_response
from kio.schema.push_telemetry.v0 import request as push_request
from kio.schema.push_telemetry.v0 import response as push_response
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.metadata.client_metrics import ClientMetricsOverrides
from tidelog_core.records.codecs import CompressionType, DecompressedTooLarge, decompress

from tidelog_node.client_metrics.forwarder import Forwarder
from tidelog_node.client_metrics.instances import ClientInstance, ClientInstances
from tidelog_node.client_metrics.resource_attributes import (
    MetricsTooLarge,
    with_resource_attributes,
)
from tidelog_node.client_metrics.subscriptions import Subscriptions, client_attributes
from tidelog_node.fairness.request_turns import LargeRequests
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.requests.session import Session
from tidelog_node.wire.messages import build

DECOMPRESSED_RATIO_MAX = 8  # to ``telemetry.max.bytes``, also with the client's attributes
# The first one is what clients prefer.
_ACCEPTED = (
    CompressionType.ZSTD,
    CompressionType.LZ4,
    CompressionType.GZIP,
    CompressionType.SNAPPY,
)
_CODECS = frozenset(map(int, CompressionType))
_RESERVED = frozenset({UUID(int=0), UUID(int=1)})  # Kafka's
_PRINCIPAL, _BROKER_ID = "principal", "broker_id"


class ClientMetricsHandlers:
    """Answers clients, and passes their metrics to the forwarder."""

    def __init__(
        self, node: NodeContext, *, instances: ClientInstances, forwarder: Forwarder
    ) -> None:
        self._node = node
        self._instances = instances
        self._forwarder = forwarder
        self._bytes_max = node.static_config.telemetry_max_bytes
        self._overrides: Mapping[str, ClientMetricsOverrides] = {}
        self._subscriptions = Subscriptions({})
        # Its pauses bound the time of pushes, however many clients there are or pretend to be.
        self._lane = LargeRequests()

    def close(self) -> None:
        """Stop the thread."""
        self._lane.close()

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, 0, self.get_subscriptions),
            Route(ApiKey.PUSH_TELEMETRY, 0, 0, self.push),
        ]

    async def get_subscriptions(
        self, request: get_request.GetTelemetrySubscriptionsRequest, context: RequestContext
    ) -> get_response.GetTelemetrySubscriptionsResponse:
        """Answer the metrics that the client shall push, and how often. A new client gets an id."""
        instance_id = request.client_instance_id or self._new_id()
        instance = self._instance(instance_id, context.session)
        if not instance.may_ask(self._now_ms()):
            return build(
                get_response.GetTelemetrySubscriptionsResponse,
                error_code=ErrorCode.throttling_quota_exceeded,
            )
        instance.last_error = ErrorCode.none
        return build(
            get_response.GetTelemetrySubscriptionsResponse,
            error_code=ErrorCode.none,
            client_instance_id=instance_id,
            subscription_id=instance.subscription_id,
            accepted_compression_types=_ACCEPTED,
            push_interval=timedelta(milliseconds=instance.wanted.interval_ms),
            telemetry_max_bytes=self._bytes_max,
            delta_temporality=True,
            requested_metrics=instance.wanted.metrics,
        )

    async def push(
        self, request: push_request.PushTelemetryRequest, context: RequestContext
    ) -> push_response.PushTelemetryResponse:
        """Take the metrics of a client."""
        instance_id = request.client_instance_id
        if instance_id is None or instance_id in _RESERVED:
            return _pushed(ErrorCode.invalid_request)
        instance = self._instance(instance_id, context.session)
        error_code = self._refusal(request, instance)
        instance.is_terminating = request.terminating
        if error_code is ErrorCode.none and request.metrics:
            error_code = await self._take(request, instance_id, context.session)
        instance.last_error = error_code
        return _pushed(error_code)

    def _refusal(
        self, request: push_request.PushTelemetryRequest, instance: ClientInstance
    ) -> ErrorCode:
        if instance.is_terminating:
            return ErrorCode.invalid_request
        if not instance.may_push(self._now_ms()) and not request.terminating:
            return ErrorCode.throttling_quota_exceeded
        if request.subscription_id != instance.subscription_id:
            return ErrorCode.unknown_subscription_id
        if request.compression_type not in _CODECS:
            return ErrorCode.unsupported_compression_type
        if len(request.metrics) > self._bytes_max:
            return ErrorCode.telemetry_too_large
        return ErrorCode.none

    async def _take(
        self, request: push_request.PushTelemetryRequest, instance_id: UUID, session: Session
    ) -> ErrorCode:
        attributes = client_attributes(session, instance_id)
        attributes[_PRINCIPAL] = str(session.principal)
        attributes[_BROKER_ID] = str(self._node.broker_id)
        try:
            async with self._lane.turn(session.client_host) as turn:
                prepared = await turn.work(
                    _prepared,
                    CompressionType(request.compression_type),
                    request.metrics,
                    self._bytes_max * DECOMPRESSED_RATIO_MAX,
                    attributes,
                )
            self._forwarder.offer(prepared)
        except (DecompressedTooLarge, MetricsTooLarge):
            return ErrorCode.telemetry_too_large
        except TidelogError:
            return ErrorCode.invalid_record
        return ErrorCode.none

    def _instance(self, instance_id: UUID, session: Session) -> ClientInstance:
        overrides = self._node.view.image.client_metrics
        if overrides is not self._overrides:
            self._overrides = overrides
            self._subscriptions = Subscriptions(overrides)
        return self._instances.of(instance_id, session, self._subscriptions)

    def _new_id(self) -> UUID:
        instance_id = uuid4()
        while instance_id in self._instances:
            instance_id = uuid4()
        return instance_id

    def _now_ms(self) -> float:
        return self._instances.now_ms()


def _prepared(
    codec: CompressionType, metrics: bytes, size_bytes_max: int, attributes: Mapping[str, str]
) -> bytes:
    """Return the part of a push to forward. For the thread.

    Raises ``CorruptRecordBatch``, ``MalformedMetrics`` and ``MetricsTooLarge``.
    """
    data = decompress(codec, metrics, size_bytes_max=size_bytes_max)
    return with_resource_attributes(data, attributes, size_bytes_max=size_bytes_max)


def _pushed(error_code: ErrorCode) -> push_response.PushTelemetryResponse:
    return build(push_response.PushTelemetryResponse, error_code=error_code)
