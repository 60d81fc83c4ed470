"""Takes records of diskless partitions that another zone's node leads: the bytes stay in the zone.

    take       the batch is checked, and kept in a spool file
    chain      it becomes a foreign slice of this node's next object
    forward    once that object is committed, the leader is told where the slice is
    leader     reads it from the bucket, appends it, and puts a reference into its own chain
    answer     comes when the reference is committed, with the offsets

A batch is forwarded in the order of the chain, so a producer's batches stay in order. Where the
leader does not lead any more, or does not answer, the batches of the partition wait in order, at
most as long as their requests (``ParkedBatches``). If it is not known whether a leader has appended
a batch, its producer gets NOT_LEADER_OR_FOLLOWER, and sends it again; an idempotent one gets the
old offset.

**A log must not get a batch whose predecessor was lost** (``BrokenProducers``). So a partition's
batches are with one process of a leader at a time: while that has not answered, nothing is sent to
the next one, and what it does not answer soon then counts as lost. Once a batch is lost, its
producer's later ones are, until it comes again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from uuid import UUID

from crc32c import crc32c
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.errors import (
    CorruptRecordBatch,
    ErrorCode,
    InvalidRequest,
    RequestTimedOut,
    TidelogError,
)
from tidelog_core.log.append_checks import LOG_APPEND_TIME, check_headers
from tidelog_core.log.local_log import LocalLog
from tidelog_core.metadata.image import ClusterImage
from tidelog_core.metadata.records import Broker
from tidelog_core.model import NO_LEADER_EPOCH
from tidelog_core.records.batch import parse_header
from tidelog_core.records.header import patch
from tidelog_core.subscribers import Subscribers

from tidelog_node.diskless.chain.owned_chain import OwnedChain
from tidelog_node.diskless.gateway.broken_producers import (
    BehindLost,
    BrokenProducers,
    ProducerBatch,
    producer_batch,
)
from tidelog_node.diskless.gateway.gateway_objects import GatewayObject, GatewayObjects
from tidelog_node.diskless.gateway.links import NotSent
from tidelog_node.diskless.gateway.parked_batches import RETRY_SECONDS, ParkedBatches
from tidelog_node.diskless.gateway.produced import Produced
from tidelog_node.diskless.gateway.spool import GatewaySpool
from tidelog_node.diskless.gateway.taken_batches import (
    GatewayWaiter,
    SentBatches,
    TakenBatch,
)
from tidelog_node.node_context import NodeContext
from tidelog_node.replica import Replica
from tidelog_node.wire.gateway_append import (
    BYTES_MAX,
    REQUESTS_MAX,
    SLICES_MAX,
    TRANSACTIONAL_ID_BYTES_MAX,
    GatewayAppend,
    GatewayResult,
    GatewaySlice,
    header_rest,
)

logger = logging.getLogger(__name__)

# Batches without an answer; about 1 KiB each. All of them may get into one object, whose slices are
# listed for the worker in one turn of the loop.
PENDING_COUNT_MAX = 10_000
ROOM_PART = 0.75  # a full gateway is not full any more once it owes this part of its limits
LEFT_SECONDS_MAX = 1.0  # for the answer of a leader when another process leads
MOVED = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_id,
    ErrorCode.unknown_topic_or_partition,
)
# A leader closes the connection at ``REQUESTS_MAX`` without an answer; some may be lost on the way.
UNDER_WAY_MAX = REQUESTS_MAX * 9 // 10
# What a log says of a batch whose predecessor it does not have.
SKIPPED = (ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id)


class Gateway:
    """The batches that this node takes for other leaders. For the node's event loop."""

    def __init__(
        self,
        node: NodeContext,
        *,
        spool: GatewaySpool,
        own_chain: Callable[[], Awaitable[OwnedChain]],
        send: Callable[[int, GatewayAppend], asyncio.Future[list[GatewayResult]]],
        append_here: Callable[[int, GatewayAppend], Awaitable[list[GatewayResult]]],
    ) -> None:
        """``send`` tells the broker of that id, as ``LeaderLinks.send``.

        ``append_here`` appends as a leader what the broker of that id has forwarded.
        """
        self._node = node
        self._spool = spool
        self._own_chain = own_chain
        self._append_here = append_here
        self._overlaps = node.static_config.diskless_gateways_overlap_enable
        self._bytes_max = node.static_config.diskless_buffer_max_bytes
        self._send_to = send
        self._loop = asyncio.get_running_loop()
        self._chain: OwnedChain | None = None
        self._opening: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[list[GatewayResult]]] = set()
        self._number = 0
        self._batches: dict[int, TakenBatch] = {}  # without an answer, in order
        # The numbers of an idempotent producer's batches; the first one has no answer.
        self._pending_of: dict[tuple[PartitionName, int], deque[int]] = {}
        self._unnoted: list[TakenBatch] = []  # that wait for a chain
        self._sent: dict[PartitionName, SentBatches] = {}
        self._parked = ParkedBatches()
        self._woken: dict[PartitionName, None] = {}  # parked, may all be sent in the next turn
        self._under_way: Counter[UUID] = Counter()  # requests by the leader's process
        # Parked partitions of a process that has ``UNDER_WAY_MAX`` requests.
        self._crowded: dict[UUID, dict[PartitionName, None]] = {}
        self._broken = BrokenProducers(self._loop.time)
        self._timer: asyncio.TimerHandle | None = None
        self._objects = GatewayObjects(node)
        self.traffic = node.counters.gateway
        self.is_full = False
        self.fullness = Subscribers[[bool]]()
        self._is_closed = False
        self._unsubscribe = node.view.subscribe(self._on_image)

    def takes(self, replica: Replica) -> bool:
        """Whether producers may write to this replica, which another node leads."""
        return replica.is_diskless and replica.is_follower and may_pass(replica)

    def take(
        self,
        replica: Replica,
        batch: memoryview,
        produced: Produced,
        waiter: GatewayWaiter | None,
    ) -> None:
        """Take one batch, which is changed in place. ``waiter`` is told once, later.

        Raises the errors of ``check_headers``, ``StorageError``, ``RequestTimedOut`` if too many
        batches wait, ``NotLeaderOrFollower`` if an earlier batch of the producer is lost and has
        not come again, and ``InvalidRequest`` if no leader would read the transactional id.
        """
        name = replica.name
        producer = producer_batch(name, parse_header(batch))
        self._number += 1
        number = self._number
        if producer is not None:
            self._broken.take(producer, number)
            log = replica.opened_log
            if log is not None and self._broken.blocks(producer, number):
                self._broken.note_log(producer, number, log.producers.state, log.high_watermark)
            if self._broken.blocks(producer, number):
                raise BehindLost("an earlier batch of the producer is missing")
        try:
            offset_count = self._check(replica, batch, produced)
            place = self._spool.write(batch)
        except TidelogError as error:
            # Of a damaged batch nobody knows the producer.
            if producer is not None and not isinstance(error, CorruptRecordBatch):
                self._broken.lose(producer, number)
            raise
        one = TakenBatch(
            number,
            replica,
            produced,
            waiter,
            producer,
            place,
            offset_count,
            crc32c(batch),
            self._loop.time(),
            header_rest=header_rest(batch) if self._overlaps else None,
        )
        self._batches[number] = one
        if producer is not None:
            self._pending_of.setdefault(_producer_of(one), deque()).append(number)
        self.traffic.batch_count += 1
        self.traffic.batch_bytes += one.size_bytes
        self.traffic.pending_bytes += one.size_bytes
        self._note(one)
        self._note_fullness()

    # -- batches that this node gets as a leader: its role may change between two of a producer --

    def owes(self, producer: ProducerBatch) -> bool:
        """Whether batches of the producer and partition are on their way to a leader.

        Those that a former leader has had for too long are lost by this call.
        """
        key = producer.partition, producer.producer_id
        sent = self._sent.get(producer.partition)
        if sent is not None and key in self._pending_of:
            one = next(iter(sent.batches.values()))
            leader = self._leader_of(one)
            if leader is not None:
                self._may_send(one, leader)
        return key in self._pending_of

    def has_lost_before(self, producer: ProducerBatch, log: LocalLog) -> bool:
        """Whether an earlier batch was lost here, is not in the led log, and has not come again."""
        self._number += 1
        if self._broken.blocks(producer, self._number):
            self._broken.note_log(producer, self._number, log.producers.state, log.log_end_offset)
        return self._broken.blocks(producer, self._number)

    def has_come(self, producer: ProducerBatch) -> None:
        """Note that this node takes the batch as the leader."""
        self._broken.has_come(producer)

    def refuse(self, producer: ProducerBatch) -> None:
        """Note a batch that was refused before it came here, or is lost with this node's lead."""
        self._number += 1
        self._broken.lose(producer, self._number)

    def _check(self, replica: Replica, batch: memoryview, produced: Produced) -> int:
        """Make a foreign slice of the batch; return the number of its offsets."""
        transactional_id = produced.transactional_id
        if transactional_id is not None and len(transactional_id) > TRANSACTIONAL_ID_BYTES_MAX:
            # The leader would close the connection, on which other batches wait for answers.
            raise InvalidRequest(
                f"the transactional id has {len(transactional_id)} bytes,"
                f" through a gateway it may have {TRANSACTIONAL_ID_BYTES_MAX}"
            )
        if self._is_closed or len(self._batches) >= PENDING_COUNT_MAX:
            raise RequestTimedOut("too many batches wait for their leaders")
        ((_, header),) = check_headers(batch, replica.config, now_ms=self._node.clock_ms())
        patch(batch, 0, base_offset=0, leader_epoch=NO_LEADER_EPOCH)
        return header.last_offset_delta + 1

    def on_deposed(self, chain: OwnedChain) -> None:
        """Put what the chain has not committed into the next one: nobody can have seen it."""
        if chain is not self._chain:
            return
        self._chain = None
        self._unnoted = [one for one in self._batches.values() if one.made is None]
        self._open()

    def close(self) -> None:
        """Give up what is pending."""
        self._is_closed = True
        self._unsubscribe()
        self._objects.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._opening is not None:
            self._opening.cancel()
        for task in self._tasks:
            task.cancel()
        for one in tuple(self._batches.values()):
            self._end(one, ErrorCode.not_leader_or_follower, "this node is stopping")
        self._spool.close()

    # -- into the chain --

    def _note(self, one: TakenBatch) -> None:
        chain = self._chain
        if chain is not None and not self._unnoted:
            if chain.note_foreign(one.number, one.files):
                return
            if not chain.is_deposed:
                # Its request may not wait for it yet.
                stopping = ErrorCode.not_leader_or_follower, "this node is stopping"
                self._loop.call_soon(self._end, one, *stopping)
                return
        self._unnoted.append(one)
        self._open()

    def _open(self) -> None:
        if self._opening is None and self._unnoted and not self._is_closed:
            self._opening = asyncio.create_task(self._open_chain(), name="gateway's chain")

    async def _open_chain(self) -> None:
        try:
            chain = await self._own_chain()
        except TidelogError as error:
            logger.warning("a gateway has no chain", extra={"reason": str(error)})
            unnoted, self._unnoted = self._unnoted, []
            for one in unnoted:
                self._lose(one, error.code, str(error))
            return
        finally:
            self._opening = None
        if chain is not self._chain:
            self._chain = chain
            chain.foreign_committed.subscribe(partial(self._on_committed, chain))
        unnoted, self._unnoted = self._unnoted, []
        for one in unnoted:
            if one.number in self._batches:
                self._note(one)

    def _on_committed(
        self, chain: OwnedChain, sequence: int, placed: Sequence[tuple[int, int]]
    ) -> None:
        made = GatewayObject(chain, sequence, len(placed))
        found: list[TakenBatch] = []
        for number, position in placed:
            one = self._batches.get(number)
            if one is None:  # Given up before: no leader will hear of it.
                self._objects.settle(made)
                continue
            self._spool.release(one.place)
            one.made, one.position = made, position
            found.append(one)
        self._forward(found)

    # -- to the leaders --

    def _forward(self, batches: Iterable[TakenBatch]) -> None:
        """Tell the leaders of committed batches, which are in the order of the chain."""
        requests = _Requests()
        for one in batches:
            if one.number not in self._batches:
                continue
            if self._is_behind_lost(one):
                self._end(one, ErrorCode.not_leader_or_follower, "a batch before it is missing")
            elif one.name in self._parked:
                self._park(one)
            else:
                self._place(one, requests)
        self._send_all(requests)

    def _place(self, one: TakenBatch, requests: _Requests) -> None:
        """Add the batch to its leader's requests, or park it if there can be none."""
        leader = self._leader_of(one)
        if leader is None or not self._may_send(one, leader):
            self._park(one)
            return
        process = leader.incarnation
        if self._under_way[process] >= UNDER_WAY_MAX:
            self._crowded.setdefault(process, {})[one.name] = None
            self._park(one)
            return
        sent = self._sent.setdefault(one.name, SentBatches(process))
        sent.batches[one.number] = one
        if requests.add(one, leader):
            self._under_way[process] += 1

    def _send_all(self, requests: _Requests) -> None:
        for leader, made, batches in requests:
            self._send(leader, made, batches)

    def _is_behind_lost(self, one: TakenBatch) -> bool:
        return one.producer is not None and self._broken.blocks(one.producer, one.number)

    def _leader_of(self, one: TakenBatch) -> Broker | None:
        image = self._node.view.image
        found = image.partition(one.replica.partition)
        if found is None or found.topic_id != one.name.topic_id:
            return None
        return image.brokers.get(found.leader)

    def _may_send(self, one: TakenBatch, leader: Broker) -> bool:
        """Return whether no other process owes an answer about the partition.

        What it has pending for too long is lost: it may be the one before ``one``.
        """
        sent = self._sent.get(one.name)
        if sent is None or sent.leader == leader.incarnation:
            return True
        now = self._loop.time()
        if sent.left_s is None:
            sent.left_s = now
        if now - sent.left_s >= LEFT_SECONDS_MAX:
            self._lose_sent(list(sent.batches.values()), "its former leader has not answered")
            self._wake(one.name)
        return False

    def _send(self, leader: Broker, made: GatewayObject, batches: Sequence[TakenBatch]) -> None:
        chain = made.chain
        request = GatewayAppend(
            chain.name.chain_id,
            chain.committed_end,
            made.sequence,
            [
                GatewaySlice(
                    *one.name,
                    one.position,
                    one.size_bytes,
                    one.crc,
                    one.produced.version,
                    one.produced.acks,
                    one.produced.timeout_ms,
                    one.produced.transactional_id,
                    one.header_rest,
                )
                for one in batches
            ],
        )
        results: asyncio.Future[list[GatewayResult]]
        if leader.broker_id == self._node.broker_id:
            task = asyncio.ensure_future(self._append_here(leader.broker_id, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            results = task
        else:
            results = self._send_to(leader.broker_id, request)
        results.add_done_callback(partial(self._on_results, leader.incarnation, batches))

    def _on_results(
        self,
        process: UUID,
        batches: Sequence[TakenBatch],
        done: asyncio.Future[list[GatewayResult]],
    ) -> None:
        self._note_answered(process)
        error = None if done.cancelled() else done.exception()
        away: set[PartitionName] = set()  # whose leader is not there: to be tried again later
        if isinstance(error, NotSent):
            for one in batches:
                away.add(one.name)
                if self._take_back(one):
                    self._park(one)
        elif done.cancelled() or error is not None:
            logger.warning("a leader has not answered a gateway", extra={"reason": repr(error)})
            self._lose_sent(batches, "the leader has not answered")
        else:
            for one, result in zip(batches, done.result(), strict=True):
                if result.error_code in MOVED:
                    away.add(one.name)
                else:
                    away.discard(one.name)
                self._take_result(one, result)
        for name in dict.fromkeys(one.name for one in batches):
            if name in self._parked and name not in self._sent and name not in away:
                self._wake(name)

    def _note_answered(self, process: UUID) -> None:
        """Let partitions go on that wait for answers of the process, once it has given some."""
        self._under_way[process] -= 1
        if self._under_way[process] > ROOM_PART * UNDER_WAY_MAX:
            return
        if not self._under_way[process]:
            del self._under_way[process]
        for name in self._crowded.pop(process, ()):
            if name in self._parked and name not in self._sent:
                self._wake(name)

    def _take_result(self, one: TakenBatch, result: GatewayResult) -> None:
        made = one.made
        assert made is not None
        if result.is_referenced:
            made.refer(one.name, result.base_offset + one.offset_count)
        if not self._take_back(one):
            return  # It is lost already.
        code = ErrorCode(result.error_code)
        if code is ErrorCode.none:
            self.traffic.acks.observe(self._loop.time() - one.taken_s)
            if one.waiter is not None:
                one.waiter.on_placed(result.base_offset)
            self._end(one)
        elif (code in MOVED and not result.is_referenced) or (
            code in SKIPPED and self._is_behind_another(one)
        ):
            self._park(one)
        else:
            if code in SKIPPED and self._is_behind_lost(one):
                code = ErrorCode.not_leader_or_follower  # Both come again then, in order.
            self._lose(one, code, f"the leader of {one.replica.partition} refuses the batch")

    def _is_behind_another(self, one: TakenBatch) -> bool:
        """Return whether an earlier batch of its producer is on its way."""
        numbers = self._pending_of.get(_producer_of(one))
        return numbers is not None and numbers[0] < one.number

    def _take_back(self, one: TakenBatch) -> bool:
        """Return whether the batch was with a leader, and has an answer now."""
        sent = self._sent.get(one.name)
        if sent is None or sent.batches.pop(one.number, None) is None:
            return False
        if not sent.batches:
            del self._sent[one.name]
        return True

    def _lose_sent(self, batches: Iterable[TakenBatch], message: str) -> None:
        """Give up batches that a leader may have appended."""
        for one in batches:
            if self._take_back(one):
                assert one.made is not None
                one.made.unknown.add(one.replica)
                self._lose(one, ErrorCode.not_leader_or_follower, message)

    # -- waiting for a leader --

    def _park(self, one: TakenBatch) -> None:
        if self._loop.time() >= one.deadline_s or self._is_closed or one.replica.is_dropped:
            self._lose(one, ErrorCode.not_leader_or_follower, "the partition has no leader")
            return
        self._parked.park(one, self._loop.time())
        self.traffic.waiting_count = len(self._parked)
        self._node.view.nudge()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None and not self._is_closed:
            self._timer = self._loop.call_later(RETRY_SECONDS, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._loop.time()
        for one in self._parked.expired(now):
            self._lose(one, ErrorCode.not_leader_or_follower, "the partition has no leader")
        self._try(self._parked.due(now))
        if not self._parked.is_idle:
            self._set_timer()

    def _on_image(self, _: ClusterImage, changed_topics: frozenset[str]) -> None:
        if len(self._parked):
            self._try(self._parked.of_topics(changed_topics))

    def _try(self, names: Iterable[PartitionName]) -> None:
        """Send the first batch of each of the partitions: the others follow if it is taken."""
        firsts: list[TakenBatch] = []
        for name in names:
            if name in self._sent:  # The answer wakes the partition.
                self._give_up_late(name)
                continue
            one = self._parked.take_first(name)
            while one is not None and self._is_behind_lost(one):
                self._end(one, ErrorCode.not_leader_or_follower, "a batch before it is missing")
                one = self._parked.take_first(name)
            if one is not None:
                firsts.append(one)
        requests = _Requests()
        # In the order of the chain: objects are sent in the order in which they are met here.
        for one in sorted(firsts, key=lambda one: one.number):
            self._place(one, requests)
        self._send_all(requests)
        self.traffic.waiting_count = len(self._parked)

    def _give_up_late(self, name: PartitionName) -> None:
        """Lose what a former leader has had for too long."""
        one = self._parked.first(name)
        leader = None if one is None else self._leader_of(one)
        if one is not None and leader is not None:
            self._may_send(one, leader)

    def _wake(self, name: PartitionName) -> None:
        """Send all batches of the partition in the next turn."""
        if not self._woken:
            self._loop.call_soon(self._forward_woken)
        self._woken[name] = None

    def _forward_woken(self) -> None:
        woken, self._woken = self._woken, {}
        batches = [one for name in woken for one in self._parked.take_all(name)]
        self._forward(sorted(batches, key=lambda one: one.number))
        self.traffic.waiting_count = len(self._parked)

    # -- the end of a batch --

    def _lose(self, one: TakenBatch, code: ErrorCode, message: str) -> None:
        """End a batch that was not appended, or of which nobody knows."""
        if one.producer is not None:
            self._broken.lose(one.producer, one.number, self._later_of(one))
        self._end(one, code, message)

    def _later_of(self, one: TakenBatch) -> Iterator[tuple[int, ProducerBatch]]:
        """Yield the later batches of the producer without an answer, with their numbers."""
        for number in self._pending_of.get(_producer_of(one), ()):
            later = self._batches.get(number)
            if number > one.number and later is not None and later.producer is not None:
                yield number, later.producer

    def _end(self, one: TakenBatch, code: ErrorCode = ErrorCode.none, message: str = "") -> None:
        if self._batches.pop(one.number, None) is None:
            return
        self.traffic.pending_bytes -= one.size_bytes
        numbers = self._pending_of.get(_producer_of(one))
        while numbers and numbers[0] not in self._batches:
            numbers.popleft()
        if not numbers:
            self._pending_of.pop(_producer_of(one), None)
        if code is not ErrorCode.none:
            self.traffic.lost_count += 1
            if one.waiter is not None:
                one.waiter.fail(code, message)
        if one.made is None:
            self._spool.release(one.place)
        else:
            self._objects.settle(one.made)
        self._note_fullness()

    def _note_fullness(self) -> None:
        part = ROOM_PART if self.is_full else 1.0
        is_many = len(self._batches) >= part * PENDING_COUNT_MAX
        is_full = is_many or self.traffic.pending_bytes >= part * self._bytes_max
        if is_full != self.is_full:
            self.is_full = is_full
            self.fullness.notify(is_full)


def _producer_of(one: TakenBatch) -> tuple[PartitionName, int]:
    """Return the partition and the producer's id, -1 for a producer that is not idempotent."""
    return one.name, -1 if one.producer is None else one.producer.producer_id


def may_pass(replica: Replica) -> bool:
    """Whether batches of the topic may go through a gateway: nobody changes their bytes.

    A leader would, of a topic that is compacted, has a codec of its own, or the time of the append.
    """
    return not replica.inspects_records and not _has_append_time(replica)


def _has_append_time(replica: Replica) -> bool:
    return replica.config.message_timestamp_type == LOG_APPEND_TIME


class _Requests:
    """Requests to leaders, each of batches of one object, in the order in which they are met."""

    def __init__(self) -> None:
        self._all: list[tuple[Broker, GatewayObject, list[TakenBatch]]] = []
        # The last request to each leader about each object, and its bytes.
        self._last: dict[tuple[int, GatewayObject], tuple[list[TakenBatch], int]] = {}

    def __iter__(self) -> Iterator[tuple[Broker, GatewayObject, list[TakenBatch]]]:
        """Yield the requests."""
        return iter(self._all)

    def add(self, one: TakenBatch, leader: Broker) -> bool:
        """Add a committed batch; return whether it is the first one of a request."""
        made = one.made
        assert made is not None
        key = leader.broker_id, made
        last = self._last.get(key)
        if last is not None:
            batches, size_bytes = last
            size_bytes += one.size_bytes
            if len(batches) < SLICES_MAX and size_bytes <= BYTES_MAX:
                batches.append(one)
                self._last[key] = batches, size_bytes
                return False
        batches = [one]
        self._last[key] = batches, one.size_bytes
        self._all.append((leader, made, batches))
        return True
