"""Produce: appends the batches from the receive buffer, and answers with the results.

The call itself returns the answer unless the topic wants the log flushed first
(``flush.messages``), or ``acks=all`` waits for other replicas: see ``owed_answers``. On diskless
partitions ``acks=1`` is ``acks=all``, and waits for the partition's chain. With
``acks=0`` there is no answer: an error closes the connection, and so makes the producer look for
the leader again.

If the topic's records must be inspected (``produce_inspection``), small batches are inspected at
once, all others in another process. The client's next request is handled after the batches of this
one are in the log.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.errors import (
    CorruptRecordBatch,
    ErrorCode,
    InvalidProducerIdMapping,
    InvalidRecord,
    InvalidTopic,
    MessageTooLarge,
    NotLeaderOrFollower,
    RecordListTooLarge,
    RequestTimedOut,
    StorageError,
    TidelogError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    UnsupportedCompression,
)
from tidelog_core.log.values import AppendInfo
from tidelog_core.log.verification import VerificationGuard
from tidelog_core.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC, parse_header
from tidelog_core.security.acl import AclOperation, ResourceType

from tidelog_node.answers import (
    NO_ANSWER,
    Answer,
    CloseConnection,
    HeldReply,
    OwedReply,
    Reply,
    TaskReply,
)
from tidelog_node.audit.transfers import TransferRecorder
from tidelog_node.authorization.access import Access
from tidelog_node.diskless.gateway.broken_producers import (
    BrokenProducers,
    ProducerBatch,
    producer_batch,
)
from tidelog_node.diskless.gateway.gateway import Gateway
from tidelog_node.diskless.gateway.taken_batches import Produced
from tidelog_node.handlers.diskless_admission import DisklessAdmission
from tidelog_node.handlers.owed_answers import (
    GATEWAY_WAIT,
    OwedAck,
    OwedAnswer,
    OwedAnswers,
    OwedFlush,
    Topics,
)
from tidelog_node.handlers.produce_inspection import (
    InspectionResults,
    ProduceInspector,
    checks_schemas,
    needs_inspection,
)
from tidelog_node.handlers.produce_schemas import ProduceSchemas
from tidelog_node.inspection.host_bytes import HostBytes
from tidelog_node.inspection.inspector import BatchInspector, NotInspected
from tidelog_node.inspection.schema_frames import RecordsRefused
from tidelog_node.node_context import NodeContext
from tidelog_node.replica import Replica
from tidelog_node.replicas import ReplicaManager
from tidelog_node.routes import HotRoute, RequestContext
from tidelog_node.session import Session
from tidelog_node.throttling.throttle import Throttle
from tidelog_node.transactions.produce_gate import NotVerified, ProduceGate, Turn, Verified
from tidelog_node.upkeep.flushing import Flusher
from tidelog_node.wire import produce
from tidelog_node.wire.primitives import INT32, cut_error_text
from tidelog_node.wire.produce import (
    Endpoint,
    ProduceRequest,
    ProduceResult,
    encode_produce,
    parse_produce,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

ACKS_ALL = -1
# Kafka 4 no longer serves versions 0 to 2 but still lists them: librdkafka before 2.8
# compresses only for brokers that do. Source: KAFKA-18659.
ADVERTISED_MIN_VERSION = 0
ZSTD_FROM = 7
LEADER_FROM = 10
# Bytes of requests that wait for the inspector; one host may have half of them. They do not count
# in ``RequestMemory``: they can wait for minutes, and would keep that memory from all other
# requests.
HELD_BYTES_MAX = 67_108_864
_NONE: Mapping[int, Replica] = {}
_BATCH_HEAD = struct.Struct(">i4xb4xh")  # from byte 8: length, magic, attributes
_BATCH_OVERHEAD = 17  # base offset, length, leader epoch, magic: common to all formats
_LEGACY_BATCH_SIZE_MIN = 26  # base offset, length and the shortest valid message
_CODEC_MASK, _ZSTD, _TRANSACTIONAL_BIT = 0x7, 0x4, 0x10


class ProduceHandler:
    """Serves Produce on the partitions that this node leads."""

    def __init__(
        self,
        node: NodeContext,
        *,
        replicas: ReplicaManager,
        flusher: Flusher,
        inspector: BatchInspector,
        gate: ProduceGate | None = None,
        access: Access | None = None,
        throttle: Throttle | None = None,
        record: TransferRecorder | None = None,
        admission: DisklessAdmission | None = None,
    ) -> None:
        """Without a ``gate`` no transaction can begin here, without ``access`` all may write.

        Without a ``throttle`` there are no quotas. ``record`` records who produces to what.
        ``admission`` knows when requests for diskless partitions must wait.
        """
        self._admission = admission or DisklessAdmission()
        self._access = access
        self._throttle = throttle
        self._record = record
        self._gate = gate
        self._inspector = ProduceInspector(inspector)
        self._schemas = ProduceSchemas(node, inspector)
        self._held = HostBytes(HELD_BYTES_MAX)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._replicas = replicas
        self._flusher = flusher
        self._can_serve = node.standing.can_serve
        self._counters = node.counters
        self._owed = OwedAnswers(self._encode_owed)
        self._broken = BrokenProducers(
            self._owed.loop.time
        )  # of the refused batches of led partitions
        self.gateway: Gateway | None = None  # None: records of other leaders are refused

    def close(self) -> None:
        """Answer the waiting requests with a time-out."""
        self._owed.close()
        for task in self._tasks:
            task.cancel()

    def hot_route(self) -> HotRoute:
        """Return the route."""
        return HotRoute(
            api_key=produce.API_KEY,
            min_version=produce.VERSION_MIN,
            max_version=produce.VERSION_MAX,
            flexible_from=produce.FLEXIBLE_FROM,
            parse=parse_produce,
            handle=self.handle,
            advertised_min_version=ADVERTISED_MIN_VERSION,
        )

    def handle(self, request: ProduceRequest, context: RequestContext) -> Answer:
        """Append the request's batches and return the answer.

        Raises ``CloseConnection``, and ``NotYet`` if the request must wait for room in the chain.
        """
        if self._admission.is_active and not self._is_admitted(request, context):
            if not request.acks:
                raise CloseConnection("the object store takes no records", is_expected=True)
            if self._access is not None:
                # Others must not have the batches of a topic's producers refused.
                request = self._authorized(self._access, request, context)
            self._lose(request, context)
            return self._refuse(request, context, ErrorCode.request_timed_out)
        if self._throttle is not None and self._throttle.is_active:
            # When it has come, not when it is answered: no later request is read in between.
            self._throttle.produced(context, context.size_bytes)
        if self._access is not None:
            request = self._authorized(self._access, request, context)
        if self._record is not None:
            is_id = context.api_version >= produce.TOPIC_ID_FROM
            for topic, _ in request.topics:
                self._record.note(context.session, topic, is_id=is_id)
        acks = request.acks
        if not ACKS_ALL <= acks <= 1:
            return self._refuse(request, context, ErrorCode.invalid_required_acks)
        inspected: InspectionResults | None = None
        led_by = self._led_by(context)
        if needs_inspection(request, led_by):
            inspected = self._inspector.inspect(request, led_by)
            if inspected.is_spent or checks_schemas(request, led_by):
                return self._hold(request, context, inspected)
        return self._carry_out(request, context, inspected)

    def _is_admitted(self, request: ProduceRequest, context: RequestContext) -> bool:
        if not (
            _has_diskless(request, self._led_by(context))
            or (self.gateway is not None and _has_diskless(request, self._followed_by(context)))
        ):
            return True
        return self._admission.admit(context.session, request.timeout_ms)

    def _lose(self, request: ProduceRequest, context: RequestContext) -> None:
        """Note batches that are refused, so that none of the same producers is taken before them.

        A log takes any sequence as the first one of a producer that it does not know. If it took a
        producer's second batch, librdkafka would take the first one for delivered.
        """
        led_by, followed_by = self._led_by(context), self._followed_by(context)
        for name, partitions in request.topics:
            for index, records in partitions:
                self._lose_batch(led_by.get(name, _NONE).get(index), records)
                producer = _producer_batch(followed_by.get(name, _NONE).get(index), records)
                if producer is not None and self.gateway is not None:
                    self.gateway.refuse(producer)

    def _lose_batch(self, replica: Replica | None, records: memoryview | None) -> None:
        """Note a batch for a led replica that is refused, but may be taken later."""
        producer = _producer_batch(replica, records)
        if producer is not None:
            self._broken.lose(producer, 0)

    def _require_takes(
        self, replica: Replica, records: memoryview | None, *, can_serve: bool
    ) -> None:
        """Raise what keeps a led replica from taking the batch, whatever is in it.

        ``NotLeaderOrFollower``, and ``RequestTimedOut`` if an earlier batch of its producer was
        refused and has not come again.
        """
        if not (can_serve or replica.is_diskless):
            raise NotLeaderOrFollower("this node has lost touch with the cluster")
        gateway = self.gateway if replica.is_diskless else None
        if not self._broken and gateway is None:
            return
        producer = _producer_batch(replica, records)
        if producer is None:
            return
        if gateway is not None and gateway.owes(producer):
            # This node has just begun to lead: what it took before as a gateway comes first.
            self._broken.lose(producer, 0)
            raise NotLeaderOrFollower("earlier batches of the producer are on their way")
        if self._broken.blocks(producer, 0):
            # Another node may have led meanwhile, and have appended it.
            log = replica.log
            self._broken.note_log(producer, 0, log.producers.state, log.log_end_offset)
        is_behind = gateway is not None and gateway.has_lost_before(producer, replica.log)
        if is_behind or self._broken.blocks(producer, 0):
            raise RequestTimedOut("an earlier batch of the producer was refused")
        self._broken.has_come(producer)
        if gateway is not None:
            gateway.has_come(producer)

    def _authorized(
        self, access: Access, request: ProduceRequest, context: RequestContext
    ) -> ProduceRequest:
        """Return the request without the topics that the client may not write.

        They cause no inspection, and become no part of a transaction.
        """
        session, transactional_id = context.session, request.transactional_id
        is_id = context.api_version >= produce.TOPIC_ID_FROM
        refusal: TidelogError | None = None
        if transactional_id is not None:
            name = str(transactional_id, "utf-8", "replace")
            if not access.may(session, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
                refusal = TransactionalIdAuthorizationFailed(
                    f"the client may not write with the transactional id {name}"
                )
        elif _may_write_all(request, access, session, is_id=is_id):
            return request
        allowed: list[produce.ProduceTopic] = []
        refused: Topics = []
        for topic, partitions in request.topics:
            error = refusal or access.write_refusal(session, topic, is_id=is_id)
            if error is None:
                allowed.append((topic, partitions))
            else:
                self._counters.note_error(produce.API_KEY, error.code)
                refused.append((topic, [_failed(index, None, error) for index, _ in partitions]))
        if not refused:
            return request
        if not request.acks:
            raise CloseConnection("produce with acks=0 was not authorized", is_expected=True)
        return replace(request, topics=allowed, refused=refused)

    def _hold(
        self, request: ProduceRequest, context: RequestContext, inspected: InspectionResults
    ) -> Answer:
        """Have the batches inspected in another process, then append them and answer.

        If the client disconnects before its answer, batches that are not in the log yet are
        dropped: they were never acknowledged. A request without acks is carried out all the same,
        because its client may well disconnect once everything is sent.
        """
        request = inspected.without_refused(request)
        host, size_bytes = context.session.client_host, _size_bytes(request)
        if not self._held.take(host, size_bytes):
            if not request.acks:
                raise CloseConnection("too many batches wait to be inspected", is_expected=True)
            self._lose(request, context)
            return self._refuse(request, context, ErrorCode.request_timed_out)
        # The receive buffer is reused before the inspection ends.
        request = _kept_request(request)
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
            await self._inspector.inspect_in_worker(
                request, self._led_by(context), inspected, host=host
            )
        await self._schemas.check(request, self._led_by(context), inspected, host=host)
        answer = self._carry_out(request, context, inspected)
        held.release()
        return await answer if isinstance(answer, OwedReply) else answer

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _carry_out(
        self, request: ProduceRequest, context: RequestContext, inspected: InspectionResults | None
    ) -> Answer:
        if request.transactional_id is not None:
            return self._handle_transactional(request, context, inspected)
        return self._append(request, context, None, inspected)

    def _handle_transactional(
        self, request: ProduceRequest, context: RequestContext, inspected: InspectionResults | None
    ) -> Answer:
        gate, transactional_id = self._gate, request.transactional_id
        assert transactional_id is not None
        version = context.api_version
        led_by = self._led_by(context)
        is_free = gate is None or gate.is_free(request, led_by, version=version)
        if gate is None or is_free or not (self._can_serve() or _has_diskless(request, led_by)):
            return self._append(request, context, None, inspected)
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
            request = _kept_request(request)
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
            led_by = self._led_by(context)
            verified = await gate.verify(request, led_by, version=context.api_version)
            answer = self._append(request, context, verified, inspected)
        finally:
            turn.set_result(None)
        return await answer if isinstance(answer, OwedReply) else answer

    def _led_by(self, context: RequestContext) -> Mapping[bytes, Mapping[int, Replica]]:
        has_ids = context.api_version >= produce.TOPIC_ID_FROM
        return self._replicas.led_by_id if has_ids else self._replicas.led_by_name

    def _followed_by(self, context: RequestContext) -> Mapping[bytes, Mapping[int, Replica]]:
        has_ids = context.api_version >= produce.TOPIC_ID_FROM
        return self._replicas.followed_by_id if has_ids else self._replicas.followed_by_name

    def _passed_on(self, context: RequestContext, name: bytes, index: int) -> Replica | None:
        """Return the replica whose records this node takes for another leader, if it does."""
        gateway = self.gateway
        if gateway is None:
            return None
        replica = self._followed_by(context).get(name, _NONE).get(index)
        return replica if replica is not None and gateway.takes(replica) else None

    def _append(
        self,
        request: ProduceRequest,
        context: RequestContext,
        verified: Verified | None,
        inspected: InspectionResults | None,
    ) -> Answer:
        acks, version = request.acks, context.api_version
        has_ids = version >= produce.TOPIC_ID_FROM
        led_by = self._led_by(context)
        can_serve = self._can_serve()
        topics: Topics = [*request.refused]
        failures: list[tuple[int, TidelogError]] = []
        flushes: list[OwedFlush] = []
        owed_acks: list[OwedAck] = []
        place = -1
        for name, partitions in request.topics:
            led = led_by.get(name, _NONE)
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
                        owed_acks += self._pass_on(request, context, name, index, records, results)
                        continue
                    self._require_takes(replica, records, can_serve=can_serve)
                    guard = None if verified is None else verified.guard(name, index)
                    known = None if inspected is None else (inspected, place)
                    info = append_batch(replica, records, request, version, guard, known)
                except TidelogError as error:
                    self._note_failure(replica, records, error)
                    # Its traceback would hold this frame, and so the request's records.
                    failures.append((index, error.with_traceback(None)))
                    results.append(_failed(index, replica, error))
                    continue
                results.append(
                    ProduceResult(
                        index, 0, info.base_offset, info.log_append_time_ms, info.log_start_offset
                    )
                )
                if replica.has_flush_policy:
                    result_index = len(results) - 1
                    due = self._flusher.appended(replica)
                    flushes.extend(OwedFlush(flush, results, result_index) for flush in due)
                waits = acks == ACKS_ALL or (acks != 0 and replica.is_diskless)
                if waits and replica.role is not None:
                    required_offset = info.last_offset + 1
                    if replica.log.high_watermark < required_offset:
                        owed_acks.append(self._owe(replica, records, required_offset, results))
            topics.append((name, results))
        if not acks:
            _require_no_failure(failures)
            return NO_ANSWER
        if flushes or owed_acks:
            owed = OwedAnswer(self._owed, context, topics)
            owed.wait_for_flushes(flushes)
            self._owed.wait_for_acks(owed, owed_acks, timeout_ms=request.timeout_ms)
            return owed
        return self._encode(context, topics)

    def _note_failure(
        self, replica: Replica | None, records: memoryview | None, error: TidelogError
    ) -> None:
        self._counters.note_error(produce.API_KEY, error.code)
        if isinstance(error, NotInspected):
            self._lose_batch(replica, records)
        elif replica is not None and isinstance(error, NotLeaderOrFollower):
            self._note_refused(replica, records)

    # This node may follow in the next turn. As a gateway it then takes what was sent behind these.

    def _owe(
        self,
        replica: Replica,
        records: memoryview | None,
        required_offset: int,
        results: list[ProduceResult],
    ) -> OwedAck:
        """Return the ack of the last result; the gateway is told if the lead ends before."""
        if self.gateway is not None and replica.is_diskless:
            producer = _producer_batch(replica, records)
            if producer is not None:
                self.gateway.watch(producer, replica, required_offset)
        return OwedAck(replica, required_offset, results, len(results) - 1)

    def _note_refused(self, replica: Replica, records: memoryview | None) -> None:
        """Have the gateway know of a batch that this node has refused to append as the leader."""
        gateway = self.gateway
        if gateway is None or not replica.is_diskless:
            return
        producer = _producer_batch(replica, records)
        if producer is not None and not gateway.owes(producer):
            gateway.refuse(producer)

    def _pass_on(  # noqa: PLR0917
        self,
        request: ProduceRequest,
        context: RequestContext,
        name: bytes,
        index: int,
        records: memoryview | None,
        results: list[ProduceResult],
    ) -> list[OwedAck]:
        """Take the records as a gateway, and add a result. Return what the answer waits for.

        Raises ``NotLeaderOrFollower`` or what else says that this node does not take them.
        """
        version = context.api_version
        replica, gateway = self._passed_on(context, name, index), self.gateway
        if replica is None or gateway is None:
            raise self._refusal(name, index, has_ids=version >= produce.TOPIC_ID_FROM)
        batch = _require_batch(records, request, version, None)
        transactional_id = request.transactional_id
        produced = Produced(
            version,
            request.acks,
            request.timeout_ms,
            None if transactional_id is None else bytes(transactional_id),
        )
        ack = OwedAck(replica, GATEWAY_WAIT, results, len(results))
        gateway.take(replica, batch, produced, ack if request.acks else None)
        results.append(ProduceResult(index, log_start_offset=_log_start(replica)))
        return [ack] if request.acks else []

    def _refuse(self, request: ProduceRequest, context: RequestContext, code: ErrorCode) -> Reply:
        """Return the answer with one error for every partition."""
        self._counters.note_error(produce.API_KEY, code)
        return self._encode(context, _same_error(request, code))

    def _encode_owed(self, owed: OwedAnswer) -> Reply:
        for ack in owed.acks:
            if ack.error_code:
                self._counters.note_error(produce.API_KEY, ack.error_code)
        return self._encode(owed.context, owed.topics)

    def _encode(self, context: RequestContext, topics: Topics) -> Reply:
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

    def _add_leaders(
        self, topics: Topics, context: RequestContext
    ) -> tuple[Topics, list[Endpoint]]:
        """Return the results with the current leader for partitions of other nodes (KIP-951)."""
        leaders, has_ids = self._replicas.leaders, context.api_version >= produce.TOPIC_ID_FROM
        leader_ids: set[int] = set()
        with_leaders: Topics = []
        for name, results in topics:
            found: list[ProduceResult] = []
            for result in results:
                if (
                    result.error_code == ErrorCode.not_leader_or_follower
                    # Else producers would leave their zone's gateway.
                    and self._passed_on(context, name, result.partition) is None
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

    def _refusal(self, name: bytes, index: int, *, has_ids: bool) -> TidelogError:
        return self._replicas.leaders.refusal(name, index, is_id=has_ids)


def _require_no_failure(failures: list[tuple[int, TidelogError]]) -> None:
    if failures:
        index, error = failures[0]
        raise CloseConnection(
            f"produce with acks=0 failed on partition {index}: {error}", is_expected=True
        )


def _require_schemas(known: tuple[InspectionResults, int] | None) -> None:
    if known is None:
        raise NotInspected("the topic has begun to ask for schemas")
    known[0].require_schemas(known[1])


def _names_other_leaders(topics: Topics) -> bool:
    for _, results in topics:
        for result in results:
            if result.error_code == ErrorCode.not_leader_or_follower:
                return True
    return False


def _has_diskless(request: ProduceRequest, led_by: Mapping[bytes, Mapping[int, Replica]]) -> bool:
    for name, partitions in request.topics:
        led = led_by.get(name, _NONE)
        for index, _ in partitions:
            replica = led.get(index)
            if replica is not None and (replica.is_diskless or replica.chain is not None):
                return True
    return False


def _size_bytes(request: ProduceRequest) -> int:
    return sum(
        len(records)
        for _, partitions in request.topics
        for _, records in partitions
        if records is not None
    )


def _kept_request(request: ProduceRequest) -> ProduceRequest:
    return ProduceRequest(
        request.transactional_id,
        request.acks,
        request.timeout_ms,
        [
            (name, [(index, _kept(records)) for index, records in partitions])
            for name, partitions in request.topics
        ],
        refused=request.refused,
    )


def _kept(records: memoryview | None) -> memoryview | None:
    return None if records is None else memoryview(bytearray(records))


def _producer_batch(replica: Replica | None, records: memoryview | None) -> ProducerBatch | None:
    """Return which batch of an idempotent producer the records are, ``None`` for others.

    It is none if ``_require_batch`` would refuse the records.
    """
    if replica is None or records is None or len(records) < HEADER_SIZE:
        return None
    size_bytes, magic, _ = _BATCH_HEAD.unpack_from(records, 8)
    if size_bytes + LOG_OVERHEAD != len(records) or magic != MAGIC:
        return None
    name = PartitionName(replica.topic_id, replica.partition.partition)
    return producer_batch(name, parse_header(records))


def _may_write_all(
    request: ProduceRequest, access: Access, session: Session, *, is_id: bool
) -> bool:
    """Return whether no topic is refused: small requests would pay for another list of topics."""
    for topic, _ in request.topics:
        if access.write_refusal(session, topic, is_id=is_id) is not None:
            return False
    return True


def _log_start(replica: Replica) -> int:
    log = replica.opened_log
    return -1 if log is None else log.log_start_offset


def _require_batch(
    records: memoryview | None,
    request: ProduceRequest,
    version: int,
    known: tuple[InspectionResults, int] | None,
) -> memoryview:
    """Return the records if they are one batch that the request may carry."""
    if records is None or len(records) < HEADER_SIZE:
        raise _refuse_short(records)
    size_bytes, magic, attributes = _BATCH_HEAD.unpack_from(records, 8)
    if size_bytes + 12 != len(records) or magic != MAGIC:
        if known is not None and (refusal := known[0].refusal(known[1])) is not None:
            raise refusal  # Only the header of a refused batch was kept.
        raise _refuse_shape(size_bytes + 12, len(records), magic)
    if attributes & (_TRANSACTIONAL_BIT | _ZSTD):
        _require_allowed(attributes, request, version)
    return records


def append_batch(  # noqa: PLR0917
    replica: Replica,
    records: memoryview | None,
    request: ProduceRequest,
    version: int,
    guard: VerificationGuard | None,
    known: tuple[InspectionResults, int] | None,
) -> AppendInfo:
    """Append one batch of a request to a led replica. Raises the errors of ``Replica.append``."""
    batch = _require_batch(records, request, version, known)
    attributes = _BATCH_HEAD.unpack_from(batch, 8)[2]
    if replica.checks_schemas:
        _require_schemas(known)
    if replica.is_internal:
        raise InvalidTopic(f"{replica.partition.topic} is not for clients to write")
    if replica.role is not None:
        replica.role.require_appendable(needs_all=request.acks == ACKS_ALL)
    try:
        if attributes & _TRANSACTIONAL_BIT:
            replica.log.producers.require_verified(parse_header(batch), guard)
        if known is None or not replica.inspects_records:
            return replica.append(batch)
        inspected, place = known
        return replica.append(batch, checked=inspected.checked(place, batch, replica.config))
    except OSError as error:
        logger.exception("append failed", extra={"partition": str(replica.partition)})
        raise StorageError(f"{replica.partition} could not be written: {error}") from error


# -- as Kafka's ``ProduceRequest.validateRecords`` --


class _NoSuchRecords(InvalidRecord):
    """The request's records are not a single batch; the log was not called."""


class _CodecTooNew(UnsupportedCompression):
    """The request's version has no such codec; the log was not called."""


# The answer to these errors has no log start offset. Source: ``ReplicaManager``.
_WITHOUT_LOG_START = (
    _NoSuchRecords,
    _CodecTooNew,
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


def _refuse_short(records: memoryview | None) -> TidelogError:
    if records is None or len(records) < LOG_OVERHEAD:
        return _NoSuchRecords("no record batch in the request")
    (size_bytes,) = INT32.unpack_from(records, 8)
    magic = records[16] if len(records) >= _BATCH_OVERHEAD else MAGIC
    return _refuse_shape(size_bytes + LOG_OVERHEAD, len(records), magic)


def _refuse_shape(batch_size_bytes: int, size_bytes: int, magic: int) -> TidelogError:
    if batch_size_bytes < _LEGACY_BATCH_SIZE_MIN:
        return CorruptRecordBatch(f"a record batch claims to be {batch_size_bytes} bytes long")
    if not 0 <= magic <= MAGIC:
        return CorruptRecordBatch(f"magic {magic} is no format of records, the newest is {MAGIC}")
    if batch_size_bytes > size_bytes:
        return _NoSuchRecords("the record batch is cut short")
    if magic != MAGIC:
        return _NoSuchRecords(f"record batches of magic {magic} are not accepted, only {MAGIC}")
    if batch_size_bytes < HEADER_SIZE:
        return CorruptRecordBatch(f"a record batch claims to be {batch_size_bytes} bytes long")
    return _NoSuchRecords("a request may carry one record batch for a partition, not several")


def _require_allowed(attributes: int, request: ProduceRequest, version: int) -> None:
    if attributes & _CODEC_MASK == _ZSTD and version < ZSTD_FROM:
        raise _CodecTooNew(f"Produce version {version} may not carry zstd, 7 and up may")
    if attributes & _TRANSACTIONAL_BIT and request.transactional_id is None:
        raise TransactionalIdAuthorizationFailed(
            "a transactional batch came in a request without a transactional id"
        )


def _failed(index: int, replica: Replica | None, error: TidelogError) -> ProduceResult:
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
