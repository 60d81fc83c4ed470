"""The answers of Produce: results of partitions, and their bytes."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog_core.errors import (
    CorruptRecordBatch,
    ErrorCode,
    InvalidProducerIdMapping,
    InvalidRecord,
    InvalidTopic,
    MessageTooLarge,
    RecordListTooLarge,
    StorageError,
    TidelogError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)

from tidelog_node.answers import Reply
from tidelog_node.counters import NodeCounters
from tidelog_node.handlers.produce.batch import CodecTooNew, NotOneBatch
from tidelog_node.handlers.produce.gateway_handoff import GatewayHandoff
from tidelog_node.handlers.produce.pending_answers import PendingAnswer, Topics
from tidelog_node.inspection.messages import RecordsRefused
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.requests.routes import RequestContext
from tidelog_node.throttling.throttle import Throttle
from tidelog_node.transactions.produce_gate import NotVerified
from tidelog_node.wire.primitives import cut_error_text
from tidelog_node.wire.produce import (
    API_KEY,
    TOPIC_ID_FROM,
    Endpoint,
    ProduceRequest,
    ProduceResult,
    encode_produce,
)

LEADER_FROM = 10
# The answer to these errors has no log start offset. Source: ``ReplicaManager``.
_WITHOUT_LOG_START = (
    NotOneBatch,
    CodecTooNew,
    CorruptRecordBatch,
    InvalidProducerIdMapping,
    InvalidTopic,
    MessageTooLarge,
    NotVerified,
    RecordListTooLarge,
    StorageError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)


class ProduceAnswers:
    """Encodes answers. For the node's event loop only."""

    def __init__(
        self,
        replicas: ReplicaManager,
        gateway_handoff: GatewayHandoff,
        *,
        counters: NodeCounters,
        throttle: Throttle | None,
    ) -> None:
        self._replicas = replicas
        self._gateway_handoff = gateway_handoff
        self._counters = counters
        self._throttle = throttle

    def encode(self, context: RequestContext, topics: Topics) -> Reply:
        """Return the answer, with the leaders of partitions that other nodes lead."""
        version = context.api_version
        if context.timer is not None and self._throttle is not None:
            self._throttle.timed(context)
        throttle_ms = context.throttle_ms
        endpoints: Sequence[Endpoint] = ()
        if version >= LEADER_FROM and _names_other_leaders(topics):
            topics, endpoints = self._add_leaders(topics, context)
        return [
            encode_produce(
                version, context.correlation_id, topics, endpoints, throttle_ms=throttle_ms
            )
        ]

    def encode_pending(self, pending: PendingAnswer) -> Reply:
        """Return an answer whose acks and flushes have all come, or failed."""
        for ack in pending.acks:
            if ack.error_code:
                self._counters.note_error(API_KEY, ack.error_code)
        return self.encode(pending.context, pending.topics)

    def refuse(self, request: ProduceRequest, context: RequestContext, code: ErrorCode) -> Reply:
        """Return the answer with one error for every partition."""
        self._counters.note_error(API_KEY, code)
        return self.encode(context, _same_error(request, code))

    def _add_leaders(
        self, topics: Topics, context: RequestContext
    ) -> tuple[Topics, list[Endpoint]]:
        """Return the results with the current leader for partitions of other nodes (KIP-951)."""
        leaders, has_ids = self._replicas.leaders, context.api_version >= TOPIC_ID_FROM
        leader_ids: set[int] = set()
        with_leaders: Topics = []
        for name, results in topics:
            found: list[ProduceResult] = []
            for result in results:
                if (
                    result.error_code == ErrorCode.not_leader_or_follower
                    # Else producers would leave their zone's gateway.
                    and self._gateway_handoff.replica_of(context, name, result.partition) is None
                ):
                    leader = leaders.find(name, result.partition, is_id=has_ids)
                    if leader is not None:
                        result = result._replace(  # noqa: PLW2901
                            leader_id=leader.leader_id, leader_epoch=leader.leader_epoch
                        )
                        leader_ids.add(leader.leader_id)
                found.append(result)
            with_leaders.append((name, found))
        return with_leaders, leaders.endpoints(leader_ids, context.session.listener)


def failed_result(index: int, replica: Replica | None, error: TidelogError) -> ProduceResult:
    """Return the result of a batch that was not appended."""
    log = None
    if replica is not None and not isinstance(error, _WITHOUT_LOG_START):
        log = replica.opened_log
    message = cut_error_text(str(error)).encode()
    return ProduceResult(
        index,
        error.code,
        log_start_offset=-1 if log is None else log.log_start_offset,
        error_message=message,
        record_errors=_record_errors(error, message) if isinstance(error, InvalidRecord) else (),
    )


def _record_errors(error: InvalidRecord, message: bytes) -> list[tuple[int, bytes | None]]:
    if isinstance(error, RecordsRefused):
        texts = [cut_error_text(text).encode() for text in error.record_messages]
        return list(zip(error.record_indexes, texts, strict=True))
    return [(index, message) for index in error.record_indexes]


def _same_error(request: ProduceRequest, code: ErrorCode) -> Topics:
    return [
        *request.refused,
        *(
            (name, [ProduceResult(index, code) for index, _ in partitions])
            for name, partitions in request.topics
        ),
    ]


def _names_other_leaders(topics: Topics) -> bool:
    for _, results in topics:
        for result in results:
            if result.error_code == ErrorCode.not_leader_or_follower:
                return True
    return False
