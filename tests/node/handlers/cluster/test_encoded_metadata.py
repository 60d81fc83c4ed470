"""Responses put together are those that are encoded in one go, and topics are encoded once."""

from __future__ import annotations

import dataclasses
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.metadata.v10 import response as response_v10
from kio.schema.metadata.v13 import response as response_v13
from tidelog_core.api_keys import ApiKey
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import Partition, Topic
from tidelog_node.handlers.cluster.encoded_metadata import (
    Encoded,
    EncodedTopics,
    TopicKey,
    encode_partition,
    encode_topic,
    join_partitions,
    join_topics,
)
from tidelog_node.wire.messages import build, write_response

IDS = st.lists(st.integers(0, 9), max_size=3).map(tuple)
PARTITIONS = st.builds(
    lambda index, leader, replicas, isr: build(
        response_v13.MetadataResponsePartition,
        partition_index=index,
        leader_id=leader,
        replica_nodes=replicas,
        isr_nodes=isr,
    ),
    st.integers(0, 2**31 - 1),
    st.integers(-1, 9),
    IDS,
    IDS,
)
TOPICS = st.builds(
    lambda name, topic_id, partitions: build(
        response_v13.MetadataResponseTopic,
        name=name,
        topic_id=topic_id,
        partitions=tuple(partitions),
    ),
    st.text("abc", min_size=1, max_size=200),
    st.uuids(),
    st.lists(PARTITIONS, max_size=3),
)


@given(version=st.integers(0, 13), topics=st.lists(TOPICS, max_size=200))
def test_joined_topics_are_the_response_encoded_in_one_go(
    version: int, topics: list[response_v13.MetadataResponseTopic]
) -> None:
    cls = response_v10.MetadataResponse if version < 11 else response_v13.MetadataResponse

    def encoded(some: tuple[object, ...]) -> bytes:
        response = build(cls, cluster_id="c", controller_id=4, topics=some)
        return write_response(ApiKey.METADATA, version, response)

    pieces = [encode_topic(topic, version) for topic in topics]
    assert join_topics(encoded(()), pieces, version) == encoded(tuple(topics))


@given(version=st.integers(0, 13), topic=TOPICS, operations=st.integers(-(2**31), 2**31 - 1))
def test_joined_partitions_are_the_topic_encoded_in_one_go(
    version: int, topic: response_v13.MetadataResponseTopic, operations: int
) -> None:
    topic = dataclasses.replace(topic, topic_authorized_operations=operations)  # type: ignore[arg-type]
    empty = encode_topic(dataclasses.replace(topic, partitions=()), version)
    pieces = [encode_partition(partition, version) for partition in topic.partitions]
    assert join_partitions(empty, pieces, version) == encode_topic(topic, version)


@pytest.mark.parametrize("change", ["topic", "partitions", "brokers"])
async def test_a_topic_is_encoded_again_when_what_it_is_made_of_changes(change: str) -> None:
    made: list[str] = []

    async def make(topic: Topic) -> Encoded:
        made.append(topic.name)
        return Encoded(topic.name.encode(), {})

    topics = {n: Topic(name=n, topic_id=UUID(int=i), partition_count=1) for i, n in enumerate("ab")}
    partitions = {topic.topic_id: (_partition(topic, 1),) for topic in topics.values()}
    image = ClusterImage(topics=topics, partitions_by_topic=partitions)
    brokers: dict[int, object] = {}
    encoded = EncodedTopics()

    async def get(names: str) -> None:
        for name in names:
            found = await encoded.get(
                image, brokers, TopicKey(name, 12, has_operations=False, zone=""), make
            )
            assert found.data == name.encode()

    await get("abab")
    assert made == ["a", "b"]
    if change == "topic":
        renewed = {**topics, "a": dataclasses.replace(topics["a"], configs={"x": "y"})}
        image = dataclasses.replace(image, topics=renewed)
    elif change == "partitions":
        moved = {**partitions, topics["a"].topic_id: (_partition(topics["a"], 2),)}
        image = dataclasses.replace(image, partitions_by_topic=moved)
    else:
        brokers = {}
    await get("ab")
    assert made == ["a", "b", *("ab" if change == "brokers" else "a")]


def _partition(topic: Topic, leader: int) -> Partition:
    return Partition(
        topic_id=topic.topic_id,
        partition=0,
        replicas=(leader,),
        leader=leader,
        leader_epoch=0,
        isr=(leader,),
    )
