"""kaskade shows topics, records and lag in a terminal, while it and the node are killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.ecosystem.counting import SECONDS_MAX
from tests.ecosystem.terminal import Terminal
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tools import kaskade

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def administrator(tmp_path: Path, node: NodeProcess) -> Callable[[], Terminal]:
    """Return a new terminal with kaskade in its mode for administrators."""
    program = kaskade.command()
    if program is None:
        pytest.skip("kaskade is not installed: run `make test-ecosystem`")
    command = [program, "admin", "-b", node.address, "--refresh-interval", "5"]
    # Else librdkafka, once all nodes were away, looks for the coordinator of a group at a connection
    # that it has given up, for ever.
    command += ["--kafka", "metadata.recovery.strategy=none"]
    return lambda: Terminal(command, environment={"HOME": str(tmp_path)})


def send(address: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    for number in range(count):
        producer.produce("orders", str(number), partition=number % 3)
    assert producer.flush(SECONDS_MAX) == 0


def commit(address: str, offset: int) -> None:
    """Commit an offset of each partition for the group."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "readers"})
    offsets = [TopicPartition("orders", partition, offset) for partition in range(3)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def row(*, records: int, lag: int) -> str:
    """Return the topic's row: 3 partitions, a replica in sync, a group without a member.

    The columns are narrow: a lag of three digits is cut.
    """
    return f"orders 3 1 1 1 0 ≈{records} ≈{lag} "


def test_the_row_of_a_topic_has_exact_numbers(
    node: NodeProcess, administrator: Callable[[], Terminal]
) -> None:
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic("orders", 3, 1)])["orders"].result(SECONDS_MAX)
    send(node.address, 600)
    commit(node.address, 170)

    def shows(terminal: Terminal, wanted: str) -> None:
        def told() -> str:
            return "\n".join([f"{wanted!r} is shown:", *terminal.lines])

        eventually(lambda: any(wanted in line for line in terminal.lines), told, SECONDS_MAX)

    with administrator() as terminal:
        shows(terminal, row(records=600, lag=90))
    with administrator() as terminal:
        shows(terminal, row(records=600, lag=90))
        node.kill()
        node.start()
        send(node.address, 3)
        shows(terminal, row(records=603, lag=93))
        commit(node.address, 201)
        shows(terminal, row(records=603, lag=0))
        assert terminal.process.poll() is None
