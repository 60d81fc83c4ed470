"""Takes records of diskless partitions that another zone's node leads: the bytes stay in the zone.

    take       the batch is checked, and kept in a spool file
    chain      it becomes a foreign slice of this node's next object
    forward    once that object is committed, the leader is told where the slice is
    leader     reads it from the bucket, appends it, and puts a reference into its own chain
    answer     comes when the reference is committed, with the offsets

A batch is forwarded in the order of the chain, so a producer's batches stay in order. Where the
leader does not lead any more, the batches of the partition wait in order for the next leader, at
most as long as their requests. If it is not known whether a leader has appended a batch, its
producer gets NOT_LEADER_OR_FOLLOWER, and sends it again; an idempotent one gets the old offset.

**Objects stay while a reference to their slices is needed.** The leader's answer says where the
references end. If none came, nobody knows whether there is one. A leader that has not made it
after ``diskless.wal.max.age.ms`` never will, so the log's end at that time is an end of it. A node
that is not in the ISR does not know the log's end, and keeps the object.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from crc32c import crc32c
from tidelog_core.config import INT64_MAX
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.errors import ErrorCode, InvalidRequest, RequestTimedOut, TidelogError
from tidelog_core.log.append_checks import LOG_APPEND_TIME, check_headers
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.model import NO_LEADER, NO_LEADER_EPOCH
from tidelog_core.records.header import patch
from tidelog_core.subscribers import Subscribers

from tidelog_node.diskless.chain.owned_chain import OwnedChain
from tidelog_node.diskless.gateway.links import NotSent
from tidelog_node.diskless.gateway.spool import GatewaySpool
from tidelog_node.node_context import NodeContext
from tidelog_node.replica import Replica
from tidelog_node.tier.wal_messages import FileRange, SliceFiles
from tidelog_node.wire.gateway_append import (
    SLICES_MAX,
    TRANSACTIONAL_ID_BYTES_MAX,
    GatewayAppend,
    GatewayResult,
    GatewaySlice,
)

logger = logging.getLogger(__name__)

# Batches without an answer; about 1 KiB each. All of them may get into one object, whose slices are
# listed for the worker in one turn of the loop.
OWED_COUNT_MAX = 10_000
ROOM_PART = 0.75  # a full gateway is not full any more once it owes this part of its limits
WAIT_SECONDS_MAX = 30.0  # for another leader
RETRY_SECONDS = 0.25
MOVED = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_id,
    ErrorCode.unknown_topic_or_partition,
)


class GatewayWaiter(Protocol):
    """Waits for what becomes of a batch."""

    def on_placed(self, base_offset: int) -> None:
        """The batch is committed, with offsets from here on."""

    def fail(self, code: ErrorCode, message: str) -> None:
        """The batch has failed, or it is not known."""


class Produced:
    """The request that has brought a batch."""

    __slots__ = ("acks", "timeout_ms", "transactional_id", "version")

    def __init__(
        self, version: int, acks: int, timeout_ms: int, transactional_id: bytes | None
    ) -> None:
        self.version = version
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.transactional_id = transactional_id


class _Object:
    """A committed object of the chain, and what is known of references to its foreign slices."""

    __slots__ = ("chain", "ends", "left_count", "sequence", "unknown")

    def __init__(self, chain: OwnedChain, sequence: int, count: int) -> None:
        self.chain = chain
        self.sequence = sequence
        self.left_count = count  # slices without a result
        self.ends: dict[PartitionName, int] = {}
        self.unknown: set[Replica] = set()  # a reference may come, or there may be one


class _Slice:
    """A batch from the request that brings it to its answer."""

    __slots__ = (
        "batch_count",
        "crc",
        "deadline",
        "files",
        "name",
        "number",
        "object",
        "offset_count",
        "place",
        "position",
        "produced",
        "replica",
        "waiter",
    )

    def __init__(  # noqa: PLR0917
        self,
        number: int,
        replica: Replica,
        produced: Produced,
        waiter: GatewayWaiter | None,
        place: FileRange,
        offset_count: int,
        crc: int,
        deadline: float,
    ) -> None:
        self.number = number
        self.replica = replica
        self.name = PartitionName(replica.topic_id, replica.partition.partition)
        self.produced = produced
        self.waiter = waiter
        self.place = place
        self.files = SliceFiles(*self.name, NO_LEADER_EPOCH, -1, offset_count, (place,), True)
        self.offset_count = offset_count
        self.crc = crc
        self.deadline = deadline  # the loop's time
        self.object: _Object | None = None  # None: it is not committed
        self.position = 0

    @property
    def size_bytes(self) -> int:
        return self.place.end - self.place.start


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
        seal_former: Callable[[ChainName], Awaitable[None]],
    ) -> None:
        """``send`` tells the broker of that id, as ``LeaderLinks.send``.

        ``append_here`` appends as a leader what the broker of that id has forwarded.
        ``seal_former`` is called once, when the first chain is there.
        """
        self._node = node
        self._spool = spool
        self._own_chain = own_chain
        self._append_here = append_here
        self._seal_former: Callable[[ChainName], Awaitable[None]] | None = seal_former
        self._sealing: asyncio.Future[None] | None = None
        self._bytes_max = node.static_config.diskless_buffer_max_bytes
        self._send_to = send
        self._loop = asyncio.get_running_loop()
        self._chain: OwnedChain | None = None
        self._opening: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[list[GatewayResult]]] = set()
        self._number = 0
        self._slices: dict[int, _Slice] = {}  # without an answer, in order
        self._unnoted: list[_Slice] = []  # that wait for a chain
        self._parked: dict[PartitionName, deque[_Slice]] = {}  # that wait for a leader
        self._timer: asyncio.TimerHandle | None = None
        # Objects of which a reference may come, and until when.
        self._unknown: deque[tuple[float, _Object]] = deque()
        self._age_timer: asyncio.TimerHandle | None = None
        self._owed_bytes = 0
        self.is_full = False
        self.fullness = Subscribers[[bool]]()
        self._is_closed = False
        self._unsubscribe = node.view.subscribe(lambda _, __: self._retry_parked())

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
        batches wait, and ``InvalidRequest`` if no leader would read the transactional id.
        """
        name = produced.transactional_id
        if name is not None and len(name) > TRANSACTIONAL_ID_BYTES_MAX:
            # The leader would close the connection, on which other batches wait for answers.
            raise InvalidRequest(
                f"the transactional id has {len(name)} bytes,"
                f" through a gateway it may have {TRANSACTIONAL_ID_BYTES_MAX}"
            )
        if self._is_closed or len(self._slices) >= OWED_COUNT_MAX:
            raise RequestTimedOut("too many batches wait for their leaders")
        ((_, header),) = check_headers(batch, replica.config, now_ms=self._node.clock_ms())
        patch(batch, 0, base_offset=0, leader_epoch=NO_LEADER_EPOCH)
        wait_s = min(max(produced.timeout_ms, 0) / 1000, WAIT_SECONDS_MAX)
        self._number += 1
        one = _Slice(
            self._number,
            replica,
            produced,
            waiter,
            self._spool.write(batch),
            header.last_offset_delta + 1,
            crc32c(batch),
            self._loop.time() + wait_s,
        )
        self._slices[one.number] = one
        self._owed_bytes += one.size_bytes
        self._note(one)
        self._note_fullness()

    def on_deposed(self, chain: OwnedChain) -> None:
        """Put what the chain has not committed into the next one: nobody can have seen it."""
        if chain is not self._chain:
            return
        self._chain = None
        self._unnoted = [one for one in self._slices.values() if one.object is None]
        self._open()

    def close(self) -> None:
        """Give up what is owed."""
        self._is_closed = True
        self._unsubscribe()
        for timer in (self._age_timer, self._timer):
            if timer is not None:
                timer.cancel()
        for work in (self._opening, self._sealing):
            if work is not None:
                work.cancel()
        for task in self._tasks:
            task.cancel()
        for one in tuple(self._slices.values()):
            self._end(one, ErrorCode.not_leader_or_follower, "this node is stopping")
        self._spool.close()

    # -- into the chain --

    def _note(self, one: _Slice) -> None:
        chain = self._chain
        if chain is not None and not self._unnoted:
            if chain.note_foreign(one.number, one.files):
                return
            if not chain.is_deposed:
                self._end(one, ErrorCode.not_leader_or_follower, "this node is stopping")
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
                self._end(one, error.code, str(error))
            return
        finally:
            self._opening = None
        if chain is not self._chain:
            self._chain = chain
            chain.foreign_committed.subscribe(partial(self._on_committed, chain))
        if self._seal_former is not None:
            self._sealing = asyncio.ensure_future(self._seal_former(chain.name))
            self._seal_former = None
        unnoted, self._unnoted = self._unnoted, []
        for one in unnoted:
            if one.number in self._slices:
                self._note(one)

    def _on_committed(
        self, chain: OwnedChain, sequence: int, placed: Sequence[tuple[int, int]]
    ) -> None:
        made = _Object(chain, sequence, len(placed))
        found: list[_Slice] = []
        for number, position in placed:
            one = self._slices.get(number)
            if one is None:  # Given up before: no leader will hear of it.
                self._settle(made)
                continue
            self._spool.release(one.place)
            one.object, one.position = made, position
            found.append(one)
        self._forward(found)

    # -- to the leaders --

    def _forward(self, slices: Iterable[_Slice]) -> None:
        """Tell the leaders of committed slices, which are in the order of the chain."""
        groups: dict[tuple[int, _Object], list[_Slice]] = {}
        for one in slices:
            leader = self._leader_of(one)
            if one.name in self._parked or leader == NO_LEADER:
                self._park(one)
            else:
                assert one.object is not None
                groups.setdefault((leader, one.object), []).append(one)
        for (leader, made), some in groups.items():
            for at in range(0, len(some), SLICES_MAX):
                self._send(leader, made, some[at : at + SLICES_MAX])

    def _leader_of(self, one: _Slice) -> int:
        image = self._node.view.image
        found = image.partition(one.replica.partition)
        return NO_LEADER if found is None or found.topic_id != one.name.topic_id else found.leader

    def _send(self, leader: int, made: _Object, slices: list[_Slice]) -> None:
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
                )
                for one in slices
            ],
        )
        results: asyncio.Future[list[GatewayResult]]
        if leader == self._node.broker_id:
            task = asyncio.ensure_future(self._append_here(leader, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            results = task
        else:
            results = self._send_to(leader, request)
        results.add_done_callback(partial(self._on_results, slices))

    def _on_results(
        self, slices: Sequence[_Slice], done: asyncio.Future[list[GatewayResult]]
    ) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, NotSent):
            for one in slices:
                self._park(one)
            return
        if done.cancelled() or error is not None:
            logger.warning("a leader has not answered a gateway", extra={"reason": repr(error)})
            for one in slices:
                if one.object is not None:
                    one.object.unknown.add(one.replica)
                self._end(one, ErrorCode.not_leader_or_follower, "the leader has not answered")
            return
        for one, result in zip(slices, done.result(), strict=True):
            self._take_result(one, result)

    def _take_result(self, one: _Slice, result: GatewayResult) -> None:
        made = one.object
        assert made is not None
        if result.is_referenced:
            end_offset = result.base_offset + one.offset_count
            made.ends[one.name] = max(end_offset, made.ends.get(one.name, 0))
        code = ErrorCode(result.error_code)
        if code is ErrorCode.none:
            if one.waiter is not None:
                one.waiter.on_placed(result.base_offset)
            self._end(one)
        elif code in MOVED and not result.is_referenced:
            self._park(one)
        else:
            self._end(one, code, f"the leader of {one.replica.partition} refuses the batch")

    # -- waiting for a leader --

    def _park(self, one: _Slice) -> None:
        if self._loop.time() >= one.deadline or self._is_closed or one.replica.is_dropped:
            self._end(one, ErrorCode.not_leader_or_follower, "the partition has no leader")
            return
        self._parked.setdefault(one.name, deque()).append(one)
        self._node.view.nudge()
        if self._timer is None:
            self._timer = self._loop.call_later(RETRY_SECONDS, self._retry_parked)

    def _retry_parked(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        parked, self._parked = self._parked, {}
        # In the order of the chain: objects are sent in the order in which they are met here.
        waiting = (one for some in parked.values() for one in some)
        self._forward(sorted(waiting, key=lambda one: one.number))

    # -- the end of a batch --

    def _end(self, one: _Slice, code: ErrorCode = ErrorCode.none, message: str = "") -> None:
        if self._slices.pop(one.number, None) is None:
            return
        self._owed_bytes -= one.size_bytes
        if code is not ErrorCode.none and one.waiter is not None:
            one.waiter.fail(code, message)
        if one.object is None:
            self._spool.release(one.place)
        else:
            self._settle(one.object)
        self._note_fullness()

    def _settle(self, made: _Object) -> None:
        """One more slice of the object has its result, or will get none."""
        made.left_count -= 1
        if made.left_count:
            return
        if not made.unknown:
            made.chain.committed.settle_foreign(made.sequence, made.ends)
            return
        age_s = self._node.config().diskless_wal_max_age_ms / 1000
        self._unknown.append((self._loop.time() + age_s, made))
        if self._age_timer is None:
            self._age_timer = self._loop.call_later(age_s, self._settle_unknown)

    def _settle_unknown(self) -> None:
        """Settle the objects of which a leader has had its time."""
        self._age_timer = None
        now = self._loop.time()
        age_s = self._node.config().diskless_wal_max_age_ms / 1000
        while self._unknown and self._unknown[0][0] <= now:
            _, made = self._unknown.popleft()
            if all(map(self._knows_end, made.unknown)):
                self._settle_late(made)
            else:
                self._unknown.append((now + age_s, made))
        if self._unknown:
            self._age_timer = self._loop.call_at(self._unknown[0][0], self._settle_unknown)

    def _knows_end(self, replica: Replica) -> bool:
        """Whether this node's log has what was committed long ago, or will never have it.

        A log that lags may end below a reference: then the object would go too early.
        """
        if replica.is_dropped or replica.opened_log is None:
            return True  # ``_settle_late`` keeps the object.
        found = self._node.view.image.partition(replica.partition)
        can_serve = self._node.standing.can_serve()  # else the ISR may be an old one
        return can_serve and found is not None and self._node.broker_id in found.isr

    def _settle_late(self, made: _Object) -> None:
        for replica in made.unknown:
            name = PartitionName(replica.topic_id, replica.partition.partition)
            log = replica.opened_log
            end_offset = INT64_MAX if log is None or replica.is_dropped else log.log_end_offset
            made.ends[name] = max(end_offset, made.ends.get(name, 0))
        made.chain.committed.settle_foreign(made.sequence, made.ends)

    def _note_fullness(self) -> None:
        part = ROOM_PART if self.is_full else 1.0
        is_full = (
            self._owed_bytes >= part * self._bytes_max or len(self._slices) >= part * OWED_COUNT_MAX
        )
        if is_full != self.is_full:
            self.is_full = is_full
            self.fullness.notify(is_full)


def may_pass(replica: Replica) -> bool:
    """Whether batches of the topic may go through a gateway: nobody changes their bytes.

    A leader would, of a topic that is compacted, has a codec of its own, or the time of the append.
    """
    return not replica.inspects_records and not _has_append_time(replica)


def _has_append_time(replica: Replica) -> bool:
    return replica.config.message_timestamp_type == LOG_APPEND_TIME
