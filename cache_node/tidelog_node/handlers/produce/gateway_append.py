"""GatewayAppend: appends batches that another zone's node has put into its own chain.

The request names the positions of the batches in a committed object. They are read from the bucket
by as few requests as possible, and appended as a producer's batches are. The chain gets references
to them instead of their bytes. The answer comes when the references are committed.

From version 1 on the request has the headers, too. Then the batches are appended before they are
read, while their references are put (``UnreadBatches``), if the gateway is one that the leader may
trust so far (``TrustedGateways``).

Requests of one gateway are appended in the order in which they came, no matter how long the reads
take, also if it has begun another chain: so a producer's batches stay in order. A batch whose
transaction must be verified first waits with those of its own transactional id.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from tidelog_core.diskless.wal.build import WalSlice
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import (
    MessageTooLarge,
    NotLeaderOrFollower,
    RequestTimedOut,
    TidelogError,
    UnknownProducerId,
)
from tidelog_core.log.append_checks import CheckedBatches, check_header
from tidelog_core.log.producers.verification import VerificationGuard
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.model import NO_LEADER_EPOCH
from tidelog_core.records.batch import HEADER_SIZE, parse_header

from tidelog_node.answers import Answer, CloseConnection, Reply, TaskReply
from tidelog_node.diskless.chain.chain_partition import ChainPartition, CommittedForeign
from tidelog_node.diskless.gateway.broken_producers import producer_batch
from tidelog_node.diskless.gateway.gateway_reads import GatewayReads
from tidelog_node.diskless.gateway.gateway_topics import may_pass
from tidelog_node.diskless.gateway.missed_batches import MissedBatches
from tidelog_node.diskless.gateway.read_slots import ReadSlots
from tidelog_node.diskless.gateway.trusted_gateways import TrustedGateways
from tidelog_node.diskless.gateway.unknown_producers import GatewaySource, UnknownProducers
from tidelog_node.diskless.gateway.unread_batches import (
    UnreadBatch,
    UnreadBatches,
    require_announced,
)
from tidelog_node.diskless.recovery.slice_reads import SlicePlace
from tidelog_node.handlers.produce.batch import append_batch
from tidelog_node.handlers.produce.gateway_acks import GatewayAck, results_of
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.requests.routes import HotRoute, RequestContext
from tidelog_node.requests.session import NO_NODE
from tidelog_node.transactions.produce_gate import ProduceGate
from tidelog_node.wire import gateway_append
from tidelog_node.wire.gateway_append import (
    REQUESTS_MAX,
    GatewayAppend,
    GatewayResult,
    GatewaySlice,
)
from tidelog_node.wire.produce import ProduceRequest

logger = logging.getLogger(__name__)

Turn = asyncio.Future[None]


class _TooEarly(RequestTimedOut):
    """An earlier batch of the producer may be on its way through another gateway."""


class _NotFirst(UnknownProducerId):
    """An earlier batch of the producer may be one that could not be appended."""


class GatewayAppends:
    """Serves the nodes that are gateways. For the node's event loop."""

    def __init__(
        self,
        node: NodeContext,
        *,
        replicas: ReplicaManager,
        gate: ProduceGate,
        unknown_producers: UnknownProducers,
    ) -> None:
        """``unknown_producers`` is the node's table, which Produce requests of clients use too."""
        self._node = node
        self._replicas = replicas
        self._gate = gate
        self.is_full: Callable[[], bool] = lambda: False  # whether the chain has too much pending
        traffic = node.counters.gateway
        self.reads = GatewayReads(traffic)
        self._slots = ReadSlots()
        self._trusted = TrustedGateways()
        self._unread = UnreadBatches(
            replicas, self.reads, self._slots, trusted=self._trusted, traffic=traffic
        )
        self._missed = MissedBatches(asyncio.get_running_loop().time)
        self._unknown_producers = unknown_producers
        self._turns: dict[int, Turn] = {}  # the last request in line, by gateway
        self._tasks: set[asyncio.Task[Reply]] = set()
        self._pending: Counter[int] = Counter()  # tasks by gateway

    async def close(self) -> None:
        """Read nothing more."""
        await self._unread.close()

    def hot_route(self) -> HotRoute:
        """Return the route, for other nodes only."""
        return HotRoute(
            api_key=gateway_append.API_KEY,
            min_version=0,
            max_version=gateway_append.VERSION_MAX,
            flexible_from=gateway_append.VERSION_MAX + 1,
            parse=gateway_append.parse_request,
            handle=self.handle,
            advertised_min_version=0,
        )

    def handle(self, request: GatewayAppend, context: RequestContext) -> Answer:
        """Append the request's batches and return the answer. Raises ``CloseConnection``."""
        node_id = context.session.node_id
        if node_id == NO_NODE:
            raise CloseConnection("a gateway's request from a client that is no node")
        if self._pending[node_id] >= REQUESTS_MAX:
            raise CloseConnection(f"a gateway has {REQUESTS_MAX} requests without an answer")
        self._pending[node_id] += 1
        task = asyncio.create_task(self._answer(node_id, request, context.correlation_id))
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_done, node_id))
        return TaskReply(task)

    def _on_done(self, node_id: int, task: asyncio.Task[Reply]) -> None:
        self._tasks.discard(task)
        self._pending[node_id] -= 1
        if not self._pending[node_id]:
            del self._pending[node_id]

    async def _answer(self, node_id: int, request: GatewayAppend, correlation_id: int) -> Reply:
        results = await self.append(node_id, request)
        return gateway_append.encode_answer(correlation_id, results)

    async def append(self, broker_id: int, request: GatewayAppend) -> list[GatewayResult]:
        """Append batches from the chain of the broker of that id; return the results."""
        gateway = ChainName(broker_id, request.chain_id)
        before, turn = self._take_turn(broker_id)
        waits: list[GatewayAck | asyncio.Task[GatewayAck]] = []
        unread: list[UnreadBatch] = []
        key = wal_key(self._node.view.image.cluster_id, gateway, request.sequence)
        try:
            async with self._slots.of(broker_id):
                if request.has_headers and self._trusted.has(gateway):
                    await self._append_unread(gateway, request, before, waits, unread)
                    turn.set_result(None)
                    read_now, unread = unread, []
                    await self._unread.fill(gateway, key, read_now)
                else:
                    await self._append_in_turn(key, gateway, request, before, waits)
        finally:
            for one in request.slices[len(waits) :]:  # The gateway has closed the connection.
                self._missed.note(_name_of(one))
            if not turn.done():
                turn.set_result(None)
            if unread:  # After an unexpected error nobody else would read them.
                self._unread.fill_later(gateway, key, unread)
        return await results_of(waits)

    async def _append_unread(
        self,
        gateway: ChainName,
        request: GatewayAppend,
        before: Turn | None,
        waits: list[GatewayAck | asyncio.Task[GatewayAck]],
        unread: list[UnreadBatch],
    ) -> None:
        """Append the headers; add the waits of each slice's answer to ``waits``."""
        if before is not None:
            await asyncio.wait([before])
        size_bytes_max = self._node.static_config.socket_request_max_bytes
        for one in request.slices:
            if one.size_bytes > size_bytes_max:
                waits.append(self._refused(one, _too_large()))
            else:
                data = one.batch_of_zeros()
                waits.append(self._append_or_refuse(gateway, request, one, data, unread))

    async def _append_in_turn(
        self,
        key: str,
        gateway: ChainName,
        request: GatewayAppend,
        before: Turn | None,
        waits: list[GatewayAck | asyncio.Task[GatewayAck]],
    ) -> None:
        """Read and append the batches in turn; add the waits of each answer to ``waits``."""
        parts = await self._read(key, gateway, request)
        if before is not None:
            await asyncio.wait([before])
        for one, data in zip(request.slices, parts, strict=True):
            waits.append(self._append_or_refuse(gateway, request, one, data, None))

    def _take_turn(self, broker_id: int) -> tuple[Turn | None, Turn]:
        before = self._turns.get(broker_id)
        own: Turn = asyncio.get_running_loop().create_future()
        self._turns[broker_id] = own

        def on_done(_: Turn) -> None:
            if self._turns.get(broker_id) is own:
                del self._turns[broker_id]

        own.add_done_callback(on_done)
        return before, own

    async def _read(
        self, key: str, gateway: ChainName, request: GatewayAppend
    ) -> Sequence[bytearray | TidelogError]:
        """Return each slice's bytes, or the error instead."""
        size_bytes_max = self._node.static_config.socket_request_max_bytes
        if any(one.size_bytes > size_bytes_max for one in request.slices):
            return [_too_large()] * len(request.slices)
        places = [SlicePlace(one.position, one.size_bytes, one.crc32c) for one in request.slices]
        error: TidelogError
        try:
            parts = await self.reads.read(key, places)
            require_announced(request.slices, parts)
        except TimeoutError:
            error = RequestTimedOut(f"{key} could not be read in time")
        except TidelogError as problem:
            error = problem
        else:
            self._trusted.note_whole(gateway)
            return parts
        self._trusted.note_broken(gateway)
        logger.warning("a gateway's object cannot be read", extra={"reason": str(error)})
        return [error] * len(places)

    def _append_or_refuse(
        self,
        gateway: ChainName,
        request: GatewayAppend,
        one: GatewaySlice,
        data: bytearray | TidelogError,
        unread: list[UnreadBatch] | None,
    ) -> GatewayAck | asyncio.Task[GatewayAck]:
        """Append the batch, or have it wait until its transaction is verified.

        ``unread`` gets the batch if ``data`` has its header alone, and it need not wait.
        """
        if isinstance(data, TidelogError):
            return self._refused(one, data)
        foreign = CommittedForeign(
            gateway,
            request.committed_end,
            request.sequence,
            one.position,
            WalSlice(one.topic_id, one.partition, NO_LEADER_EPOCH, bytes(data), is_foreign=True),
            None if unread is None else one.crc32c,
            asyncio.get_running_loop().time(),
        )
        produced = ProduceRequest(
            one.transactional_id,
            one.acks,
            one.timeout_ms,
            [(one.topic_id.bytes, [(one.partition, memoryview(data))])],
        )
        if one.transactional_id is not None:
            led_by, version = self._replicas.led_by_id, one.produce_version
            if not self._gate.is_free(produced, led_by, version=version):
                # The next batch may be appended before the task runs: it must find this turn.
                before, turn = self._gate.take_turn(one.transactional_id)
                task = asyncio.create_task(self._append_verified(produced, one, foreign, before))
                task.add_done_callback(lambda _: turn.set_result(None))
                return task
        return self._append(produced, one, foreign, None, unread)

    async def _append_verified(
        self,
        produced: ProduceRequest,
        one: GatewaySlice,
        foreign: CommittedForeign,
        before: Turn | None,
    ) -> GatewayAck:
        if before is not None:
            await asyncio.wait([before])
        led_by = self._replicas.led_by_id
        verified = await self._gate.verify(produced, led_by, version=one.produce_version)
        try:
            guard = verified.guard(one.topic_id.bytes, one.partition)
        except TidelogError as error:
            return self._refused(one, error)
        unread: list[UnreadBatch] = []
        ack = self._append(produced, one, foreign, guard, unread)
        if unread:
            key = wal_key(self._node.view.image.cluster_id, foreign.gateway, foreign.sequence)
            self._unread.fill_later(foreign.gateway, key, unread)
        return ack

    def _append(
        self,
        produced: ProduceRequest,
        one: GatewaySlice,
        foreign: CommittedForeign,
        guard: VerificationGuard | None,
        unread: list[UnreadBatch] | None,
    ) -> GatewayAck:
        checked: CheckedBatches | None = None
        try:
            replica, chain = self._led(one)
            self._unread.require_room(chain)
            batch = produced.topics[0][1][0][1]
            assert batch is not None
            if foreign.crc32c is not None:
                header = parse_header(batch)
                check_header(header, replica.config, now_ms=self._node.clock_ms())
                checked = batch, [(0, header)]
            self._require_order(foreign.gateway.broker_id, _name_of(one), replica, batch)
            with chain.referring_to(foreign):
                info = append_batch(
                    replica, batch, produced, one.produce_version, guard, None, checked=checked
                )
        except TidelogError as error:
            return self._refused(one, error)
        ack = GatewayAck(GatewayResult(0, info.base_offset, not info.is_duplicate))
        if not info.is_duplicate:
            self._node.counters.gateway.referenced_count += 1
            self._node.counters.gateway.referenced_bytes += info.size_bytes
            if unread is not None and checked is not None:
                self._unread.note(chain)
                place = SlicePlace(one.position, one.size_bytes, one.crc32c)
                written = bytes(batch[:HEADER_SIZE])
                unread.append(UnreadBatch(chain, info.base_offset, written, place, ack))
        role = replica.role
        if role is None or role.leader is None:
            ack.on_ack(NotLeaderOrFollower("another node leads the partition"))
        elif replica.log.high_watermark > info.last_offset:
            ack.on_ack(None)
        else:
            role.add_pending_ack(info.last_offset + 1, ack)
        return ack

    def _require_order(
        self, broker_id: int, name: PartitionName, replica: Replica, batch: memoryview
    ) -> None:
        """Raise if the log would take the batch before an earlier one of its producer."""
        if len(batch) < HEADER_SIZE:
            return
        producer = producer_batch(name, parse_header(batch))
        known = replica.log.producers.state
        if producer is None or known.entry(producer.producer_id) is not None:
            return
        is_missed = self._missed.has(name)
        source = GatewaySource(broker_id, name.topic_id)
        if self._unknown_producers.may_take(producer, source, is_behind_unknown=is_missed):
            return
        if is_missed:
            raise _NotFirst(
                f"producer {producer.producer_id} is not known, and sends sequence"
                f" {producer.sequence}: a batch before it may be missing"
            )
        raise _TooEarly("an earlier batch of the producer may be with another gateway")

    def _refused(self, one: GatewaySlice, error: TidelogError) -> GatewayAck:
        # Those behind it are refused as it was, and it comes before them: nothing has got lost.
        if not isinstance(error, _TooEarly | _NotFirst):
            self._missed.note(_name_of(one))
        self._node.counters.gateway.refused_count += 1
        ack = GatewayAck(GatewayResult(error.code, -1, is_referenced=False))
        ack.on_ack(None)
        return ack

    def _led(self, one: GatewaySlice) -> tuple[Replica, ChainPartition]:
        """Return the led replica, and its partition in the chain. Raises if there is none."""
        topic = one.topic_id.bytes
        replica = self._replicas.led_by_id.get(topic, {}).get(one.partition)
        if replica is None:
            raise self._replicas.leaders.refusal(topic, one.partition, is_id=True)
        chain = replica.chain
        is_led = isinstance(chain, ChainPartition) and replica.is_diskless
        if not isinstance(chain, ChainPartition) or not is_led or not may_pass(replica):
            raise NotLeaderOrFollower(f"{replica.partition} takes nothing from gateways now")
        if self.is_full():
            raise RequestTimedOut("the object store takes no records")
        return replica, chain


def _too_large() -> MessageTooLarge:
    """Return the error of a slice that no client can have sent to an honest gateway."""
    return MessageTooLarge("a slice is larger than a request")


def _name_of(one: GatewaySlice) -> PartitionName:
    return PartitionName(one.topic_id, one.partition)
