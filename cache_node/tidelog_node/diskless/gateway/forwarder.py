"""Forwards a gateway's committed batches to their leaders, and handles the answers.

    forward    batches of an object are committed
    send       one request to each leader names its batches of the object
    answer     the batch has its offsets, or is refused, or waits for the next leader
    park       there is no leader to send to: the partition's batches wait in order

Only one leader process at a time has a partition's batches: while it has not answered, nothing is
sent to the next leader. If it then does not answer soon, its batches count as lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from uuid import UUID

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.errors import ErrorCode
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import Broker

from tidelog_node.diskless.chain.chain_fullness import stays_full
from tidelog_node.diskless.gateway.gateway_batches import GatewayBatch, SentBatches
from tidelog_node.diskless.gateway.gateway_objects import GatewayObject
from tidelog_node.diskless.gateway.gateway_topics import may_pass
from tidelog_node.diskless.gateway.leader_requests import LeaderRequests, request_of
from tidelog_node.diskless.gateway.links import NotSent
from tidelog_node.diskless.gateway.parked_batches import RETRY_SECONDS, ParkedBatches
from tidelog_node.diskless.gateway.pending_batches import PendingBatches
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.wire.gateway_append import REQUESTS_MAX, GatewayAppend, GatewayResult

logger = logging.getLogger(__name__)

LEFT_SECONDS_MAX = 1.0  # for the answer of a leader when another process leads
MOVED = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_id,
    ErrorCode.unknown_topic_or_partition,
)
# A leader closes the connection at ``REQUESTS_MAX`` without an answer; some may be lost on the way.
UNDER_WAY_MAX = REQUESTS_MAX * 9 // 10
# The errors of a log that lacks the batch before.
SKIPPED = (ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id)

NO_LEADER = ErrorCode.not_leader_or_follower, "the partition has no leader"
BEHIND_LOST = ErrorCode.not_leader_or_follower, "a batch before it is missing"


class Forwarder:
    """The committed batches of one gateway. For the node's event loop."""

    def __init__(
        self,
        node: NodeContext,
        batches: PendingBatches,
        *,
        send: Callable[[int, GatewayAppend], asyncio.Future[list[GatewayResult]]],
        append_here: Callable[[int, GatewayAppend], Awaitable[list[GatewayResult]]],
    ) -> None:
        """``send`` and ``append_here`` as those of ``Gateway``."""
        self._node = node
        self._batches = batches
        self._send_to = send
        self._append_here = append_here
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[list[GatewayResult]]] = set()
        self._sent: dict[PartitionName, SentBatches] = {}
        self._parked = ParkedBatches()
        self._woken: dict[PartitionName, None] = {}  # parked, may all be sent in the next turn
        self._under_way: Counter[UUID] = Counter()  # requests by the leader's process
        # Parked partitions whose leader's process has ``UNDER_WAY_MAX`` requests.
        self._held_back: dict[UUID, dict[PartitionName, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._traffic = node.counters.gateway
        self._is_closed = False
        self._unsubscribe = node.view.subscribe(self._on_image)

    def close(self) -> None:
        """Send nothing more."""
        self._is_closed = True
        self._unsubscribe()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def forward(self, batches: Iterable[GatewayBatch]) -> None:
        """Forward committed batches to their leaders. They must be in the order of the chain."""
        requests = LeaderRequests()
        for one in batches:
            if one not in self._batches:
                continue
            if self._batches.is_behind_lost(one):
                self._batches.end(one, *BEHIND_LOST)
            elif one.name in self._parked:
                self._park(one)
            else:
                self._place(one, requests)
        self._send_all(requests)

    def give_up_late(self, name: PartitionName) -> None:
        """Note as lost the batches that a former leader has had for too long."""
        sent = self._sent.get(name)
        if sent is None:
            return
        one = next(iter(sent.batches.values()))
        leader = self._leader_of(one)
        if leader is not None:
            self._may_send(name, leader)

    # -- to the leaders --

    def _place(self, one: GatewayBatch, requests: LeaderRequests) -> None:
        """Add the batch to its leader's requests, or park it if there can be none."""
        leader = self._leader_of(one)
        if leader is None or not self._may_send(one.name, leader):
            self._park(one)
            return
        process = leader.incarnation
        if self._under_way[process] >= UNDER_WAY_MAX:
            self._held_back.setdefault(process, {})[one.name] = None
            self._park(one)
            return
        sent = self._sent.setdefault(one.name, SentBatches(process))
        sent.batches[one.number] = one
        if requests.add(one, leader):
            self._under_way[process] += 1

    def _leader_of(self, one: GatewayBatch) -> Broker | None:
        image = self._node.view.image
        found = image.partition(one.replica.partition)
        if found is None or found.topic_id != one.name.topic_id:
            return None
        return image.brokers.get(found.leader)

    def _may_send(self, name: PartitionName, leader: Broker) -> bool:
        """Return whether no other process owes an answer about the partition.

        Batches that it has had for too long count as lost: one may be the batch before the next.
        """
        sent = self._sent.get(name)
        if sent is None or sent.leader == leader.incarnation:
            return True
        now = self._loop.time()
        if sent.left_s is None:
            sent.left_s = now
        if now - sent.left_s >= LEFT_SECONDS_MAX:
            self._lose_sent(list(sent.batches.values()), "its former leader has not answered")
            self._wake(name)
        return False

    def _send_all(self, requests: LeaderRequests) -> None:
        for leader, made, batches in requests:
            self._send(leader, made, batches)

    def _send(self, leader: Broker, made: GatewayObject, batches: Sequence[GatewayBatch]) -> None:
        request = request_of(made, batches)
        results: asyncio.Future[list[GatewayResult]]
        if leader.broker_id == self._node.broker_id:
            task = asyncio.ensure_future(self._append_here(leader.broker_id, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            results = task
        else:
            results = self._send_to(leader.broker_id, request)
        results.add_done_callback(partial(self._on_results, leader.incarnation, batches))

    # -- their answers --

    def _on_results(
        self,
        process: UUID,
        batches: Sequence[GatewayBatch],
        done: asyncio.Future[list[GatewayResult]],
    ) -> None:
        """Handle the end of a request, and send the parked batches of its partitions.

        Those of a partition whose leader was not there are tried again later, by the timer.
        """
        self._note_answered(process)
        error = None if done.cancelled() else done.exception()
        leaderless: set[PartitionName] = set()
        if isinstance(error, NotSent):
            leaderless = {one.name for one in batches}
            for one in batches:
                if self._take_back(one):
                    self._park(one)
        elif done.cancelled() or error is not None:
            logger.warning("a leader has not answered a gateway", extra={"reason": repr(error)})
            self._lose_sent(batches, "the leader has not answered")
        else:
            leaderless = self._take_results(batches, done.result())
        for name in dict.fromkeys(one.name for one in batches):
            if name in self._parked and name not in self._sent and name not in leaderless:
                self._wake(name)

    def _take_results(
        self, batches: Sequence[GatewayBatch], results: Sequence[GatewayResult]
    ) -> set[PartitionName]:
        """Take the answers; return the partitions that the broker does not lead by their last."""
        leaderless: set[PartitionName] = set()
        for one, result in zip(batches, results, strict=True):
            if result.error_code in MOVED:
                leaderless.add(one.name)
            else:
                leaderless.discard(one.name)
            self._take_result(one, result)
        return leaderless

    def _note_answered(self, process: UUID) -> None:
        """Send batches of partitions that wait for answers of the process, now that some came."""
        self._under_way[process] -= 1
        if stays_full(self._under_way[process], UNDER_WAY_MAX, was_full=True):
            return
        if not self._under_way[process]:
            del self._under_way[process]
        for name in self._held_back.pop(process, ()):
            if name in self._parked and name not in self._sent:
                self._wake(name)

    def _take_result(self, one: GatewayBatch, result: GatewayResult) -> None:
        made = one.gateway_object
        assert made is not None
        if result.is_referenced:
            made.refer(one.name, result.base_offset + one.offset_count)
        if not self._take_back(one):
            return  # It is lost already.
        code = ErrorCode(result.error_code)
        if code is ErrorCode.none:
            self._traffic.acks.observe(self._loop.time() - one.taken_s)
            if one.producer is not None:
                self._batches.broken.acknowledge(one.producer)
            if one.waiter is not None:
                one.waiter.on_placed(result.base_offset)
            self._batches.end(one)
        elif (code in MOVED and not result.is_referenced) or (
            code in SKIPPED and self._batches.is_behind_another(one)
        ):
            self._park(one)
        else:
            where = one.replica.partition
            code = self._code_for_producer(one, code)
            self._batches.lose(one, code, f"the leader of {where} refuses the batch")

    def _code_for_producer(self, one: GatewayBatch, code: ErrorCode) -> ErrorCode:
        """Return the error for a refused batch; a gap is one after which it comes again.

        The batch before comes again too, so both come in order. It may have reached the leader by
        another way, and this answer has waited for the commits of others: librdkafka would take the
        gap for the end of the producer, if it has got the other answer first.
        """
        is_gap = code is ErrorCode.out_of_order_sequence_number or (
            code in SKIPPED and self._batches.is_behind_lost(one)
        )
        return ErrorCode.not_leader_or_follower if is_gap else code

    def _take_back(self, one: GatewayBatch) -> bool:
        """Return whether the batch was with a leader, and has an answer now."""
        sent = self._sent.get(one.name)
        if sent is None or sent.batches.pop(one.number, None) is None:
            return False
        if not sent.batches:
            del self._sent[one.name]
        return True

    def _lose_sent(self, batches: Iterable[GatewayBatch], message: str) -> None:
        """Give up batches that a leader may have appended."""
        for one in batches:
            if self._take_back(one):
                assert one.gateway_object is not None
                one.gateway_object.unknown.add(one.replica)
                self._batches.lose(one, ErrorCode.not_leader_or_follower, message)

    # -- waiting for a leader --

    def _park(self, one: GatewayBatch) -> None:
        if self._loop.time() >= one.deadline_s or self._is_closed or not _is_passed(one.replica):
            self._batches.lose(one, *NO_LEADER)
            return
        self._parked.park(one, self._loop.time())
        self._traffic.waiting_count = len(self._parked)
        self._node.view.nudge()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None and not self._is_closed:
            self._timer = self._loop.call_later(RETRY_SECONDS, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._loop.time()
        for one in self._parked.expired(now):
            self._batches.lose(one, *NO_LEADER)
        self._try(self._parked.due(now))
        if not self._parked.is_idle:
            self._set_timer()

    def _on_image(self, _: ClusterImage, changed_topics: frozenset[str]) -> None:
        if len(self._parked):
            self._try(self._parked.of_topics(changed_topics))

    def _try(self, names: Iterable[PartitionName]) -> None:
        """Send the first batch of each of the partitions; the others follow if it is accepted."""
        firsts: list[GatewayBatch] = []
        for name in names:
            first = self._parked.first(name)
            if first is not None and not _is_passed(first.replica):
                for left in self._parked.take_all(name):
                    self._batches.lose(left, *NO_LEADER)
                continue
            if name in self._sent:  # The answer wakes the partition.
                if first is not None:
                    self.give_up_late(name)
                continue
            one = self._parked.take_first(name)
            while one is not None and self._batches.is_behind_lost(one):
                self._batches.end(one, *BEHIND_LOST)
                one = self._parked.take_first(name)
            if one is not None:
                firsts.append(one)
        requests = LeaderRequests()
        # In the order of the chain: objects are sent in the order in which they are met here.
        for one in sorted(firsts, key=lambda one: one.number):
            self._place(one, requests)
        self._send_all(requests)
        self._traffic.waiting_count = len(self._parked)

    def _wake(self, name: PartitionName) -> None:
        """Send all batches of the partition in the next turn."""
        if not self._woken:
            self._loop.call_soon(self._forward_woken)
        self._woken[name] = None

    def _forward_woken(self) -> None:
        woken, self._woken = self._woken, {}
        batches = [one for name in woken for one in self._parked.take_all(name)]
        self.forward(sorted(batches, key=lambda one: one.number))
        self._traffic.waiting_count = len(self._parked)


def _is_passed(replica: Replica) -> bool:
    """Whether any leader may take batches of the partition from this gateway.

    It has become replicated, for example. Then producers need not wait to go to the leader.
    """
    return replica.is_diskless and not replica.is_dropped and may_pass(replica)
