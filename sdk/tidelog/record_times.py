"""Timestamps of records at given offsets, for the time lag of groups.

No request of the protocol returns the time of an offset, so the record is fetched: a few
KiB of each partition in one request per node, and one batch alone for each partition
whose next batch is larger than that.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterable, Mapping

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic
from tidelog_core.batched import batched
from tidelog_core.model import TopicPartition
from tidelog_core.records.first_time import ONLY_MARKERS, first_time
from tidelog_core.records.header import HEADER_SIZE
from tidelog_core.wire_messages import build

from tidelog.asking_leaders import ask_until_found, by_leader, worst
from tidelog.cluster import Cluster
from tidelog.errors import CorruptRecordBatch, TidelogError, error_for
from tidelog.wire.answers import check_answered
from tidelog.wire.requests import FETCH_BY_NAME

FETCHED_AT_FIRST_BYTES = 4096  # of each partition
FETCHED_IN_ALL_BYTES_MAX = 50 * 1024 * 1024  # by one request
ALONE_AT_ONCE_MAX = 8

# Errors after which the current leader is asked.
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

    In milliseconds since 1970; ``None`` if no record exists at or after the offset, or the
    offset is gone; ``ONLY_MARKERS`` if only markers of transactions follow. If compaction has
    removed all later records of the batch, the batch's largest timestamp. Retries while leaders
    move; then raises ``RequestTimedOut`` or the nodes' error.
    """
    at = dict(offsets)  # moves past markers
    return await ask_until_found(
        cluster,
        offsets,
        lambda missing, found: _ask(cluster, {p: at[p] for p in missing}, found, at),
        what="records",
        timeout_s=timeout_s,
    )


async def _ask(
    cluster: Cluster,
    offsets: Mapping[TopicPartition, int],
    found: dict[TopicPartition, int | None],
    at: dict[TopicPartition, int],
) -> TidelogError | None:
    """Ask every leader and add the answers to ``found``; return a failure, if any.

    Where an answer has markers only, ``at`` gets the offset behind them.
    """
    led, failures = await by_leader(cluster, offsets)

    async def ask(node: int, some: Iterable[TopicPartition]) -> list[TopicPartition]:
        try:
            return await _fetch(cluster, node, {p: offsets[p] for p in some}, found, at)
        except TidelogError as error:
            failures.append(error)
            return []

    large = await asyncio.gather(*(ask(node, some) for node, some in led.items()))
    alone = [(n, p) for n, some in zip(led, large, strict=True) for p in some]
    for some in batched(alone, ALONE_AT_ONCE_MAX):
        for left in await asyncio.gather(*(ask(node, [partition]) for node, partition in some)):
            # Alone, a batch of any size is returned: an empty answer means no record.
            found.update(dict.fromkeys(left))
    return worst(failures)


async def _fetch(
    cluster: Cluster,
    node_id: int,
    offsets: Mapping[TopicPartition, int],
    found: dict[TopicPartition, int | None],
    at: dict[TopicPartition, int],
) -> list[TopicPartition]:
    """Add one answer's times to ``found``; return partitions whose batch did not fit."""
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
    answered: set[TopicPartition] = set()
    moved: ErrorCode | None = None
    for topic in response.responses:
        for answer in topic.partitions:
            partition = TopicPartition(topic.topic, int(answer.partition_index))
            if partition not in offsets:
                continue
            answered.add(partition)
            offset = offsets[partition]
            if answer.error_code in _LEADER_MOVED:
                moved = answer.error_code
            elif answer.error_code is not ErrorCode.none:
                found[partition] = None
            elif answer.records and len(answer.records) >= HEADER_SIZE:
                made_ms, at[partition] = _first_time(partition, answer.records, offset)
                if made_ms is not None or at[partition] >= int(answer.high_watermark):
                    found[partition] = ONLY_MARKERS if made_ms is None else made_ms
            elif offset < int(answer.high_watermark):
                large.append(partition)
            else:
                found[partition] = None
    if moved is not None:
        raise error_for(moved, None, about=f"node {node_id}")
    check_answered(offsets, answered, about=f"node {node_id}")
    return large


def _first_time(
    partition: TopicPartition, records: bytes | memoryview, offset: int
) -> tuple[int | None, int]:
    """As ``first_time``. Raises ``CorruptRecordBatch`` for batches that end at the offset."""
    made_ms, end_offset = first_time(records, offset)
    if made_ms is None and end_offset <= offset:
        # The same would be fetched again at once, and for ever.
        raise CorruptRecordBatch(
            f"{partition}: a fetch from offset {offset} returned batches that end at offset"
            f" {end_offset}"
        )
    return made_ms, end_offset
