"""A node that is killed has every acknowledged record afterwards, with its disk or without it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.outside_stores import node_with_outside_stores
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient

# ``test_takeovers`` has the small twins.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TOPIC = "t"
COUNT = 30
PRODUCER = 7_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node whose stores outlive its data directory."""
    config = {
        "transaction.state.log.num.partitions": "2",
        "offsets.topic.num.partitions": "2",
        "remote.task.interval.ms": "200",
    }
    with node_with_outside_stores(tmp_path, config) as process:
        yield process


def create(node: NodeProcess, name: str = TOPIC, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": node.address})
    # A part is tiered by then, and a part of that is no longer on the disk.
    config = {"diskless.enable": "true", "segment.bytes": "4000", "local.retention.bytes": "4000"}
    made = admin.create_topics([NewTopic(name, partitions, 1, config=config)])
    made[name].result(60)


def send(client: WireClient, number: int) -> int:
    """Send the producer's batch with this number; return its base offset."""
    batch = batch_of(b"value %d" % number * 50, producer=(PRODUCER, 0, number))
    for _ in range(400):
        answer = client.produce(TOPIC, batch, acks=-1)
        if answer.error_code is ErrorCode.none:
            return int(answer.base_offset)
        assert answer.error_code in (
            ErrorCode.not_leader_or_follower,
            ErrorCode.request_timed_out,
        ), answer
        time.sleep(0.05)
    raise AssertionError(f"not acknowledged: {answer}")


def fill(node: NodeProcess) -> list[int]:
    """Send batches; return their offsets."""
    with WireClient(node.port) as client:
        return [send(client, number) for number in range(COUNT)]


def values_of(node: NodeProcess, count: int, *, isolation: str = "read_committed") -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": node.address,
            "group.id": "readers",
            "enable.auto.commit": False,
            "isolation.level": isolation,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[bytes] = []
    try:
        for _ in range(300):
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(message.value())
            if len(found) >= count:
                break
        extra = consumer.poll(0.3)
        assert extra is None or extra.error() is not None
    finally:
        consumer.close()
    return found


def expected() -> list[bytes]:
    return [b"value %d" % number * 50 for number in range(COUNT)]


def transactional(node: NodeProcess) -> Producer:
    return Producer(
        {
            "bootstrap.servers": node.address,
            "transactional.id": "tx",
            "retry.backoff.ms": 50,
            "transaction.timeout.ms": 60_000,
        }
    )


@pytest.mark.parametrize("is_committed", [True, False], ids=["commit", "abort"])
def test_everything_is_back_after_kill_9_with_the_disk_lost(
    node: NodeProcess, is_committed: bool
) -> None:
    create(node)
    offsets = fill(node)
    assert offsets == list(range(COUNT))
    producer = transactional(node)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(TOPIC, b"in a transaction")
    assert producer.flush(30) == 0
    eventually(lambda: any((node.data_dir.parent / "objects").rglob("*.log")))
    node.kill()
    node.data_dir.rename(node.data_dir.with_name("lost"))  # its workers may still be ending
    node.start()
    # What was sent is recognized, and has its old offset.
    with WireClient(node.port) as client:
        for number in (COUNT - 1, COUNT - 3, COUNT - 2):
            assert send(client, number) == offsets[number]
        assert send(client, COUNT) == COUNT + 1
    if is_committed:
        producer.commit_transaction(60)
    else:
        producer.abort_transaction(60)
    in_transaction = [b"in a transaction"] if is_committed else []
    last = [b"value %d" % COUNT * 50]
    wanted = [*expected(), *in_transaction, *last]
    assert values_of(node, len(wanted)) == wanted
    assert node.log.count("diskless partition led") == 2


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_left_of_the_files_nothing_is_lost(node: NodeProcess, seed: int) -> None:
    create(node)
    offsets = fill(node)
    for turn in range(2):
        node.kill()
        spoil(node.data_dir / f"{TOPIC}-0", random.Random(10 * seed + turn))
        node.start()
        with WireClient(node.port) as client:
            assert send(client, COUNT - 1) == offsets[-1]
        assert values_of(node, COUNT) == expected()


def spoil(folder: Path, chance: random.Random) -> None:
    """Cut files at any byte, change bytes, or remove them."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    logs = [path for path in files if path.suffix == ".log"]
    for path in (*chance.sample(files, min(3, len(files))), chance.choice(logs)):
        data = bytearray(path.read_bytes()) if path.exists() else bytearray()
        match chance.choice(("cut", "flip", "lose")):
            case "cut":
                path.write_bytes(data[: chance.randrange(len(data) + 1)])
            case "flip" if data:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                path.write_bytes(data)
            case _:
                path.unlink(missing_ok=True)


def test_a_node_that_stops_in_order_goes_on_with_what_it_has(node: NodeProcess) -> None:
    create(node)
    offsets = fill(node)
    assert node.stop() == 0
    node.start()
    with WireClient(node.port) as client:
        assert send(client, COUNT - 1) == offsets[-1]
        assert send(client, COUNT) == COUNT
    assert values_of(node, COUNT + 1)[:COUNT] == expected()
