"""Nodes with a blocked event loop: the lease is renewed for a time, but not for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from tidelog_node.membership.lease_thread import LeaseThread

from tests.support.batches import batch_of
from tests.support.stalling_node import STALL_SECONDS, StallingNode
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient

# With a lease of L a loop may stand still for 2/3 L before renewals stop, so the lease holds
# for 11/9 L at least (the last renewal is up to L/3 older), and for 14/9 L at most.
# A busy machine may stop a node for a second, too.
HELD_LEASE_MS, HELD_SECONDS = 3_000, 3.1
LAPSED_LEASE_MS, LAPSED_SECONDS = 2_000, 4.0


def stalling_node(folder: Path, lease_ms: int, seconds: float) -> StallingNode:
    return StallingNode(
        folder / "node",
        config={"broker.session.timeout.ms": str(lease_ms)},
        environment={STALL_SECONDS: str(seconds)},
    )


def produce(client: WireClient) -> ErrorCode:
    """Return the answer to one record."""
    return ErrorCode(client.produce("t", batch_of(b"x")).error_code)


def create_topic(node: StallingNode) -> None:
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)


def produce_while_stalled(node: StallingNode, client: WireClient) -> ErrorCode:
    """Return the answer to a record that has come while the loop stood still."""
    assert produce(client) is ErrorCode.none
    node.stall()
    time.sleep(0.1)
    return produce(client)


def test_a_node_whose_loop_is_blocked_for_a_lease_keeps_it(tmp_path: Path) -> None:
    held = stalling_node(tmp_path, HELD_LEASE_MS, HELD_SECONDS)
    with held as node, WireClient(node.port) as client:
        create_topic(node)
        assert produce_while_stalled(node, client) is ErrorCode.none
        assert "fenced" not in node.log


def test_a_node_whose_loop_stands_still_for_longer_loses_its_lease_and_comes_back(
    tmp_path: Path,
) -> None:
    lapsed = stalling_node(tmp_path, LAPSED_LEASE_MS, LAPSED_SECONDS)
    with lapsed as node, WireClient(node.port) as client:
        create_topic(node)
        assert produce_while_stalled(node, client) is ErrorCode.not_leader_or_follower
        node.wait_logged("event loop is blocked")
        deadline = time.monotonic() + 60
        while produce(client) is not ErrorCode.none:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        eventually(lambda: "the node serves again" in node.log, "the log says so", 60)


async def test_what_is_cancelled_has_ended_on_the_thread() -> None:
    events: list[str] = []
    thread = LeaseThread()
    begun = threading.Event()
    threads: list[threading.Thread] = []

    async def work() -> None:
        assert threading.current_thread().name == "lease"
        threads.append(threading.current_thread())
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            events.append("ended there")

    task = asyncio.create_task(thread.run(work()))
    assert await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    events.append("ended here")
    await thread.close()
    assert not any(each.is_alive() for each in threads)
    assert events == ["ended there", "ended here"]


async def test_what_breaks_on_the_thread_breaks_its_caller() -> None:
    async def work() -> None:
        raise ValueError("broken")

    thread = LeaseThread()
    try:
        with pytest.raises(ValueError, match="broken"):
            await thread.run(work())
    finally:
        await thread.close()


async def test_the_loop_of_the_thread_is_not_the_current_one_of_the_nodes_thread() -> None:
    thread = LeaseThread()
    await thread.run(asyncio.sleep(0))
    policy = asyncio.get_event_loop_policy()
    assert policy.get_event_loop() is asyncio.get_running_loop()
    await thread.close()
    assert policy.get_event_loop() is asyncio.get_running_loop()
