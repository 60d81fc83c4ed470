"""Which consumers without ``client.rack`` are sent to the replica of their zone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tidelog_core.config import NodeConfig
from tidelog_node.replication import session_zones
from tidelog_node.replication.session_zones import SessionZones

from tests.node.replication.led_node import LedNode, led_node
from tests.support.hand_chain import DISKLESS, HandChain
from tests.support.request_contexts import context_of


@asynccontextmanager
async def one_record(
    folder: Path, config: NodeConfig | None = None, **configs: str
) -> AsyncIterator[LedNode]:
    """A partition with one committed record, which both followers have."""
    async with led_node(folder, config) as node:
        replica = await node.create_topic(**configs)
        if replica.is_diskless:
            HandChain().enter(node.replicas, replica, 0)
            await node.change_partition()
        node.send(b"a", acks=1)
        if replica.is_diskless:
            replica.on_chain_committed(1)
        for follower in (2, 3):
            node.read(0, replica_id=follower)
            node.read(1, replica_id=follower)
        yield node


def preferred(node: LedNode, client_id: bytes | None, rack: bytes = b"") -> int:
    """Return the broker that the consumer is sent to, -1 if it gets the record here."""
    answer = node.read(0, client_id=client_id, rack=rack)
    broker_id: int = answer.preferred_read_replica
    assert bool(answer.records) == (broker_id == -1)
    return broker_id


async def test_a_client_id_that_names_a_zone_leads_to_its_replica(tmp_path: Path) -> None:
    async with one_record(tmp_path, **DISKLESS) as node:
        assert preferred(node, b"app,diskless_az=rack2") == 2
        assert preferred(node, b"automq_az=rack3&app") == 3
        assert preferred(node, b"app,ws_az=rack1") == -1
        assert preferred(node, b"app,ws_az=rack9") == -1
        assert preferred(node, b"app") == -1
        assert preferred(node, None) == -1
        assert preferred(node, b"app,ws_az=rack2", b"rack3") == 3


async def test_listener_and_address_tell_the_zone_of_those_that_do_not(tmp_path: Path) -> None:
    by_address = NodeConfig(client_az_cidr_map="127.0.0.0/8=rack3,127.0.0.2/32=rack2")
    async with one_record(tmp_path / "address", by_address, **DISKLESS) as node:
        assert preferred(node, b"app") == 3
        assert preferred(node, b"app,diskless_az=rack2") == 2
    by_listener = NodeConfig(
        client_az_cidr_map="127.0.0.0/8=rack3", client_az_listener_map="plaintext=rack2"
    )
    async with one_record(tmp_path / "listener", by_listener, **DISKLESS) as node:
        assert preferred(node, b"app") == 2


async def test_replicated_partitions_are_read_as_client_rack_says_alone(tmp_path: Path) -> None:
    config = NodeConfig(client_az_cidr_map="127.0.0.0/8=rack2")
    async with one_record(tmp_path, config) as node:
        assert preferred(node, b"app,diskless_az=rack2") == -1
        assert preferred(node, b"app", b"rack2") == 2


async def test_zones_follow_the_racks_of_brokers_and_few_clients_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_zones, "CLIENTS_MAX", 3)
    async with led_node(tmp_path) as node:
        zones = SessionZones(node.context)

        def zone_of(client_id: bytes) -> str | None:
            return zones.of(context_of(12, client_id=client_id).session)

        assert zone_of(b"app,ws_az=rack9") is None
        await node.move(3, "rack9")
        assert zone_of(b"app,ws_az=rack9") == "rack9"
        assert zone_of(b"app,ws_az=rack3") is None
        for number in range(10):
            assert zone_of(b"app%d,ws_az=rack2" % number) == "rack2"
            assert len(zones._known) <= 3
        long_id = b"ws_az=rack2," + b"x" * 30_000
        assert zone_of(long_id) == "rack2"
        assert long_id not in [client_id for client_id, _, _ in zones._known]
