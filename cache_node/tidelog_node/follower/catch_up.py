"""Restarts a replica at the end of the tier if the leader's local log lacks its offset.

The leader returns the start and end of its log, the metadata store the tiered segments;
``FollowerState`` decides on both. The leader epochs and the producers' state at the new start
come from the tier's segments. Rare, so each search at the leader has its own connection.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable

from kio.schema.list_offsets.v9 import request as list_request
from kio.schema.list_offsets.v9 import response as list_response
from tidelog_core.errors import ErrorCode, NotLeaderOrFollower
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.producers.producer_snapshot import CorruptSnapshot
from tidelog_core.message_reader import read_message
from tidelog_core.model import TopicPartition
from tidelog_core.replication.follower_state import (
    Action,
    FollowerState,
    Ignore,
    ReplicaFetch,
    Truncate,
)
from tidelog_core.replication.tier_start import (
    TierEnd,
    TruncateFully,
    start_before_following,
    start_before_leading,
)
from tidelog_core.tier.tiered_segments import TieredSegments
from tidelog_core.wire_messages import build, write_message

from tidelog_node.dialing.leader_connection import LeaderConnection
from tidelog_node.follower.wire import CLIENT_ID
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.tier.history import LogPast, TierHistory, tier_end

logger = logging.getLogger(__name__)

LATEST, EARLIEST, EARLIEST_LOCAL = -1, -2, -4
AT_ONCE_MAX = 8
API_KEY, VERSION = 2, 9
_HEADER = struct.Struct(f">ihhih{len(CLIENT_ID)}sB")
_RESPONSE_HEADER_SIZE_BYTES = 5  # correlation id, no tags


class CatchUp:
    """Finds new start offsets for replicas. For the tasks of one event loop."""

    def __init__(self, node: NodeContext, *, history: TierHistory, timeout_s: float) -> None:
        self._node = node
        self._history = history
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(AT_ONCE_MAX)

    async def begin(self, replica: Replica, follower: FollowerState) -> None:
        """Before the first fetch, restart the log at the tier's end if that is a better start.

        Raises the stores' errors, and ``StorageError``.
        """
        async with self._slots:
            partition = follower.partition
            segments = await self._segments(replica)
            end = tier_end(segments, partition.log_start_offset)

            def decide(log: LocalLog) -> TruncateFully | None:
                role = replica.role
                if role is None or role.follower is not follower:
                    return None  # Another leader, perhaps this node itself.
                if log.unfilled is not None:
                    return _restart_of(end, partition.log_start_offset)
                is_in_sync = self._node.broker_id in follower.partition.isr
                return start_before_following(log, end, is_in_sync=is_in_sync)

            await self._carry_out(replica, segments, decide)

    async def begin_in_chain(self, replica: Replica, follower: FollowerState) -> int:
        """Restart the log of a diskless replica at the tier's end if it must begin there.

        What it lacks below the tier's end may be in no chain any more. Returns the tier's end, or
        the log start if the tier has nothing above. Raises the stores' errors, and
        ``StorageError``.
        """
        async with self._slots:
            start_offset = follower.partition.log_start_offset
            segments = await self._segments(replica)
            end = tier_end(segments, start_offset)

            def decide(log: LocalLog) -> TruncateFully | None:
                role = replica.role
                if role is None or role.follower is not follower:
                    return None  # Another leader, perhaps this node itself.
                if log.unfilled is not None:
                    return _restart_of(end, start_offset)
                return start_before_leading(log, end, log_start_offset=start_offset)

            await self._carry_out(replica, segments, decide)
            return start_offset if end is None else end.offset

    async def before_leading(self, replica: Replica) -> TieredSegments:
        """Before the replica leads, restart its log if ``start_before_leading`` says so.

        Returns the tier as it was read for that. The replica has no role during the call. Raises
        the stores' errors, and ``StorageError``.
        """
        async with self._slots:
            segments = await self._segments(replica)
            start_offset = replica.log_start_offset
            end = tier_end(segments, start_offset)

            def decide(log: LocalLog) -> TruncateFully | None:
                if replica.is_leader or replica.is_dropped:
                    return None
                if log.unfilled is not None:
                    return _restart_of(end, start_offset)
                return start_before_leading(log, end, log_start_offset=start_offset)

            await self._carry_out(replica, segments, decide)
            return segments

    async def find_start(
        self, replica: Replica, follower: FollowerState, fetch: ReplicaFetch
    ) -> None:
        """Find a new start if the leader's local log no longer has the offset of ``fetch``.

        Raises ``OSError``, ``TimeoutError`` or ``NotLeaderOrFollower`` if the leader does not
        answer, and the stores' errors.
        """
        async with self._slots:
            start, local_start, end = await self._ask_leader(replica, fetch)
            segments = await self._segments(replica)
            found = tier_end(segments, start)
            await self._carry_out(
                replica,
                segments,
                lambda log: follower.on_offsets(
                    fetch,
                    log,
                    leader_start=start,
                    leader_local_start=local_start,
                    leader_end=end,
                    tier_end=found,
                ),
            )

    async def _segments(self, replica: Replica) -> TieredSegments:
        return await self._history.segments(replica.topic_id, replica.partition.partition)

    async def _carry_out(
        self,
        replica: Replica,
        segments: TieredSegments,
        decide: Callable[[LocalLog], Action | None],
    ) -> None:
        """Apply the decision, if it is still the same after the tier has been read for it.

        Raises ``NotLeaderOrFollower`` if no decision is possible yet.
        """
        action = decide(replica.log)
        if isinstance(action, Truncate):
            replica.log.truncate_to(action.offset)
        elif isinstance(action, TruncateFully):
            past = await self._history.past(replica.partition, segments, action.offset)
            if decide(replica.log) == action:
                _truncate_fully(replica.log, action, past)
                logger.info(
                    "replica begins where the tier ends",
                    extra={"partition": str(replica.partition), "offset": action.offset},
                )
        elif isinstance(action, Ignore) and action.must_wait:
            raise NotLeaderOrFollower("leader and tier offer no offset to go on from yet")

    async def _ask_leader(self, replica: Replica, fetch: ReplicaFetch) -> tuple[int, int, int]:
        """Return the leader's log start, local log start and log end, in the fetch's epoch."""
        broker = self._node.view.image.brokers.get(fetch.leader_id)
        if broker is None:
            raise NotLeaderOrFollower(f"broker {fetch.leader_id} is not registered")
        connection = await self._node.dialer.dial_leader(broker, timeout_s=self._timeout_s)
        try:
            start, local_start, end = [
                await self._ask(connection, replica.partition, fetch.leader_epoch, name)
                for name in (EARLIEST, EARLIEST_LOCAL, LATEST)
            ]
        finally:
            connection.close()
        return start, local_start, end

    async def _ask(
        self,
        connection: LeaderConnection,
        partition: TopicPartition,
        leader_epoch: int,
        name: int,
    ) -> int:
        request = build(
            list_request.ListOffsetsRequest,
            replica_id=self._node.broker_id,
            topics=(
                build(
                    list_request.ListOffsetsTopic,
                    name=partition.topic,
                    partitions=(
                        build(
                            list_request.ListOffsetsPartition,
                            partition_index=partition.partition,
                            current_leader_epoch=leader_epoch,
                            timestamp=name,
                        ),
                    ),
                ),
            ),
        )
        body = write_message(list_request.ListOffsetsRequest, request)
        size_bytes = _HEADER.size - 4 + len(body)
        header = _HEADER.pack(size_bytes, API_KEY, VERSION, 0, len(CLIENT_ID), CLIENT_ID, 0)
        answer = await connection.exchange(header + body, timeout_s=self._timeout_s)
        response = read_message(
            list_response.ListOffsetsResponse, answer, _RESPONSE_HEADER_SIZE_BYTES
        )
        found = next((each for topic in response.topics for each in topic.partitions), None)
        if found is None:
            raise NotLeaderOrFollower("the leader answers for no partition")
        if found.error_code is not ErrorCode.none:
            raise NotLeaderOrFollower(f"the leader answers {found.error_code.name}")
        return int(found.offset)


def _restart_of(end: TierEnd | None, log_start_offset: int) -> TruncateFully:
    """Return the truncation of a log that lacks records before its start: to the tier's end."""
    if end is None:
        return TruncateFully(log_start_offset, log_start_offset)
    return TruncateFully(end.offset, end.log_start_offset)


def _truncate_fully(log: LocalLog, action: TruncateFully, past: LogPast) -> None:
    try:
        _restart(log, action, past, past.producer_snapshot)
    except CorruptSnapshot as error:
        # Producers are then treated as new: no batch is lost, but a duplicate is not recognized.
        logger.error(
            "producers' state of the tier is damaged",
            extra={"partition": str(log.partition), "reason": str(error)},
        )
        _restart(log, action, past, None)
    log.set_tiered_up_to(action.offset)


def _restart(log: LocalLog, action: TruncateFully, past: LogPast, snapshot: bytes | None) -> None:
    log.truncate_fully_and_start_at(
        action.offset,
        log_start_offset=action.log_start_offset,
        leader_epochs=past.leader_epochs,
        producer_snapshot=snapshot,
    )
