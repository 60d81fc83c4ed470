"""Transactions of real clients on a real node."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.node_process import NodeProcess
from tools import kafka_java

CONFIG = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "remote.task.interval.ms": "100",
    "log.retention.check.interval.ms": "200",
}
WAIT_SECONDS = 30.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for all tests here."""
    with NodeProcess(tmp_path_factory.mktemp("transactions") / "node", config=CONFIG) as process:
        yield process


def create(node: NodeProcess, topic: str, partitions: int = 1, **config: str) -> None:
    dotted = {name.replace("_", "."): value for name, value in config.items()}
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic(topic, partitions, 1, config=dotted)])[topic].result(60)


def producer(node: NodeProcess, transactional_id: str, **config: Any) -> Producer:
    made = Producer(
        {
            "bootstrap.servers": node.address,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            **config,
        }
    )
    made.init_transactions(WAIT_SECONDS)
    return made


def write(made: Producer, topic: str, *values: str, partition: int = 0) -> None:
    for value in values:
        made.produce(topic, value, partition=partition)
    assert made.flush(WAIT_SECONDS) == 0


def read(
    node: NodeProcess, topic: str, *, level: str = "read_committed", partitions: int = 1
) -> list[str]:
    """Return what a consumer of this isolation level sees, up to where it can go."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.address,
            "group.id": "readers",
            "isolation.level": level,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        found: list[str] = []
        ended: set[int] = set()
        deadline = time.monotonic() + WAIT_SECONDS
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"only {len(found)} records came"
            for message in consumer.consume(1000, timeout=0.2):
                error = message.error()
                if error is None:
                    found.append(message.value().decode())
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise KafkaException(error)
        return found
    finally:
        consumer.close()


def await_read(node: NodeProcess, topic: str, expected: list[str], **options: Any) -> None:
    """Wait until a consumer sees exactly these records."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := read(node, topic, **options)) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def test_consumers_see_what_was_committed_and_nothing_else(node: NodeProcess) -> None:
    create(node, "plain")
    made = producer(node, "plain")
    made.begin_transaction()
    write(made, "plain", "a", "b")
    assert read(node, "plain") == []
    assert read(node, "plain", level="read_uncommitted") == ["a", "b"]
    made.commit_transaction(WAIT_SECONDS)
    await_read(node, "plain", ["a", "b"])
    made.begin_transaction()
    write(made, "plain", "c")
    made.abort_transaction(WAIT_SECONDS)
    made.begin_transaction()
    write(made, "plain", "d")
    made.commit_transaction(WAIT_SECONDS)
    await_read(node, "plain", ["a", "b", "d"])
    assert read(node, "plain", level="read_uncommitted") == ["a", "b", "c", "d"]


def test_an_open_transaction_holds_back_what_comes_after_it(node: NodeProcess) -> None:
    create(node, "held")
    slow, quick = producer(node, "slow"), producer(node, "quick")
    slow.begin_transaction()
    write(slow, "held", "slow")
    quick.begin_transaction()
    write(quick, "held", "quick")
    quick.commit_transaction(WAIT_SECONDS)
    assert read(node, "held") == []
    slow.abort_transaction(WAIT_SECONDS)
    await_read(node, "held", ["quick"])


def test_a_producer_whose_id_is_taken_over_is_fenced(node: NodeProcess) -> None:
    create(node, "fenced")
    old = producer(node, "taken-over")
    old.begin_transaction()
    write(old, "fenced", "old")
    new = producer(node, "taken-over")
    new.begin_transaction()
    write(new, "fenced", "new")
    new.commit_transaction(WAIT_SECONDS)
    with pytest.raises(KafkaException) as raised:
        old.commit_transaction(WAIT_SECONDS)
    assert raised.value.args[0].fatal()
    await_read(node, "fenced", ["new"])


def test_a_transaction_that_nobody_ends_is_aborted_in_time(node: NodeProcess) -> None:
    create(node, "timed-out")
    left = producer(node, "left", **{"transaction.timeout.ms": 1500})
    left.begin_transaction()
    write(left, "timed-out", "left")
    other = producer(node, "other")
    other.begin_transaction()
    write(other, "timed-out", "other")
    other.commit_transaction(WAIT_SECONDS)
    await_read(node, "timed-out", ["other"])
    with pytest.raises(KafkaException):
        left.commit_transaction(WAIT_SECONDS)


def test_tiered_segments_keep_what_was_aborted_from_consumers(node: NodeProcess) -> None:
    create(node, "tiered", segment_bytes="4000", local_retention_bytes="1")
    made = producer(node, "tiered")
    expected = []
    for index in range(40):
        made.begin_transaction()
        write(made, "tiered", f"{index} " + "x" * 300)
        if index % 3 == 0:
            made.abort_transaction(WAIT_SECONDS)
        else:
            made.commit_transaction(WAIT_SECONDS)
            expected.append(f"{index} " + "x" * 300)
    directory = node.data_dir / "tiered-0"

    def first_local() -> int:
        return min(int(path.stem) for path in directory.glob("*.log"))

    deadline = time.monotonic() + WAIT_SECONDS
    while first_local() < 30:
        assert time.monotonic() < deadline, "the old segments are still on the node"
        time.sleep(0.1)
    await_read(node, "tiered", expected)


def test_transactions_survive_a_kill_of_the_only_node(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node", config=CONFIG) as node:
        create(node, "killed")
        made = producer(node, "killed")
        expected = []
        for index in range(2):
            made.begin_transaction()
            write(made, "killed", f"{index} before")
            if index % 2:
                node.kill()
                node.start()
            write(made, "killed", f"{index} after")
            made.commit_transaction(WAIT_SECONDS)
            if not index % 2:
                # Its markers may not be there yet: they are whoever's who comes next.
                node.kill()
                node.start()
            expected += [f"{index} before", f"{index} after"]
        await_read(node, "killed", expected)


@pytest.mark.skipif(
    shutil.which("java") is None or kafka_java.class_path() is None,
    reason="needs Java and its client (make tools)",
)
def test_javas_client_copies_exactly_once(node: NodeProcess) -> None:
    create(node, "java-in", partitions=2)
    create(node, "java-out", partitions=2)
    made = producer(node, "for-java")
    values = [f"{index:04}" for index in range(200)]
    made.begin_transaction()
    for index, value in enumerate(values):
        made.produce("java-in", value, partition=index % 2)
    made.commit_transaction(WAIT_SECONDS)
    source = Path(__file__).with_name("TransactionDriver.java")
    done = subprocess.run(
        [
            *("java", "-Xshare:auto", "-cp", str(kafka_java.class_path()), str(source)),
            *(node.address, "java-in", "java-out", "200"),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(read(node, "java-out", partitions=2)) == values
    assert len(read(node, "java-out", partitions=2, level="read_uncommitted")) > 200
