"""ListOffsets requests: offsets by time, and the ends of partitions."""

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

from tidelog.asking_leaders import ask_until_found, by_leader, worst
from tidelog.cluster import Cluster
from tidelog.errors import TidelogError, error_for
from tidelog.wire.answers import incompleteness
from tidelog.wire.requests import LIST_OFFSETS

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3  # the record with the highest timestamp
EARLIEST_LOCAL_TIMESTAMP = -4  # the first offset on the node's own disk
LATEST_TIERED_TIMESTAMP = -5
_LOG_ENDS = (LATEST_TIMESTAMP, EARLIEST_TIMESTAMP)


class FoundOffset(NamedTuple):
    """The result of a lookup; -1 for a value that does not exist."""

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

    The special timestamps above select the ends. Retries while leaders move; raises an error
    that is not retriable, else ``RequestTimedOut``.
    """
    return await ask_until_found(
        cluster,
        timestamps,
        lambda missing, found: ask_offsets(cluster, missing, found, read_committed=read_committed),
        what="offsets",
        timeout_s=timeout_s,
    )


async def ask_offsets(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    found: dict[TopicPartition, FoundOffset],
    *,
    read_committed: bool,
) -> TidelogError | None:
    """Ask every leader once and add the answers to ``found``.

    Returns a failure if any partition has no answer, preferably one that is not retriable. An
    end of a log that is below zero is no answer.
    """
    led, failures = await by_leader(cluster, timestamps)
    answers = await asyncio.gather(
        *(
            _ask_leader(
                cluster, node, {p: timestamps[p] for p in partitions}, found, read_committed
            )
            for node, partitions in led.items()
        )
    )
    failures += [failure for failure in answers if failure is not None]
    return worst(failures)


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
    answered: set[TopicPartition] = set()
    for topic in response.topics:
        for answer in topic.partitions:
            partition = TopicPartition(topic.name, int(answer.partition_index))
            if partition not in timestamps:
                continue
            if answer.error_code is ErrorCode.none:
                if answer.offset < 0 and timestamps[partition] in _LOG_ENDS:
                    continue
                answered.add(partition)
                found[partition] = FoundOffset(
                    int(answer.offset), int(answer.timestamp), int(answer.leader_epoch)
                )
                continue
            answered.add(partition)
            if failure is None or failure.retriable:
                failure = error_for(answer.error_code, None, about=partition)
    return failure or incompleteness(timestamps, answered, about="offsets")
