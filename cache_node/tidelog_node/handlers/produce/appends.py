"""Appends the batches of a Produce request, and collects the waits of its answer.

Appending is one call without a wait in it, so the batches of a connection are appended in the order
of its requests. The answer waits for flushes if the topic wants them (``flush.messages``), for
other replicas with ``acks=all``, and for the chain on diskless partitions: see ``pending_answers``.
"""

from __future__ import annotations

from tidelog_core.errors import TidelogError

from tidelog_node.answers import NO_ANSWER, Answer, CloseConnection
from tidelog_node.authorization.access import Access
from tidelog_node.handlers.produce.answers import ProduceAnswers, failed_result
from tidelog_node.handlers.produce.batch import ACKS_ALL, append_batch
from tidelog_node.handlers.produce.gateway_handoff import GatewayHandoff
from tidelog_node.handlers.produce.inspection import InspectionResults
from tidelog_node.handlers.produce.partitions import NO_REPLICAS, led_replicas
from tidelog_node.handlers.produce.pending_answers import (
    PendingAck,
    PendingAnswer,
    PendingAnswers,
    PendingFlush,
    Topics,
)
from tidelog_node.handlers.produce.refused_batches import RefusedBatches
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.requests.routes import RequestContext
from tidelog_node.transactions.produce_gate import Verified
from tidelog_node.upkeep.flusher import Flusher
from tidelog_node.wire.produce import API_KEY, TOPIC_ID_FROM, ProduceRequest, ProduceResult


class ProduceAppends:
    """Appends to the partitions that this node leads. For its event loop only."""

    def __init__(
        self,
        node: NodeContext,
        *,
        replicas: ReplicaManager,
        flusher: Flusher,
        gateway_handoff: GatewayHandoff,
        refused: RefusedBatches,
        answers: ProduceAnswers,
        access: Access | None,
    ) -> None:
        self._replicas = replicas
        self._flusher = flusher
        self._gateway_handoff = gateway_handoff
        self._refused = refused
        self._answers = answers
        self._access = access
        self._can_serve = node.membership.can_serve
        self._counters = node.counters
        self._pending = PendingAnswers(answers.encode_pending)

    def close(self) -> None:
        """Answer the waiting requests with a time-out."""
        self._pending.close()

    def append(
        self,
        request: ProduceRequest,
        context: RequestContext,
        verified: Verified | None,
        inspected: InspectionResults | None,
    ) -> Answer:
        """Append the batches and return the answer. Raises ``CloseConnection``."""
        acks, version = request.acks, context.api_version
        has_ids = version >= TOPIC_ID_FROM
        led_by = led_replicas(self._replicas, context)
        can_serve = self._can_serve()
        topics: Topics = [*request.refused]
        failures: list[tuple[int, TidelogError]] = []
        flushes: list[PendingFlush] = []
        pending_acks: list[PendingAck] = []
        place = -1
        for name, partitions in request.topics:
            led = led_by.get(name, NO_REPLICAS)
            results: list[ProduceResult] = []
            refusal = None
            if self._access is not None and inspected is not None:
                # Decided again: the request may have waited for its inspection.
                refusal = self._access.write_refusal(context.session, name, is_id=has_ids)
            for index, records in partitions:
                place += 1
                replica = led.get(index)
                try:
                    if refusal is not None:
                        raise refusal
                    if replica is None:
                        pending_acks += self._gateway_handoff.take(
                            request, context, name, index, records, results
                        )
                        continue
                    self._refused.require_takes(
                        replica, records, context.session, can_serve=can_serve
                    )
                    guard = None if verified is None else verified.guard(name, index)
                    known = None if inspected is None else (inspected, place)
                    info = append_batch(replica, records, request, version, guard, known)
                except TidelogError as error:
                    self._counters.note_error(API_KEY, error.code)
                    self._refused.note(context, name, index, records, error=error)
                    # Its traceback would hold this frame, and so the request's records.
                    failures.append((index, error.with_traceback(None)))
                    results.append(failed_result(index, replica, error))
                    continue
                results.append(
                    ProduceResult(
                        index, 0, info.base_offset, info.log_append_time_ms, info.log_start_offset
                    )
                )
                if replica.has_flush_policy:
                    flushes += self._due_flushes(replica, results)
                waits = acks == ACKS_ALL or (acks != 0 and replica.is_diskless)
                if waits and replica.role is not None:
                    required_offset = info.last_offset + 1
                    if replica.log.high_watermark < required_offset:
                        place_in_answer = len(results) - 1
                        pending_acks.append(
                            PendingAck(replica, required_offset, results, place_in_answer)
                        )
            topics.append((name, results))
        if not acks:
            _require_no_failure(failures)
            return NO_ANSWER
        if flushes or pending_acks:
            pending = PendingAnswer(self._pending, context, topics)
            pending.wait_for_flushes(flushes)
            self._pending.wait_for_acks(pending, pending_acks, timeout_ms=request.timeout_ms)
            return pending
        return self._answers.encode(context, topics)

    def _due_flushes(self, replica: Replica, results: list[ProduceResult]) -> list[PendingFlush]:
        """Return the flushes that the last result waits for."""
        due = self._flusher.appended(replica)
        return [PendingFlush(flush, results, len(results) - 1) for flush in due]


def _require_no_failure(failures: list[tuple[int, TidelogError]]) -> None:
    if failures:
        index, error = failures[0]
        raise CloseConnection(
            f"produce with acks=0 failed on partition {index}: {error}", is_expected=True
        )
