"""A zone's node asks the leader what clients ask of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.describe_producers.v0 import request as producers_messages
from kio.schema.list_offsets.v11 import request as messages
from tidelog.errors import ConnectionFailed
from tidelog_core.errors import ErrorCode
from tidelog_node.handlers.fetch.list_offsets import ListOffsetsHandler
from tidelog_node.handlers.leader_relay import LeaderRelay
from tidelog_node.handlers.transactions.producers import ProducersHandler
from tidelog_node.requests.routes import Route
from tidelog_node.wire.messages import build

from tests.node.diskless.gateway_world import GATEWAY, LEADER, TOPIC, Node, World, gateway_world
from tests.support.batches import batch, batch_of
from tests.support.request_contexts import context_of

LIST_OFFSETS, VERSION, LATEST, EARLIEST = 2, 8, -1, -2


class Direct:
    """Carries requests of one node to the handler of another, and counts them."""

    def __init__(self, leader: Route, version: int = VERSION) -> None:
        self.leader = leader
        self.version = version
        self.count = 0
        self.is_away = False

    async def request(self, broker_id: int, api: Any, message: Any, *, timeout_s: float) -> Any:
        assert broker_id == LEADER
        key, version = self.leader.api_key, self.version
        assert (api.key, api.min_version, api.max_version) == (key, version, version)
        self.count += 1
        if self.is_away:
            raise ConnectionFailed("away")
        context = context_of(version, api_key=key, node_id=GATEWAY)
        return await self.leader.handle(message, context)


def handler_of(node: Node) -> Route:
    handler = ListOffsetsHandler(node.context, replicas=node.replicas, inspector=node.inspector)
    return handler.routes()[0]


class Relayed:
    """ListOffsets at the gateway."""

    def __init__(self, world: World) -> None:
        self.peers: Any = Direct(handler_of(world.leader))
        node = world.gateway
        relay = LeaderRelay(node.context, replicas=node.replicas, peers=self.peers)
        other = Route(99, 0, 0, self.peers.leader.handle)
        self.route, unchanged = relay.wrap([handler_of(node), other])
        assert unchanged is other

    async def ask(self, *topics: tuple[str, list[tuple[int, int]]], node_id: int = -1) -> list[Any]:
        """Return name, partition, error and offset for each partition and timestamp."""
        wanted = [
            build(
                messages.ListOffsetsTopic,
                name=name,
                partitions=tuple(
                    build(messages.ListOffsetsPartition, partition_index=n, timestamp=at)
                    for n, at in partitions
                ),
            )
            for name, partitions in topics
        ]
        request = build(messages.ListOffsetsRequest, replica_id=-1, topics=tuple(wanted))
        context = context_of(VERSION, api_key=LIST_OFFSETS, node_id=node_id)
        answer: Any = await self.route.handle(request, context)
        return [
            (topic.name, one.partition_index, one.error_code, one.offset)
            for topic in answer.topics
            for one in topic.partitions
        ]


@pytest.fixture
async def relayed(tmp_path: Path) -> AsyncIterator[Relayed]:
    async with gateway_world(tmp_path) as world:
        await world.leader.send(batch(7))
        yield Relayed(world)


NONE, UNKNOWN = ErrorCode.none, ErrorCode.unknown_topic_or_partition
NOT_LEADER = ErrorCode.not_leader_or_follower


async def test_the_leaders_answers_are_in_the_order_of_the_request(relayed: Relayed) -> None:
    found = await relayed.ask(
        ("none", [(0, LATEST)]), (TOPIC, [(3, LATEST), (0, LATEST)]), ("none", [(1, LATEST)])
    )
    assert found == [
        ("none", 0, UNKNOWN, -1),
        (TOPIC, 3, UNKNOWN, -1),
        (TOPIC, 0, NONE, 7),
        ("none", 1, UNKNOWN, -1),
    ]
    assert relayed.peers.count == 1
    assert await relayed.ask((TOPIC, [(0, EARLIEST)])) == [(TOPIC, 0, NONE, 0)]


async def test_a_topic_without_partitions_has_an_answer_without_any(relayed: Relayed) -> None:
    found = await relayed.ask((TOPIC, []), (TOPIC, [(0, LATEST)]), ("none", []), ("none", [(1, 0)]))
    assert found == [(TOPIC, 0, NONE, 7), ("none", 1, UNKNOWN, -1)]


async def test_a_partition_that_is_named_twice_is_refused_here(relayed: Relayed) -> None:
    found = await relayed.ask((TOPIC, [(0, LATEST), (0, EARLIEST)]))
    assert [code for _, _, code, _ in found] == [ErrorCode.invalid_request] * 2
    assert relayed.peers.count == 0


async def test_without_the_leader_the_client_tries_again(relayed: Relayed) -> None:
    relayed.peers.is_away = True
    assert await relayed.ask((TOPIC, [(0, LATEST)])) == [(TOPIC, 0, NOT_LEADER, -1)]


async def test_requests_of_nodes_are_not_passed_on(relayed: Relayed) -> None:
    """Two nodes that take each other for the leader would pass them on for ever."""
    found = await relayed.ask((TOPIC, [(0, LATEST)]), node_id=3)
    assert found == [(TOPIC, 0, NOT_LEADER, -1)]
    assert relayed.peers.count == 0


async def test_the_leader_is_asked_for_producers(tmp_path: Path) -> None:
    """A replica answers NOT_LEADER_OR_FOLLOWER, and the client would ask it again for ever."""
    async with gateway_world(tmp_path) as world:
        await world.leader.send(batch_of(b"a", b"b", b"c", producer=(7, 0, 0)))
        leader, gateway = (
            ProducersHandler(node.context, replicas=node.replicas).routes()[0]
            for node in (world.leader, world.gateway)
        )
        peers: Any = Direct(leader, version=0)
        node = world.gateway
        relay = LeaderRelay(node.context, replicas=node.replicas, peers=peers)
        (route,) = relay.wrap([gateway])
        topics = tuple(
            build(producers_messages.TopicRequest, name=name, partition_indexes=indexes)
            for name, indexes in (("none", (0,)), (TOPIC, (3, 0)), (TOPIC, ()))
        )
        request = build(producers_messages.DescribeProducersRequest, topics=topics)
        context = context_of(0, api_key=61, node_id=-1)
        answer: Any = await route.handle(request, context)
        found = [
            (topic.name, one.partition_index, one.error_code, len(one.active_producers))
            for topic in answer.topics
            for one in topic.partitions
        ]
        assert found == [
            ("none", 0, UNKNOWN, 0),
            (TOPIC, 3, UNKNOWN, 0),
            (TOPIC, 0, NONE, 1),
        ]
        producer = answer.topics[1].partitions[1].active_producers[0]
        assert (producer.producer_id, producer.last_sequence) == (7, 2)
        peers.is_away = True
        answer = await route.handle(request, context)
        assert answer.topics[1].partitions[1].error_code == NOT_LEADER
        assert peers.count == 2
