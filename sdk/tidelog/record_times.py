"""When the record at an offset was made: for how far, in time, a group is behind.

No request of the protocol gives the time of an offset, so the record is fetched: a
little of each partition in one request a node, and one batch by itself of partitions
whose next batch is larger than that.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterable, Mapping

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic
from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.model import TopicPartition
from tidelog_core.records.batch import BatchHeader, decode_batch, parse_header
from tidelog_core.records.header import HEADER_SIZE
from tidelog_core.wire_messages import build

from tidelog.asking_leaders import ask_until_found, by_leader, worst
from tidelog.cluster import Cluster
from tidelog.errors import TidelogError, error_for
from tidelog.wire.requests import FETCH_BY_NAME

FETCHED_AT_FIRST_BYTES = 4096  # of each partition
FETCHED_IN_ALL_BYTES_MAX = 50 * 1024 * 1024  # by one request
ALONE_AT_ONCE_MAX = 8

# Answers after which it is asked again, of the leader that there is by then.
_LEADER_MOVED = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.leader_not_available,
    }
)


async def record_times(
    cluster: Cluster, offsets: Mapping[TopicPartition, int], *, timeout_s: float
) -> dict[TopicPartition, int | None]:
    """Return for each partition the timestamp of the first record at or after the offset.

    In milliseconds since 1970; ``None`` where there is no record, or none any more at the
    offset. Of a batch that compaction has emptied from the offset on it is the batch's
    largest. Retries while leaders move; then raises ``RequestTimedOut`` or what nodes say.
    """
    return await ask_until_found(
        cluster,
        offsets,
        lambda missing, found: _ask(cluster, missing, found),
        what="records",
        timeout_s=timeout_s,
    )


async def _ask(
    cluster: Cluster,
    offsets: Mapping[TopicPartition, int],
    found: dict[TopicPartition, int | None],
) -> TidelogError | None:
    """Ask every leader and add what they say to ``found``; return a failure if one is missing."""
    led, failures = await by_leader(cluster, offsets)

    async def ask(node: int, some: Iterable[TopicPartition]) -> list[TopicPartition]:
        try:
            return await _fetch(cluster, node, {p: offsets[p] for p in some}, found)
        except TidelogError as error:
            failures.append(error)
            return []

    large = await asyncio.gather(*(ask(node, some) for node, some in led.items()))
    alone = [(n, p) for n, some in zip(led, large, strict=True) for p in some]
    for start in range(0, len(alone), ALONE_AT_ONCE_MAX):
        some = alone[start : start + ALONE_AT_ONCE_MAX]
        for left in await asyncio.gather(*(ask(node, [partition]) for node, partition in some)):
            # Alone, a batch of any size is sent: there was none to come.
            found.update(dict.fromkeys(left))
    return worst(failures)


async def _fetch(
    cluster: Cluster,
    node_id: int,
    offsets: Mapping[TopicPartition, int],
    found: dict[TopicPartition, int | None],
) -> list[TopicPartition]:
    """Add to ``found`` what one answer tells; return partitions that have more than fitted."""
    topics: dict[str, list[FetchPartition]] = {}
    for partition, offset in offsets.items():
        leader = cluster.leader(partition)
        topics.setdefault(partition.topic, []).append(
            build(
                FetchPartition,
                partition=partition.partition,
                current_leader_epoch=leader.leader_epoch if leader is not None else -1,
                fetch_offset=offset,
                partition_max_bytes=FETCHED_AT_FIRST_BYTES,
            )
        )
    request = build(
        FetchRequest,
        max_wait=datetime.timedelta(0),
        min_bytes=0,
        max_bytes=FETCHED_IN_ALL_BYTES_MAX,
        topics=tuple(
            build(FetchTopic, topic=name, partitions=tuple(partitions))
            for name, partitions in topics.items()
        ),
    )
    response = await cluster.request(FETCH_BY_NAME, request, node_id=node_id)
    if response.error_code is not ErrorCode.none:
        raise error_for(response.error_code, None, about="fetch")
    large = []
    moved: ErrorCode | None = None
    for topic in response.responses:
        for answer in topic.partitions:
            partition = TopicPartition(topic.topic, int(answer.partition_index))
            offset = offsets[partition]
            if answer.error_code in _LEADER_MOVED:
                moved = answer.error_code
            elif answer.error_code is not ErrorCode.none:
                found[partition] = None
            elif answer.records and len(answer.records) >= HEADER_SIZE:
                found[partition] = _timestamp(answer.records, offset)
            elif offset < int(answer.high_watermark):
                large.append(partition)
            else:
                found[partition] = None
    if moved is not None:
        raise error_for(moved, None, about=f"node {node_id}")
    return large


def _timestamp(data: bytes, offset: int) -> int:
    """Return the time of the first record at or after the offset in the first batch."""
    header: BatchHeader = parse_header(data, 0)
    if header.is_log_append_time:
        return header.max_timestamp_ms
    if header.base_offset == offset and header.delete_horizon_ms is None:
        return header.base_timestamp_ms
    try:
        for record in decode_batch(data, 0, header):
            if record.offset >= offset:
                return record.timestamp_ms
    except CorruptRecordBatch:
        # Cut short: Kafka cuts a batch where a partition's share of the answer ends. The
        # batch's begin is older than the record by what the producer waited for others.
        return header.base_timestamp_ms
    return header.max_timestamp_ms
