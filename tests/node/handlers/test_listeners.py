"""Clients are told the addresses of the listener that they came by."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tidelog_core.errors import ErrorCode
from tidelog_core.metadata.endpoints import BrokerEndpoint
from tidelog_core.metadata.records import put
from tidelog_core.model import CONSUMER_OFFSETS_TOPIC, NO_LEADER
from tidelog_node.replicas.leaders import Leaders

from tests.node.handlers.control_plane import Node, cluster
from tests.support.request_contexts import a_session

METADATA, DESCRIBE_CLUSTER, FIND_COORDINATOR, CREATE = 3, 60, 10, 19


async def listen(node: Node, broker_id: int, *endpoints: BrokerEndpoint) -> None:
    """Have the broker registered with these listeners."""
    before = node.view.image.brokers[broker_id]
    after = dataclasses.replace(before, endpoints=endpoints)
    await node.view._store.commit([put(after)])
    await node.view.refresh()


async def with_listeners(node: Node) -> None:
    """Broker 1 has two listeners, broker 2 one of them."""
    await node.ask(CREATE, 7, topics=[{"name": "t", "num_partitions": 2, "replication_factor": 1}])
    clients, inside = BrokerEndpoint("CLIENTS", "out", 1), BrokerEndpoint("INSIDE", "in", 2)
    await listen(node, 1, clients, inside)
    await listen(node, 2, BrokerEndpoint("CLIENTS", "out", 3))


async def test_metadata_has_the_brokers_that_a_client_of_the_listener_can_reach(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, nodes=2) as (node, _):
        await with_listeners(node)
        for _ in range(2):  # The second answers come from the cache.
            node.session = a_session(listener="CLIENTS")
            answer = await node.ask(METADATA, 12, topics=[{"name": "t"}])
            found = [(b.node_id, b.host, b.port) for b in answer.brokers]
            assert found == [(1, "out", 1), (2, "out", 3)]
            leaders = sorted(p.leader_id for p in answer.topics[0].partitions)
            assert leaders == [1, 2]
            node.session = a_session(listener="INSIDE")
            answer = await node.ask(METADATA, 12, topics=[{"name": "t"}])
            found = [(b.node_id, b.host, b.port) for b in answer.brokers]
            assert found == [(1, "in", 2)]
            leaders = sorted(p.leader_id for p in answer.topics[0].partitions)
            assert leaders == [NO_LEADER, 1]


async def test_describe_cluster_has_them_too(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=2) as (node, _):
        await with_listeners(node)
        node.session = a_session(listener="INSIDE")
        answer = await node.ask(DESCRIBE_CLUSTER, 1)
        assert [(b.broker_id, b.host, b.port) for b in answer.brokers] == [(1, "in", 2)]


async def test_a_coordinator_without_the_listener_is_not_available(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=2) as (node, _):
        await node.ask(FIND_COORDINATOR, 3, key="g", key_type=0)
        await with_listeners(node)
        found = {}
        for listener in ("CLIENTS", "INSIDE"):
            node.session = a_session(listener=listener)
            keys = tuple(f"g{n}" for n in range(40))
            answer = await node.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=keys)
            found[listener] = {(c.node_id, c.host, c.port) for c in answer.coordinators}
        assert node.view.image.partitions(CONSUMER_OFFSETS_TOPIC)
        assert found["CLIENTS"] == {(1, "out", 1), (2, "out", 3)}
        assert found["INSIDE"] == {(1, "in", 2), (-1, "", -1)}
        answer = await node.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=keys)
        refused = ErrorCode.coordinator_not_available
        assert {c.error_code for c in answer.coordinators if c.node_id < 0} == {refused}


async def test_leaders_are_named_with_the_endpoint_of_the_listener(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=2) as (node, _):
        await with_listeners(node)
        leaders = Leaders(node.view)
        inside = leaders.endpoints({2, 1, 9}, "INSIDE")
        assert [(e.broker_id, e.host, e.port) for e in inside] == [(1, "in", 2)]
        outside = leaders.endpoints({2, 1, 9}, "CLIENTS")
        assert [(e.broker_id, e.port) for e in outside] == [(1, 1), (2, 3)]
