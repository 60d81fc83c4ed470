"""Requests to the nodes: the ends of logs, and batches that are not tiered yet.

The nodes answer for every offset from the log start on, tiered or not: batches that are
tiered after a read was planned can still be fetched from them.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v17.request import FetchPartition, FetchRequest, FetchTopic
from tidelog.asking_leaders import by_leader
from tidelog.connections import Lane
from tidelog.errors import RequestTimedOut, TidelogError, error_for
from tidelog.offsets import LATEST_TIMESTAMP, list_offsets
from tidelog.wire.requests import FETCH_BY_ID
from tidelog_core.model import TopicPartition
from tidelog_core.wire_messages import build

from tidelog_spark.clients import client_factory
from tidelog_spark.options.read_options import NodeOptions

FETCH_SIZE_BYTES_MAX = 8 * 1024 * 1024
FETCH_WAIT_MS = 500  # longest wait at a node that has no record at the offset yet
METADATA_AGE_MS_MAX = 60_000


class RecordsGone(TidelogError):
    """The leader no longer has a record at the offset, or it was never written."""

    code = ErrorCode.offset_out_of_range


class Fetched(NamedTuple):
    """Batches as stored in the log; the last may be truncated."""

    data: bytes
    aborted: tuple[tuple[int, int], ...]  # (first offset, producer id) of aborted transactions


class Nodes:
    """A connection to the cluster's nodes. Used from one event loop."""

    def __init__(self, options: NodeOptions, *, is_read_committed: bool) -> None:
        self._is_read_committed = is_read_committed
        self._timeout_s = options.request_timeout_ms / 1000
        self._cluster = client_factory(options).cluster(metadata_max_age_ms=METADATA_AGE_MS_MAX)

    async def start(self) -> None:
        """Connect to a node. Raises ``ConnectionFailed`` if none answers in time."""
        await self._cluster.start()

    async def close(self) -> None:
        """Close every connection."""
        await self._cluster.close()

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end for consumers: the high watermark, or the last stable offset."""
        found = await self._list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP))
        return {partition: offset for partition, offset in found.items() if offset is not None}

    async def high_watermarks(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the ends with what open transactions have written, for every isolation."""
        times = dict.fromkeys(partitions, LATEST_TIMESTAMP)
        found = await self._list_offsets(times, is_read_committed=False)
        return {partition: offset for partition, offset in found.items() if offset is not None}

    async def offsets_of_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """Return each partition's first offset at or after its time (ms), or ``None``."""
        return await self._list_offsets(times)

    async def fetch(self, partition: TopicPartition, topic_id: UUID, offset: int) -> Fetched:
        """Return batches from the one with the offset, or the next one, on.

        At least one whole batch; waits for it. Raises ``RecordsGone``, and ``RequestTimedOut`` or
        the nodes' error if none arrives in time.
        """
        backoff = self._cluster.backoff()
        failure: TidelogError | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    try:
                        found = await self._attempt_fetch(partition, topic_id, offset)
                    except TidelogError as error:
                        if not error.retriable:
                            raise
                        failure = error
                        self._cluster.invalidate()
                        await asyncio.sleep(backoff.next_s())
                    else:
                        if found.data:
                            return found
                        failure = None
        except TimeoutError:
            raise failure or RequestTimedOut(
                f"no node has a record of {partition} from offset {offset} on within"
                f" {self._timeout_s:g} s"
            ) from None

    async def _attempt_fetch(
        self, partition: TopicPartition, topic_id: UUID, offset: int
    ) -> Fetched:
        _, failures = await by_leader(self._cluster, [partition])
        leader = self._cluster.leader(partition)
        if leader is None:
            raise failures[0]
        wanted = build(
            FetchPartition,
            partition=partition.partition,
            current_leader_epoch=leader.leader_epoch,
            fetch_offset=offset,
            partition_max_bytes=FETCH_SIZE_BYTES_MAX,
        )
        request = build(
            FetchRequest,
            max_wait=datetime.timedelta(milliseconds=FETCH_WAIT_MS),
            min_bytes=1,
            max_bytes=FETCH_SIZE_BYTES_MAX,
            isolation_level=int(self._is_read_committed),
            topics=(build(FetchTopic, topic_id=topic_id, partitions=(wanted,)),),
            rack_id="",
        )
        connection = await self._cluster.connection(leader.leader, Lane.CATCH_UP)
        response = await connection.request(FETCH_BY_ID, request, timeout_s=self._timeout_s)
        if response.error_code is not ErrorCode.none:
            raise error_for(response.error_code, None, about=partition)
        return _answer_of(partition, response)

    async def _list_offsets(
        self, times: Mapping[TopicPartition, int], *, is_read_committed: bool | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return the offsets; by default those that the isolation of the read shows."""
        if not times:
            return {}
        self._cluster.want({partition.topic for partition in times})
        found = await list_offsets(
            self._cluster,
            times,
            read_committed=(
                self._is_read_committed if is_read_committed is None else is_read_committed
            ),
            timeout_s=self._timeout_s,
        )
        return {
            partition: None if answer.offset < 0 else answer.offset
            for partition, answer in found.items()
        }


def _answer_of(partition: TopicPartition, response: Any) -> Fetched:
    for topic in response.responses:
        for answer in topic.partitions:
            if int(answer.partition_index) != partition.partition:
                continue
            code = answer.error_code
            if code is ErrorCode.offset_out_of_range:
                raise RecordsGone(f"the leader of {partition} has no such offset")
            if code is not ErrorCode.none:
                raise error_for(code, None, about=partition)
            aborted = answer.aborted_transactions or ()
            return Fetched(
                answer.records or b"",
                tuple((int(one.first_offset), int(one.producer_id)) for one in aborted),
            )
    return Fetched(b"", ())
