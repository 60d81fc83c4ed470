"""A consumer's positions and commits, and the offsets of a log's ends and times."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from tidelog_core.model import TopicPartition

from tidelog.consuming.consumer_parts import ConsumerParts
from tidelog.consuming.locating import check_offset, check_offsets, check_time
from tidelog.consuming.positions import UNKNOWN
from tidelog.consuming.records import (
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    Offsets,
)
from tidelog.errors import InvalidRequest, RequestTimedOut
from tidelog.given_values import mapping, partition_of, partitions_of
from tidelog.offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, list_offsets


class PositionCalls(ConsumerParts):
    """Calls about offsets."""

    # -- positions --

    async def position(self, partition: tuple[str, int]) -> int:
        """Return the offset of the next record to return, once it is known.

        Raises ``NotAssigned``, ``NoOffsetForPartition``, and ``RequestTimedOut`` if it is not known
        within ``request_timeout_ms``.
        """
        await self._begin()
        timeout_s = self._cluster.request_timeout_s
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while (state := self._state(partition)).position == UNKNOWN:
            if state.error is not None:
                error, state.error = state.error, None
                raise error
            self._locator.start()
            if not await self._wait_for_change(deadline_s):
                raise RequestTimedOut(f"no position for {state.partition} within {timeout_s:g} s")
        return state.position

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Make this the offset of the next record. Nodes are not asked whether it exists.

        Raises ``NotAssigned``, and ``InvalidRequest`` for an offset below zero.
        """
        self._state(partition).jump(check_offset(offset))
        self._changed.set()
        self._fetcher.wake()

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return each partition's next offset, where it is known; ``commit()`` commits these."""
        return {
            state.partition: state.to_commit(state.position)
            for state in self._positions
            if state.position != UNKNOWN
        }

    def seek_to_committed(self, *partitions: tuple[str, int]) -> None:
        """Continue from the committed offsets; of all partitions by default.

        For records that were read for an aborted transaction. The next poll waits for pending
        transactions that contain offsets of the group.
        """
        self._reset(partitions, None)

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Continue from the log start offset; of all partitions by default."""
        self._reset(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Continue after the last record; of all partitions by default."""
        self._reset(partitions, LATEST_TIMESTAMP)

    def high_watermark(self, partition: tuple[str, int]) -> int | None:
        """Return the partition's high watermark as of the last fetch, None before the first.

        It is the offset after the last record that all in-sync replicas have. Raises
        ``NotAssigned``.
        """
        known = self._state(partition).high_watermark
        return None if known == UNKNOWN else known

    # -- offsets of the log --

    async def beginning_offsets(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition, which need not be assigned.

        Raises ``RequestTimedOut`` or the nodes' last error after ``request_timeout_ms``.
        """
        return await self._ends(partitions, EARLIEST_TIMESTAMP)

    async def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Return the offset after each partition's last record that this consumer may read.

        That is the high watermark, with ``read_committed`` the last stable offset. Raises as
        ``beginning_offsets`` does.
        """
        return await self._ends(partitions, LATEST_TIMESTAMP)

    async def offsets_for_times(
        self, timestamps_ms: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return each partition's first record at or after its time, None if there is none.

        Times are in milliseconds since 1970. Raises as ``beginning_offsets`` does, and
        ``InvalidRequest`` for a time below zero.
        """
        checked = {
            partition_of(partition): check_time(timestamp)
            for partition, timestamp in mapping(
                timestamps_ms, "timestamps_ms", "a partition: a time"
            ).items()
        }
        await self._begin()
        found = await list_offsets(
            self._cluster,
            checked,
            read_committed=self._options.isolation_level == "read_committed",
            timeout_s=self._cluster.request_timeout_s,
        )
        return {
            partition: OffsetAndTimestamp(at.offset, at.timestamp_ms) if at.offset >= 0 else None
            for partition, at in found.items()
        }

    # -- commits --

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Commit offsets of the next records to read; by default the position of each partition.

        Durable on return. Raises ``CommitFailed`` if the group may have given the partitions to
        another member, ``RebalanceInProgress`` if it is about to, ``InvalidRequest`` without a
        ``group_id``, and after ``request_timeout_ms`` the last error that was retried.
        """
        await self._begin()
        given = self.positions() if offsets is None else check_offsets(offsets)
        if self._commits is None:
            raise InvalidRequest("commit needs a group_id")
        await self._commits.commit(given)

    def group_metadata(self) -> GroupMetadata:
        """Return this consumer's identity in its group, for ``Transaction.send_offsets``.

        Raises ``CommitFailed`` if it is not a member now, ``InvalidRequest`` without a
        ``group_id``.
        """
        if self._commits is None:
            raise InvalidRequest("group_metadata needs a group_id")
        return self._commits.group_metadata()

    async def committed(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offset of each partition, None if it has none.

        Waits for open transactions that commit offsets of the group. Raises ``InvalidRequest``
        without a ``group_id``, and after ``request_timeout_ms`` the last error.
        """
        await self._begin()
        if self._coordinator is None:
            raise InvalidRequest("committed needs a group_id")
        wanted = partitions_of(partitions)
        found = await self._coordinator.committed(wanted, timeout_s=self._cluster.request_timeout_s)
        return {partition: found.get(partition) for partition in wanted}

    # -- internals --

    def _reset(self, partitions: Sequence[tuple[str, int]], timestamp: int | None) -> None:
        states = [self._state(partition) for partition in partitions] or list(self._positions)
        for state in states:
            state.forget(timestamp)
        self._changed.set()

    async def _ends(
        self, partitions: Iterable[tuple[str, int]], timestamp: int
    ) -> dict[TopicPartition, int]:
        await self._begin()
        found = await list_offsets(
            self._cluster,
            dict.fromkeys(partitions_of(partitions), timestamp),
            read_committed=self._options.isolation_level == "read_committed",
            timeout_s=self._cluster.request_timeout_s,
        )
        return {partition: at.offset for partition, at in found.items()}
