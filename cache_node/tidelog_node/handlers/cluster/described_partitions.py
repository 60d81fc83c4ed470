"""DescribeTopicPartitions: topics in order of their names, page by page.

Source: ``DescribeTopicPartitionsRequestHandler`` of Kafka.
"""

from __future__ import annotations

import heapq
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Container,
    Iterator,
    Mapping,
    Sequence,
)
from itertools import islice

from kio.schema.describe_topic_partitions.v0 import request as describe_request
from kio.schema.describe_topic_partitions.v0 import response as describe_response
from tidelog_core.admin.names import is_internal
from tidelog_core.errors import ErrorCode
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import Broker, Partition, Topic
from tidelog_core.security.operations import ON_TOPIC, OPERATIONS_NOT_REQUESTED

from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.handlers.cluster.shown_topics import shown_leader, unknown_name_error
from tidelog_node.wire.messages import build

DESCRIBED_PARTITIONS_MAX = 2000  # max.request.partition.size.limit of Kafka
SORTED_AT_ONCE = 2_000  # names


async def describe_partitions(
    request: describe_request.DescribeTopicPartitionsRequest,
    *,
    current: Callable[[], ClusterImage],
    refreshed: Callable[[], Awaitable[ClusterImage]],
    brokers_of: Callable[[ClusterImage], Mapping[int, Broker]],
    vanished: Callable[[], Container[int]],
) -> describe_response.DescribeTopicPartitionsResponse:
    """Return topics in order, from the cursor, up to the limit.

    If the current image lacks a topic that the request names, ``refreshed`` returns a newer one.
    ``brokers_of`` returns the brokers that the client can reach, ``vanished`` those that lead
    nothing diskless.
    """
    turn = RequestTurn()
    cursor = request.cursor
    named = {topic.name async for topic in turn.each(request.topics)}
    image = current()
    if not named or not named <= image.topics.keys():
        image = await refreshed()
    start = "" if cursor is None else cursor.topic_name
    is_misplaced = cursor is not None and named and start not in named
    if cursor is not None and (cursor.partition_index < 0 or is_misplaced):
        return await _refuse_all(named, turn)
    limit = max(1, min(DESCRIBED_PARTITIONS_MAX, request.response_partition_limit))
    answers: list[describe_response.DescribeTopicPartitionsResponseTopic] = []
    next_cursor: describe_response.Cursor | None = None
    wanted = [name async for name in turn.each(named or image.topics) if name >= start]
    async for name in turn.each(await _in_order(wanted, turn)):
        topic = image.topic(name)
        if topic is None:
            if named:
                answers.append(_undescribed(_missing(image, name), name, operations=ON_TOPIC))
            continue
        first = cursor.partition_index if cursor is not None and name == start else 0
        partitions = image.partitions(name)[first : first + limit]
        if limit == 0:
            next_cursor = _cursor(name, first)
            break
        answers.append(_described(brokers_of(image), vanished(), topic, partitions))
        limit -= len(partitions)
        if first + len(partitions) < topic.partition_count:
            next_cursor = _cursor(name, first + len(partitions))
            break
    return build(
        describe_response.DescribeTopicPartitionsResponse,
        topics=tuple(answers),
        next_cursor=next_cursor,
    )


async def _refuse_all(
    named: Collection[str], turn: RequestTurn
) -> describe_response.DescribeTopicPartitionsResponse:
    """Return INVALID_REQUEST for every topic that the request names."""
    names = turn.each(await _in_order(named, turn))
    refused = [_undescribed(ErrorCode.invalid_request, name) async for name in names]
    return build(describe_response.DescribeTopicPartitionsResponse, topics=tuple(refused))


def _cursor(topic_name: str, partition_index: int) -> describe_response.Cursor:
    return build(describe_response.Cursor, topic_name=topic_name, partition_index=partition_index)


def _missing(image: ClusterImage, name: str) -> ErrorCode:
    """Return the error of a topic that a request names and the image lacks."""
    return ErrorCode.leader_not_available if image.is_unreadable(name) else unknown_name_error(name)


async def _in_order(names: Collection[str], turn: RequestTurn) -> Iterator[str]:
    """Return the names in order; sorting them all at once would block the event loop."""
    left = iter(names)
    runs: list[list[str]] = []
    while run := sorted(islice(left, SORTED_AT_ONCE)):
        runs.append(run)
        await turn.step()
    return heapq.merge(*runs)


def _described(
    brokers: Mapping[int, Broker],
    vanished: Container[int],
    topic: Topic,
    partitions: Sequence[Partition],
) -> describe_response.DescribeTopicPartitionsResponseTopic:
    return build(
        describe_response.DescribeTopicPartitionsResponseTopic,
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(
            build(
                describe_response.DescribeTopicPartitionsResponsePartition,
                error_code=ErrorCode.none,
                partition_index=partition.partition,
                leader_id=shown_leader(brokers, partition, vanished),
                leader_epoch=partition.leader_epoch,
                replica_nodes=partition.replicas,
                isr_nodes=partition.isr,
                eligible_leader_replicas=(),
                last_known_elr=(),
                offline_replicas=tuple(
                    replica for replica in partition.replicas if replica not in brokers
                ),
            )
            for partition in partitions
        ),
        topic_authorized_operations=ON_TOPIC,
    )


def _undescribed(
    error: ErrorCode, name: str, *, operations: int = OPERATIONS_NOT_REQUESTED
) -> describe_response.DescribeTopicPartitionsResponseTopic:
    return build(
        describe_response.DescribeTopicPartitionsResponseTopic,
        error_code=error,
        name=name,
        is_internal=is_internal(name),
        topic_authorized_operations=operations,
    )
