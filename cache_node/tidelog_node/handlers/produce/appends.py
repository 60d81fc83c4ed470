"""Appends the batches of a Produce request, and collects the waits of its answer.

Appending is one call without a wait in it, so the batches of a connection are appended in the order
of its requests. The answer waits for flushes if the topic wants them (``flush.messages``), for
other replicas with ``acks=all``, and for the chain on diskless partitions: see ``pending_answers``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidelog_core.errors import TidelogError
from tidelog_core.log.producers.verification import VerificationGuard

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


class _Appending:
    """A request whose batches are being appended, and what its answer waits for or reports."""

    __slots__ = (
        "acks",
        "batch_index",
        "can_serve",
        "context",
        "failures",
        "flushes",
        "inspected",
        "request",
        "verified",
    )

    def __init__(
        self,
        request: ProduceRequest,
        context: RequestContext,
        verified: Verified | None,
        inspected: InspectionResults | None,
        *,
        can_serve: bool,
    ) -> None:
        self.request = request
        self.context = context
        self.verified = verified
        self.inspected = inspected
        self.can_serve = can_serve  # this node may acknowledge now
        self.batch_index = -1  # of the current batch among all of the request
        self.failures: list[tuple[int, TidelogError]] = []  # partition and error
        self.flushes: list[PendingFlush] = []
        self.acks: list[PendingAck] = []

    def guard(self, name: bytes, index: int) -> VerificationGuard | None:
        """Return the guard of the partition's transaction, ``None`` if nothing was verified."""
        return None if self.verified is None else self.verified.guard(name, index)

    def inspection(self) -> tuple[InspectionResults, int] | None:
        """Return the inspection's results, and which of them is the current batch's."""
        return None if self.inspected is None else (self.inspected, self.batch_index)


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
        led_by = led_replicas(self._replicas, context)
        appending = _Appending(request, context, verified, inspected, can_serve=self._can_serve())
        topics: Topics = [*request.refused]
        for name, partitions in request.topics:
            led = led_by.get(name, NO_REPLICAS)
            topics.append((name, self._append_topic(appending, name, partitions, led)))
        if not request.acks:
            _require_no_failure(appending.failures)
            return NO_ANSWER
        flushes, acks = appending.flushes, appending.acks
        if flushes or acks:
            pending = PendingAnswer(self._pending, context, topics)
            pending.wait_for_flushes(flushes)
            self._pending.wait_for_acks(pending, acks, timeout_ms=request.timeout_ms)
            return pending
        return self._answers.encode(context, topics)

    def _append_topic(
        self,
        appending: _Appending,
        name: bytes,
        partitions: Sequence[tuple[int, memoryview | None]],
        led: Mapping[int, Replica],
    ) -> list[ProduceResult]:
        """Append a topic's batches; return a result for each of its partitions."""
        request, context = appending.request, appending.context
        refusal = self._write_refusal(appending, name)
        results: list[ProduceResult] = []
        for index, records in partitions:
            appending.batch_index += 1
            replica = led.get(index)
            try:
                if refusal is not None:
                    raise refusal
                if replica is None:
                    appending.acks += self._gateway_handoff.take(
                        request, context, name, index, records, results
                    )
                    continue
                self._refused.require_takes(
                    replica, records, context.session, can_serve=appending.can_serve
                )
                info = append_batch(
                    replica,
                    records,
                    request,
                    context.api_version,
                    appending.guard(name, index),
                    appending.inspection(),
                )
            except TidelogError as error:
                self._counters.note_error(API_KEY, error.code)
                self._refused.note(context, name, index, records, error=error)
                # Its traceback would hold this frame, and so the request's records.
                appending.failures.append((index, error.with_traceback(None)))
                results.append(failed_result(index, replica, error))
                continue
            results.append(
                ProduceResult(
                    index, 0, info.base_offset, info.log_append_time_ms, info.log_start_offset
                )
            )
            self._add_waits(appending, replica, results, info.last_offset + 1)
        return results

    def _write_refusal(self, appending: _Appending, name: bytes) -> TidelogError | None:
        """Return why the client may not write to the topic any more, ``None`` if it may.

        A request without an inspection was checked just before. With one it has waited since.
        """
        if self._access is None or appending.inspected is None:
            return None
        context = appending.context
        has_ids = context.api_version >= TOPIC_ID_FROM
        return self._access.write_refusal(context.session, name, is_id=has_ids)

    def _add_waits(
        self,
        appending: _Appending,
        replica: Replica,
        results: list[ProduceResult],
        end_offset: int,
    ) -> None:
        """Add the flushes and the ack that the last result waits for; its batch ends there."""
        result_index = len(results) - 1
        if replica.has_flush_policy:
            for flush in self._flusher.appended(replica):
                appending.flushes.append(PendingFlush(flush, results, result_index))
        acks = appending.request.acks
        waits = acks == ACKS_ALL or (acks != 0 and replica.is_diskless)
        if waits and replica.role is not None and replica.log.high_watermark < end_offset:
            appending.acks.append(PendingAck(replica, end_offset, results, result_index))


def _require_no_failure(failures: list[tuple[int, TidelogError]]) -> None:
    if failures:
        index, error = failures[0]
        raise CloseConnection(
            f"produce with acks=0 failed on partition {index}: {error}", is_expected=True
        )
