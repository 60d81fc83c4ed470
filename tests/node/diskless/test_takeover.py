"""Another node takes over what a dead, stopped or sleeping leader led, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tidelog import Admin
from tidelog import TopicPartition as Named

from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually

# ``test_takeovers`` has the small twins.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TOPIC = "t"
PARTITIONS = 6
LEASE_MS = 2_000
PENDING_MAX = 300
LONG_VALUE_BYTES, LONG_VALUES = 64_000, 40  # of each partition: longer than heirs read first
FILLED = "log of a led partition filled"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[int, NodeProcess]]:
    """Three nodes of one cluster."""
    made = {
        broker_id: NodeProcess(
            tmp_path / f"node-{broker_id}",
            broker_id=broker_id,
            metadata_store=f"sqlite://{tmp_path}/metadata.db",
            object_store=f"file://{tmp_path}/objects",
            config={
                "broker.session.timeout.ms": str(LEASE_MS),
                "broker.heartbeat.interval.ms": str(LEASE_MS // 4),
                "metadata.poll.interval.ms": "50",
                "auto.leader.rebalance.enable": "false",
                "offsets.topic.num.partitions": "2",
            },
        )
        for broker_id in (1, 2, 3)
    }
    for node in made.values():
        node.start()
    yield made
    for node in made.values():
        if node.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(node.pid, signal.SIGCONT)
            node.stop()


def bootstrap(nodes: dict[int, NodeProcess]) -> str:
    return ",".join(node.address for node in nodes.values())


def create(nodes: dict[int, NodeProcess]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap(nodes)})
    config = {"diskless.enable": "true"}
    made = admin.create_topics([NewTopic(TOPIC, PARTITIONS, -1, config=config)])
    made[TOPIC].result(60)
    eventually(lambda: min(leaders(nodes).values()) >= 0, "the partitions are led")
    # Metadata name no leader of a new diskless partition before it can lead.
    eventually(lambda: -1 not in leaders(nodes).values(), seconds=120)


def leaders(nodes: dict[int, NodeProcess]) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": bootstrap(nodes)})
    found = admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions
    return {number: partition.leader for number, partition in found.items()}


class Sending:
    """An idempotent producer that sends numbered values to all partitions in the background."""

    def __init__(self, nodes: dict[int, NodeProcess], value_bytes: int = 0) -> None:
        """``value_bytes`` is the least size of a value."""
        self._value_bytes = value_bytes
        self.acked: list[set[int]] = [set() for _ in range(PARTITIONS)]
        self.sent = 0
        self.errors: list[str] = []
        self.longest_s = 0.0  # between two acks of one partition
        self._last: dict[int, float] = {}
        self._ends = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap(nodes),
                "enable.idempotence": True,
                "linger.ms": 5,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.max.ms": 200,
                "message.timeout.ms": 120_000,
                # A node that sleeps does not answer; by default that is found out after a minute.
                "request.timeout.ms": 3_000,
                "socket.timeout.ms": 3_000,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.is_set():
            # What is not acknowledged is bounded: a busy machine would never catch up.
            for partition in range(PARTITIONS if len(self._producer) < PENDING_MAX else 0):
                number = self.sent
                self.sent += 1
                value = (b"%d" % number).ljust(self._value_bytes)
                self._producer.produce(
                    TOPIC, value, partition=partition, on_delivery=self._on_delivery
                )
            self._producer.poll(0.02)
        assert self._producer.flush(100) == 0

    def _on_delivery(self, error: object, message: object) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        partition = message.partition()  # type: ignore[attr-defined]
        self.acked[partition].add(int(message.value()))  # type: ignore[attr-defined]
        now = time.monotonic()
        self.longest_s = max(self.longest_s, now - self._last.get(partition, now))
        self._last[partition] = now

    def wait_for_acks(self, count: int) -> None:
        """Wait until every partition has so many more acks."""
        wanted = [len(acked) + count for acked in self.acked]
        deadline = time.monotonic() + 60
        while any(len(acked) < some for acked, some in zip(self.acked, wanted, strict=True)):
            assert time.monotonic() < deadline, (wanted, [len(a) for a in self.acked], self.errors)
            time.sleep(0.05)

    def end(self) -> None:
        self._ends.set()
        self._thread.join()
        assert not self.errors


def check(nodes: dict[int, NodeProcess], sending: Sending) -> None:
    """Read all partitions from the start: nothing is missing, doubled or out of order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap(nodes),
            "group.id": "readers",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    try:
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
        deadline = time.monotonic() + 60
        total = sum(map(len, sending.acked))
        while sum(map(len, found)) < total and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                found[message.partition()].append(int(message.value()))
    finally:
        consumer.close()
    for acked, values in zip(sending.acked, found, strict=True):
        assert values == sorted(acked)


def test_a_killed_leaders_partitions_are_taken_over_and_nothing_is_lost(
    nodes: dict[int, NodeProcess],
) -> None:
    create(nodes)
    before = leaders(nodes)
    assert set(before.values()) == {1, 2, 3}
    sending = Sending(nodes)
    try:
        sending.wait_for_acks(20)
        nodes[1].kill()
        sending.wait_for_acks(20)
        after = leaders({n: node for n, node in nodes.items() if n != 1})
        assert 1 not in after.values()
        assert {n: b for n, b in after.items() if before[n] != 1} == {
            n: b for n, b in before.items() if b != 1
        }
        nodes[1].start()
        nodes[2].kill()
        sending.wait_for_acks(20)
    finally:
        sending.end()
    print(f"longest wait for an ack: {sending.longest_s:.2f} s")
    nodes[2].start()
    check(nodes, sending)


def test_heirs_lead_before_they_have_read_long_tails_and_are_killed_themselves(
    nodes: dict[int, NodeProcess],
) -> None:
    create(nodes)
    sending = Sending(nodes, LONG_VALUE_BYTES)
    try:
        sending.wait_for_acks(LONG_VALUES)
        for broker_id in (1, 2, 3):
            nodes[broker_id].kill()
            sending.wait_for_acks(LONG_VALUES)
            others = [node for node in nodes.values() if node is not nodes[broker_id]]
            eventually(lambda others=others: any(FILLED in one.log for one in others), seconds=120)
            nodes[broker_id].start()
    finally:
        sending.end()
    print(f"longest wait for an ack: {sending.longest_s:.2f} s")
    check(nodes, sending)


def test_a_leader_that_slept_past_its_lease_meets_the_seal(nodes: dict[int, NodeProcess]) -> None:
    create(nodes)
    sending = Sending(nodes)
    try:
        sending.wait_for_acks(20)
        os.kill(nodes[1].pid, signal.SIGSTOP)
        sending.wait_for_acks(20)
        os.kill(nodes[1].pid, signal.SIGCONT)
        sending.wait_for_acks(20)
    finally:
        sending.end()
    check(nodes, sending)


def wait_for_leaders(nodes: dict[int, NodeProcess], wanted: dict[int, int]) -> None:
    deadline = time.monotonic() + 60
    while (found := leaders(nodes)) != wanted:
        assert time.monotonic() < deadline, (found, wanted)
        time.sleep(0.05)


def require_handed_over(nodes: dict[int, NodeProcess]) -> None:
    """Nobody has ended the chain of a leader that lives: it would have to be written again."""
    for node in nodes.values():
        for bad in ("cannot be ended", "chain sealed", "chain has ended", "lacks the offsets"):
            assert bad not in node.log, [line for line in node.log.splitlines() if bad in line]
        assert node.log.count("chain begins") == 1


def test_a_node_that_stops_hands_its_leads_over(nodes: dict[int, NodeProcess]) -> None:
    create(nodes)
    sending = Sending(nodes)
    try:
        sending.wait_for_acks(20)
        sending.longest_s = 0.0
        assert nodes[1].stop() == 0
        sending.wait_for_acks(20)
    finally:
        sending.end()
    print(f"longest wait for an ack: {sending.longest_s:.2f} s")
    require_handed_over(nodes)
    check(nodes, sending)


def test_leads_that_are_moved_around_lose_and_double_nothing(nodes: dict[int, NodeProcess]) -> None:
    """There and back: the chains that partitions have left are their leaders' current ones."""
    create(nodes)
    sending = Sending(nodes)

    async def move(turn: int) -> dict[int, int]:
        wanted = {number: 1 + (number + turn) % 3 for number in range(PARTITIONS)}
        async with Admin(bootstrap(nodes)) as admin:
            await admin.alter_reassignments(
                {Named(TOPIC, number): [leader] for number, leader in wanted.items()}
            )
        return wanted

    try:
        sending.wait_for_acks(20)
        sending.longest_s = 0.0
        for turn in (1, 2, 0, 2, 1):
            sending.wait_for_acks(3)
            wait_for_leaders(nodes, asyncio.run(move(turn)))
        sending.wait_for_acks(20)
    finally:
        sending.end()
    print(f"longest wait for an ack: {sending.longest_s:.2f} s")
    require_handed_over(nodes)
    check(nodes, sending)


def test_all_nodes_at_once_with_their_disks(nodes: dict[int, NodeProcess], tmp_path: Path) -> None:
    create(nodes)
    sending = Sending(nodes)
    try:
        sending.wait_for_acks(20)
        for node in nodes.values():
            node.kill()
        for node in nodes.values():
            node.data_dir.rename(tmp_path / f"lost-{node.broker_id}")
        for node in nodes.values():
            node.start()
        sending.wait_for_acks(20)
    finally:
        sending.end()
    check(nodes, sending)
