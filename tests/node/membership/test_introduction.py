"""When a node says that it is ready, the other nodes show it to clients."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from tidelog_core.config import NodeConfig
from tidelog_core.metadata.endpoints import NODE, BrokerEndpoint
from tidelog_node.membership import introduction
from tidelog_node.membership.registration import register_broker
from tidelog_node.security.node_identity import generate_identity

from tests.node.replication.led_node import LedNode, led_node
from tests.support.node_process import NodeProcess

WARNING = "brokers may not know this one yet"
SELDOM_POLLING = NodeConfig(metadata_poll_interval_ms=60_000)


@pytest.fixture
def first(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node that learns of others by its own polls late."""
    store = f"sqlite://{tmp_path}/metadata.db"
    with NodeProcess(
        tmp_path / "first", metadata_store=store, config={"metadata.poll.interval.ms": "3000"}
    ) as node:
        yield node


@contextmanager
def hanging_port() -> Iterator[int]:
    """A port that takes connections, and answers nothing."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)  # which nobody accepts
        yield listening.getsockname()[1]


async def introduced(node: LedNode, ports: Mapping[int, int]) -> None:
    """Register brokers at these ports, and introduce the node to them."""
    for broker_id, port in ports.items():
        await register_broker(
            node.store,
            broker_id=broker_id,
            incarnation=uuid4(),
            endpoints=(BrokerEndpoint(NODE, "127.0.0.1", port),),
            rack=None,
            certificate=generate_identity(broker_id).certificate,
        )
    await node.view.refresh()
    async with asyncio.timeout(30):
        await introduction.introduce(node.context)


def second_of(first: NodeProcess, **config: str) -> NodeProcess:
    return NodeProcess(
        first.data_dir.with_name("second"),
        broker_id=2,
        metadata_store=first.metadata_store,
        config={key.replace("_", "."): value for key, value in config.items()},
    )


def test_a_node_that_is_ready_is_shown_by_the_others(first: NodeProcess) -> None:
    with second_of(first, metadata_poll_interval_ms="3000") as second:
        for asked in (first, second):
            admin = AdminClient({"bootstrap.servers": asked.address})
            shown = admin.describe_cluster().result(30).nodes
            assert sorted(node.id for node in shown) == [1, 2]
        assert WARNING not in second.log


def test_a_node_that_hangs_keeps_no_other_from_starting(first: NodeProcess) -> None:
    os.kill(first.pid, signal.SIGSTOP)
    try:
        with second_of(first) as second:
            assert f"{WARNING} brokers=[1]" in second.log
    finally:
        os.kill(first.pid, signal.SIGCONT)


async def test_polls_of_a_minute_let_no_node_that_hangs_hold_up_a_start_for_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(introduction, "SECONDS_MAX", 0.2, raising=False)

    with hanging_port() as port:
        async with led_node(tmp_path, SELDOM_POLLING) as node:
            await introduced(node, {2: port, 3: port})
    said = [record for record in caplog.records if record.message == WARNING]
    assert [getattr(record, "brokers", []) for record in said] == [[2, 3]]


async def test_brokers_that_hang_keep_no_other_from_being_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many hang as are dialed at once."""
    monkeypatch.setattr(introduction, "AT_ONCE", 2)
    monkeypatch.setattr(introduction, "SECONDS_MIN", 0.05)
    with hanging_port() as port, socket.socket() as third:
        third.bind(("127.0.0.1", 0))
        third.listen()
        third.setblocking(False)
        async with led_node(tmp_path, SELDOM_POLLING) as node:
            ports = {2: port, 3: port, 4: third.getsockname()[1]}
            meeting = asyncio.create_task(introduced(node, ports))
            async with asyncio.timeout(30):
                accepted, _ = await asyncio.get_running_loop().sock_accept(third)
            accepted.close()
            meeting.cancel()
            await asyncio.gather(meeting, return_exceptions=True)


def test_a_node_that_was_killed_is_not_waited_for(first: NodeProcess) -> None:
    first.kill()
    with second_of(first) as second:
        assert WARNING not in second.log
