"""What a consumer does with the answers to its fetches: records, ends of partitions, errors.

An answer counts only if its partition is as it was when it was asked for. Since the request it may
have been unassigned, sought, or validated under another leader.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from kio.schema.errors import ErrorCode
from tidelog_core.model import TopicPartition

from tidelog.cluster import Cluster
from tidelog.consuming.fetch_requests import Fetched
from tidelog.consuming.fetched import Chunk, kept_records
from tidelog.consuming.locating import RESET_TIMESTAMPS
from tidelog.consuming.positions import UNKNOWN, PartitionState, Positions
from tidelog.errors import CorruptRecordBatch, OffsetOutOfRange, TidelogError, error_for
from tidelog.metadata import Node
from tidelog.offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, list_offsets
from tidelog.options import ConsumerOptions

logger = logging.getLogger(__name__)

RETRIED_S = 0.1  # A partition with an error is asked for again after that time.
_READ_REPLICA_S = 300.0  # Then the leader is asked again which replica to read.
# A position that is out of range is looked up again after that time at the earliest: the offset
# found may be out of range too.
_RESETS_APART_S = 1.0

# Errors that go away once the partition's leader is known.
_LEADER_MOVED = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.leader_not_available,
        ErrorCode.offset_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
    }
)


class FetchAnswers:
    """Takes the answers to fetches of these positions."""

    def __init__(
        self,
        cluster: Cluster,
        positions: Positions,
        options: ConsumerOptions,
        *,
        on_arrival: Callable[[], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """``spawn`` has a coroutine run beside the fetches."""
        self._cluster = cluster
        self._positions = positions
        self._options = options
        self._on_arrival = on_arrival
        self._spawn = spawn
        self._read_committed = options.isolation_level == "read_committed"

    def take(
        self, node_id: int, fetched: Fetched, tickets: Mapping[PartitionState, tuple[int, int]]
    ) -> bool:
        """Use the answers; return false if the next fetch would be the same."""
        has_brought = False
        nodes = _nodes(fetched.response)
        for partition, offset, answer in fetched.partitions:
            state = self._positions.get(partition)
            self._note_leader(partition, answer.current_leader, nodes)
            # Since the request the partition may have been unassigned, sought, or validated
            # under another leader; or the node does not have its offset yet.
            if (
                state is not None
                and state.ticket == tickets.get(state)
                and state.fetch_position == offset
            ):
                has_brought |= self._take_partition(node_id, state, answer)
            else:
                has_brought = True  # The next fetch asks for something else.
        self._on_arrival()
        return has_brought

    def _note_leader(self, partition: TopicPartition, current: Any, nodes: list[Node]) -> None:
        leader, leader_epoch = int(current.leader_id), int(current.leader_epoch)
        if UNKNOWN not in (leader, leader_epoch):
            self._cluster.note_leader(
                partition, leader=leader, leader_epoch=leader_epoch, nodes=nodes
            )

    def _take_partition(self, node_id: int, state: PartitionState, answer: Any) -> bool:
        """Use a partition's answer; return false if it has nothing but numbers."""
        code = answer.error_code
        is_leader = state.read_replica is None or state.read_replica[0] != node_id
        if code is ErrorCode.none:
            state.high_watermark = int(answer.high_watermark)
            end = answer.last_stable_offset if self._read_committed else answer.high_watermark
            state.end_offset = int(end)
            if answer.records:
                self._add_chunk(state, answer)
                return True
            # This replica has no records for us before the end, regardless of that value.
            state.end_offset = min(state.end_offset, state.fetch_position)
            replica = int(answer.preferred_read_replica)
            # Only a leader names one: two replicas could name each other.
            if not is_leader or replica in (node_id, UNKNOWN):
                return False
            if replica not in self._cluster.nodes:
                self._cluster.invalidate()  # It may have joined since.
                return False
            until_s = asyncio.get_running_loop().time() + _READ_REPLICA_S
            state.read_replica = (replica, until_s)
            state.end_offset = UNKNOWN
            return True
        state.read_replica = None
        if code is ErrorCode.offset_out_of_range and is_leader:
            self._on_out_of_range(state)
        elif code in _LEADER_MOVED or code is ErrorCode.offset_out_of_range:
            self._cluster.invalidate()
            self._retry_later(state)
        elif code.retriable or code is ErrorCode.unknown_server_error:
            logger.warning(
                "fetch failed, will retry",
                extra={"partition": str(state.partition), "reason": code.name},
            )
            self._retry_later(state)
        else:
            state.error = error_for(code, None, about=state.partition)
            self._retry_later(state)  # A program may poll on after each error.
        return True

    def _add_chunk(self, state: PartitionState, answer: Any) -> None:
        aborted = [
            (int(a.first_offset), int(a.producer_id)) for a in answer.aborted_transactions or ()
        ]
        try:
            chunk = Chunk(
                state.partition,
                kept_records(answer.records, self._cluster.frame_room),
                aborted=aborted,
                read_committed=self._read_committed,
                check_crcs=self._options.check_crcs,
            )
            if chunk.next_offset <= state.fetch_position:
                # The same would be fetched again at once, and for ever.
                raise CorruptRecordBatch(
                    f"{state.partition}: a fetch from offset {state.fetch_position} returned"
                    f" batches that end at offset {chunk.next_offset}"
                )
        except TidelogError as error:
            state.error = error
            self._retry_later(state)
            return
        state.chunks.append(chunk)
        state.fetch_position = chunk.next_offset
        state.fetch_epoch = chunk.last_epoch

    def _on_out_of_range(self, state: PartitionState) -> None:
        if state.chunks or state.index < len(state.records):
            self._retry_later(state)  # Records fetched earlier are handed out first.
            return
        policy = self._options.auto_offset_reset
        if policy == "none":
            self._spawn(self._report_out_of_range(state, state.version))
            return
        now_s = asyncio.get_running_loop().time()
        if now_s < state.reset_at_s + _RESETS_APART_S:
            self._retry_later(state)
            return
        state.reset_at_s = now_s
        logger.warning(
            "offset out of range, will reset",
            extra={"partition": str(state.partition), "offset": state.position, "to": policy},
        )
        state.forget(RESET_TIMESTAMPS[policy])

    async def _report_out_of_range(self, state: PartitionState, version: int) -> None:
        """Make poll raise the error with the partition's offsets, which the answer lacks."""
        state.retry_at_s = math.inf
        ends = []
        try:
            for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP):
                found = await list_offsets(
                    self._cluster,
                    {state.partition: timestamp},
                    read_committed=self._read_committed,
                    timeout_s=self._cluster.request_timeout_s,
                )
                ends.append(found[state.partition].offset)
        except TidelogError as error:
            logger.info("cannot look up the partition's offsets", extra={"reason": str(error)})
            ends = [UNKNOWN, UNKNOWN]
        if state.version == version:
            state.retry_at_s = 0.0
            state.error = OffsetOutOfRange(
                state.partition, state.position, start=ends[0], end=ends[1]
            )
            self._on_arrival()

    def _retry_later(self, state: PartitionState) -> None:
        state.retry_at_s = asyncio.get_running_loop().time() + RETRIED_S


def _nodes(response: Any) -> list[Node]:
    """Return the leaders' addresses in the answer; older versions have none."""
    return [
        Node(int(node.node_id), node.host, int(node.port), node.rack)
        for node in getattr(response, "node_endpoints", ())
    ]
