"""Asks leaders for the ends of partitions and for the times of records, as a consumer would.

The requests go over the nodes' own listener, also to this node. A leader that does not answer is
left out: the caller asks again later.
"""

from __future__ import annotations

import asyncio
import datetime
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeVar

from kio.schema.fetch.v12 import request as fetch_request
from kio.schema.list_offsets.v10 import request as list_request
from tidelog.wire.requests import FETCH_BY_NAME, LIST_OFFSETS, Api
from tidelog_core.batched import batched
from tidelog_core.errors import TidelogError
from tidelog_core.model import NO_LEADER, TopicPartition
from tidelog_core.records.first_time import ONLY_MARKERS, first_time
from tidelog_core.records.header import HEADER_SIZE

from tidelog_node.dialing.peers import Peers
from tidelog_node.node_context import NodeContext
from tidelog_node.wire.messages import build

T = TypeVar("T")

ANSWER_SECONDS_MAX = 10.0
PARTITIONS_PER_REQUEST = 500
FIRST_BYTES = 4_096  # of each partition
ALONE_BYTES = 65_536  # of one whose batch is larger than that
LATEST = -1
CONSUMER = -1


class LeaderAnswers:
    """For the tasks of one event loop."""

    def __init__(self, node: NodeContext, peers: Peers) -> None:
        self._node = node
        self._peers = peers

    async def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermark of the partitions whose leaders answer."""
        found: dict[TopicPartition, int] = {}

        async def ask(broker_id: int, partitions: list[TopicPartition]) -> None:
            answer = await self._request(broker_id, LIST_OFFSETS, _list_ends(partitions))
            for topic in answer.topics if answer is not None else ():
                for one in topic.partitions:
                    if not one.error_code and one.offset >= 0:
                        found[TopicPartition(topic.name, int(one.partition_index))] = one.offset

        await self._of_each_leader(partitions, ask)
        return found

    async def times(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the time of the first record at or after each offset, or ``ONLY_MARKERS``.

        In epoch milliseconds; without those that are not known, or have no such record.
        """
        found: dict[TopicPartition, int] = {}

        async def ask(broker_id: int, partitions: list[TopicPartition]) -> None:
            wanted = {partition: offsets[partition] for partition in partitions}
            answer = await self._request(broker_id, FETCH_BY_NAME, _fetch(wanted, FIRST_BYTES))
            for partition in _take_times(answer, wanted, found):
                alone = {partition: offsets[partition]}
                answer = await self._request(broker_id, FETCH_BY_NAME, _fetch(alone, ALONE_BYTES))
                _take_times(answer, alone, found)

        await self._of_each_leader(offsets, ask)
        return found

    async def _of_each_leader(
        self,
        partitions: Collection[TopicPartition],
        ask: Callable[[int, list[TopicPartition]], Awaitable[None]],
    ) -> None:
        led: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition in partitions:
            known = self._node.view.image.partition(partition)
            if known is not None and known.leader != NO_LEADER:
                led[known.leader].append(partition)
        parts = [
            ask(broker_id, asked)
            for broker_id, some in led.items()
            for asked in batched(some, PARTITIONS_PER_REQUEST)
        ]
        for part in parts:
            await part

    async def _request(self, broker_id: int, api: Api, message: object) -> Any:
        """Return the answer, ``None`` if there is none."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return await self._peers.request(
                    broker_id, api, message, timeout_s=ANSWER_SECONDS_MAX
                )
        except (TidelogError, OSError, TimeoutError):
            return None


def _by_topic(partitions: Collection[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for partition in partitions:
        by_topic[partition.topic].append(partition.partition)
    return by_topic


def _list_ends(partitions: Collection[TopicPartition]) -> object:
    return build(
        list_request.ListOffsetsRequest,
        replica_id=CONSUMER,
        isolation_level=0,
        topics=tuple(
            build(
                list_request.ListOffsetsTopic,
                name=name,
                partitions=tuple(
                    build(
                        list_request.ListOffsetsPartition,
                        partition_index=number,
                        current_leader_epoch=-1,
                        timestamp=LATEST,
                    )
                    for number in numbers
                ),
            )
            for name, numbers in _by_topic(partitions).items()
        ),
    )


def _fetch(offsets: Mapping[TopicPartition, int], partition_bytes: int) -> object:
    return build(
        fetch_request.FetchRequest,
        max_wait=datetime.timedelta(0),
        min_bytes=0,
        max_bytes=partition_bytes * max(len(offsets), 1),
        topics=tuple(
            build(
                fetch_request.FetchTopic,
                topic=name,
                partitions=tuple(
                    build(
                        fetch_request.FetchPartition,
                        partition=number,
                        current_leader_epoch=-1,
                        fetch_offset=offsets[TopicPartition(name, number)],
                        partition_max_bytes=partition_bytes,
                    )
                    for number in numbers
                ),
            )
            for name, numbers in _by_topic(offsets).items()
        ),
    )


def _take_times(
    answer: Any, offsets: Mapping[TopicPartition, int], found: dict[TopicPartition, int]
) -> list[TopicPartition]:
    """Add the times of an answer to ``found``; return partitions whose batch did not fit."""
    left: list[TopicPartition] = []
    for topic in answer.responses if answer is not None else ():
        for one in topic.partitions:
            partition = TopicPartition(topic.topic, int(one.partition_index))
            offset, end = offsets.get(partition), int(one.high_watermark)
            if offset is None or one.error_code:
                continue
            if not one.records or len(one.records) < HEADER_SIZE:
                if offset < end:
                    left.append(partition)
                continue
            time_ms, after = first_time(one.records, offset)
            if time_ms is not None:
                found[partition] = time_ms
            elif after >= end:
                found[partition] = ONLY_MARKERS
    return left
