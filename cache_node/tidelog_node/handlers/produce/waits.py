"""Produce requests that must wait before their batches are appended.

Some wait for another process to inspect their records, and for schemas that are looked up
(``inspection``, ``schemas``), some for the coordinator that verifies their
transaction (``produce_gate``). The receive buffer is reused before that ends, so what waits is a
copy of its own; the copies of one host, and those of all, are bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tidelog_core.errors import ErrorCode

from tidelog_node.answers import (
    Answer,
    CloseConnection,
    HeldReply,
    PendingReply,
    Reply,
    TaskReply,
)
from tidelog_node.handlers.produce.answers import ProduceAnswers
from tidelog_node.handlers.produce.appends import ProduceAppends
from tidelog_node.handlers.produce.inspection import InspectionResults, ProduceInspector
from tidelog_node.handlers.produce.late_schemas import LateSchemas
from tidelog_node.handlers.produce.partitions import has_diskless, led_replicas
from tidelog_node.handlers.produce.refused_batches import RefusedBatches
from tidelog_node.inspection.host_bytes import HostBytes
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.requests.routes import RequestContext
from tidelog_node.transactions.produce_gate import ProduceGate, Turn
from tidelog_node.wire.produce import ProduceRequest

# Bytes of requests that wait for the inspector; one host may have half of them. They do not count
# in ``RequestMemory``: they can wait for minutes, and would keep that memory from all other
# requests.
HELD_BYTES_MAX = 67_108_864


class ProduceWaits:
    """The requests that wait, and those that turn out not to have to. For one event loop."""

    def __init__(
        self,
        node: NodeContext,
        *,
        replicas: ReplicaManager,
        inspector: ProduceInspector,
        schemas: LateSchemas,
        gate: ProduceGate | None,
        appends: ProduceAppends,
        refused: RefusedBatches,
        answers: ProduceAnswers,
    ) -> None:
        """Without a ``gate`` no transaction can begin here."""
        self._replicas = replicas
        self._inspector = inspector
        self._schemas = schemas
        self._gate = gate
        self._appends = appends
        self._refused = refused
        self._answers = answers
        self._can_serve = node.membership.can_serve
        self._held = HostBytes(HELD_BYTES_MAX)
        self._tasks: set[asyncio.Task[Reply]] = set()

    def close(self) -> None:
        """Cancel the waiting requests."""
        for task in self._tasks:
            task.cancel()

    def carry_out(
        self, request: ProduceRequest, context: RequestContext, inspected: InspectionResults | None
    ) -> Answer:
        """Append the batches and return the answer; a transaction is verified before."""
        if request.transactional_id is not None:
            return self._carry_out_transactional(request, context, inspected)
        return self._appends.append(request, context, None, inspected)

    # -- for an inspection --

    def inspect(
        self, request: ProduceRequest, context: RequestContext, inspected: InspectionResults
    ) -> Answer:
        """Inspect the batches in another process, then append them and answer.

        If the client disconnects before its answer, batches that are not in the log yet are
        dropped: they were never acknowledged. A request without acks is carried out all the same,
        because its client may well disconnect once everything is sent.
        """
        request = inspected.without_refused(request)
        host, size_bytes = context.session.client_host, _size_bytes(request)
        if not self._held.take(host, size_bytes):
            if not request.acks:
                raise CloseConnection("too many batches wait to be inspected", is_expected=True)
            self._refused.note_request(request, context)
            return self._answers.refuse(request, context, ErrorCode.request_timed_out)
        request = _copied(request)
        held = HeldReply()
        work = self._start(
            self._inspect_and_carry_out(
                request, context, inspected.for_copy(), held, needs_worker=inspected.is_spent
            )
        )
        work.add_done_callback(lambda _: self._held.give_back(host, size_bytes))
        held.come_from(work, outlives_client=not request.acks)
        return held

    async def _inspect_and_carry_out(
        self,
        request: ProduceRequest,
        context: RequestContext,
        inspected: InspectionResults,
        held: HeldReply,
        *,
        needs_worker: bool,
    ) -> Reply:
        """Return the answer; the client's next request is handled once the batches are appended.

        After a failure it is not: the connection is about to be closed, and requests behind one
        that failed must not be carried out.
        """
        host = context.session.client_host
        if needs_worker:
            led_by = led_replicas(self._replicas, context)
            await self._inspector.inspect_in_worker(request, led_by, inspected, host=host)
        led_by = led_replicas(self._replicas, context)
        await self._schemas.check(request, led_by, inspected, host=host)
        answer = self.carry_out(request, context, inspected)
        held.release()
        return await answer if isinstance(answer, PendingReply) else answer

    # -- for a transaction's coordinator --

    def _carry_out_transactional(
        self, request: ProduceRequest, context: RequestContext, inspected: InspectionResults | None
    ) -> Answer:
        gate, transactional_id = self._gate, request.transactional_id
        assert transactional_id is not None
        led_by = led_replicas(self._replicas, context)
        is_free = gate is None or gate.is_free(request, led_by, version=context.api_version)
        if gate is None or is_free or not (self._can_serve() or has_diskless(request, led_by)):
            return self._appends.append(request, context, None, inspected)
        if not request.acks:
            raise CloseConnection(
                "produce with acks=0 cannot begin a transaction's part", is_expected=True
            )
        if inspected is None or not inspected.is_of_copy:
            # The receive buffer is reused before the coordinator has answered.
            if inspected is None:
                inspected = InspectionResults(is_of_copy=True)
            else:
                request, inspected = inspected.without_refused(request), inspected.for_copy()
            request = _copied(request)
        # The next request may be handled before the task runs: it must find this turn taken.
        before, turn = gate.take_turn(transactional_id)
        task = self._start(self._append_verified(request, context, gate, before, turn, inspected))
        # A task that is cancelled before it runs does not end the turn by itself.
        task.add_done_callback(lambda _: turn.cancel())
        return TaskReply(task)

    async def _append_verified(  # noqa: PLR0917
        self,
        request: ProduceRequest,
        context: RequestContext,
        gate: ProduceGate,
        before: Turn | None,
        turn: Turn,
        inspected: InspectionResults | None,
    ) -> Reply:
        try:
            if before is not None:
                await asyncio.wait([before])
            led_by = led_replicas(self._replicas, context)
            verified = await gate.verify(request, led_by, version=context.api_version)
            answer = self._appends.append(request, context, verified, inspected)
        finally:
            turn.set_result(None)
        return await answer if isinstance(answer, PendingReply) else answer

    def _start(self, work: Coroutine[Any, Any, Reply]) -> asyncio.Task[Reply]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _size_bytes(request: ProduceRequest) -> int:
    return sum(
        len(records)
        for _, partitions in request.topics
        for _, records in partitions
        if records is not None
    )


def _copied(request: ProduceRequest) -> ProduceRequest:
    """Return the request with records of its own, outside the receive buffer."""
    return ProduceRequest(
        request.transactional_id,
        request.acks,
        request.timeout_ms,
        [
            (name, [(index, _copied_records(records)) for index, records in partitions])
            for name, partitions in request.topics
        ],
        refused=request.refused,
    )


def _copied_records(records: memoryview | None) -> memoryview | None:
    return None if records is None else memoryview(bytearray(records))
