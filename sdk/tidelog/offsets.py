"""Looking up offsets by time, and the ends of partitions: for consumers and admins."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v10.request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidelog_core.model import TopicPartition
from tidelog_core.wire_messages import build

from tidelog.cluster import Cluster
from tidelog.errors import RequestTimedOut, TidelogError, error_for
from tidelog.wire.requests import LIST_OFFSETS

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3  # the record with the highest timestamp
EARLIEST_LOCAL_TIMESTAMP = -4  # the first offset on the node's own disk
LATEST_TIERED_TIMESTAMP = -5


class FoundOffset(NamedTuple):
    """An answer: -1 for what does not exist."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


async def list_offsets(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    timeout_s: float,
) -> dict[TopicPartition, FoundOffset]:
    """Return for each partition the first offset at or after its timestamp.

    The special timestamps above ask for the ends. Retries while leaders move; raises
    what the nodes say if that will not pass, else ``RequestTimedOut``.
    """
    found: dict[TopicPartition, FoundOffset] = {}
    backoff = cluster.backoff()
    failure: TidelogError | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while len(found) < len(timestamps):
                missing = {p: t for p, t in timestamps.items() if p not in found}
                failure = await ask_offsets(cluster, missing, found, read_committed=read_committed)
                if failure is not None:
                    if not failure.retriable:
                        raise failure
                    cluster.invalidate()
                    await asyncio.sleep(backoff.next_s())
    except TimeoutError:
        raise failure or RequestTimedOut(f"no offsets within {timeout_s:g} s") from None
    return found


async def ask_offsets(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    found: dict[TopicPartition, FoundOffset],
    *,
    read_committed: bool,
) -> TidelogError | None:
    """Ask every leader once and add what they say to ``found``.

    Returns a failure if any partition is missing: one that will not pass, if there is.
    """
    by_leader: dict[int, list[TopicPartition]] = {}
    failures: list[TidelogError] = []
    for partition in timestamps:
        topic = cluster.topic(partition.topic)
        if topic is None:
            await cluster.refresh()
        leader = cluster.leader(partition)
        if leader is None:
            failures.append(error_for(ErrorCode.unknown_topic_or_partition, None, about=partition))
        else:
            by_leader.setdefault(leader.leader, []).append(partition)
    answers = await asyncio.gather(
        *(
            _ask_leader(
                cluster, node, {p: timestamps[p] for p in partitions}, found, read_committed
            )
            for node, partitions in by_leader.items()
        )
    )
    failures += [failure for failure in answers if failure is not None]
    return min(failures, key=lambda failure: failure.retriable, default=None)


async def _ask_leader(
    cluster: Cluster,
    node_id: int,
    timestamps: Mapping[TopicPartition, int],
    found: dict[TopicPartition, FoundOffset],
    read_committed: bool,
) -> TidelogError | None:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for partition, timestamp in timestamps.items():
        leader = cluster.leader(partition)
        topics.setdefault(partition.topic, []).append(
            build(
                ListOffsetsPartition,
                partition_index=partition.partition,
                current_leader_epoch=leader.leader_epoch if leader is not None else -1,
                timestamp=timestamp,
            )
        )
    request = build(
        ListOffsetsRequest,
        replica_id=-1,
        isolation_level=int(read_committed),
        topics=tuple(
            build(ListOffsetsTopic, name=name, partitions=tuple(partitions))
            for name, partitions in topics.items()
        ),
        timeout=datetime.timedelta(seconds=cluster.request_timeout_s),
    )
    try:
        response = await cluster.request(LIST_OFFSETS, request, node_id=node_id)
    except TidelogError as error:
        return error
    failure: TidelogError | None = None
    for topic in response.topics:
        for answer in topic.partitions:
            partition = TopicPartition(topic.name, int(answer.partition_index))
            if answer.error_code is ErrorCode.none:
                found[partition] = FoundOffset(
                    int(answer.offset), int(answer.timestamp), int(answer.leader_epoch)
                )
            elif failure is None or failure.retriable:
                failure = error_for(answer.error_code, None, about=partition)
    return failure
