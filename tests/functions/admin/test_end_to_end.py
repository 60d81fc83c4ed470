"""Real nodes and the admin API on one store: what is changed here happens there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from tests.support.local_admin import LocalAdmin, local_admin
from tests.support.replicated_cluster import (
    MEMORY_DIR,
    ReplicatedCluster,
    replicated_cluster,
)
from tests.support.waiting import eventually

DEADLINE_SECONDS = 120.0
POLL_SECONDS = 1.0  # five times metadata.poll.interval.ms: the machine may be busy


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ReplicatedCluster, Any]]:
    """Three nodes, and the API as a process of its own; nothing but the stores joins them."""
    folder = tmp_path_factory.mktemp("cluster")
    with TemporaryDirectory(dir=MEMORY_DIR if MEMORY_DIR.is_dir() else folder) as quick:
        metadata = f"sqlite://{quick}/metadata.db"
        with (
            replicated_cluster(folder, metadata_store=metadata) as cluster,
            local_admin(metadata, f"file://{folder}/objects") as admin,
        ):
            yield cluster, admin


@pytest.fixture
def cluster(running: tuple[ReplicatedCluster, LocalAdmin]) -> ReplicatedCluster:
    """The nodes."""
    return running[0]


@pytest.fixture
def admin(running: tuple[ReplicatedCluster, LocalAdmin]) -> LocalAdmin:
    """The API."""
    return running[1]


def create(admin: LocalAdmin, name: str, *assignments: list[int], **configs: str) -> None:
    dotted = {key.replace("_", "."): value for key, value in configs.items()}
    body = {"name": name, "assignments": list(assignments), "configs": dotted}
    assert admin.done("POST", "/topics", body)["is_applied"]
    # Whoever asked a node for the topic too early would wait out its client's own pause.
    time.sleep(POLL_SECONDS)


def produce(
    cluster: ReplicatedCluster,
    topic: str,
    count: int,
    *,
    partition: int = 0,
    timestamp_ms: int | None = None,
) -> None:
    """Produce numbered records, a millisecond apart; by default from now on."""
    first_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
    config = {"bootstrap.servers": cluster.addresses, "acks": "all", "batch.size": 4_000}
    failures: list[object] = []
    producer = Producer(config)
    for number in range(count):
        producer.produce(
            topic,
            b"%05d" % number + b"x" * 200,
            partition=partition,
            timestamp=first_ms + number,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(30) == 0
    assert failures == []


def consume(cluster: ReplicatedCluster, group: str, topic: str, count: int) -> list[int]:
    """Join the group, read so many records, commit and leave; return their offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.addresses,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
        }
    )
    consumer.subscribe([topic])
    offsets: list[int] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    try:
        while len(offsets) < count:
            assert time.monotonic() < deadline, f"only {len(offsets)} records came"
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                offsets.append(message.offset())
                last = message
        consumer.commit(message=last, asynchronous=False)
    finally:
        consumer.close()
    return offsets


def test_a_topic_created_here_takes_records_there(
    cluster: ReplicatedCluster, admin: LocalAdmin
) -> None:
    brokers = admin.done("GET", "/brokers")["brokers"]
    assert [(b["broker_id"], b["is_live"]) for b in brokers] == [(1, True), (2, True), (3, True)]
    create(admin, "made", [1, 2, 3])
    produce(cluster, "made", 10)
    assert consume(cluster, "readers", "made", 10) == list(range(10))
    deleted = admin.done("DELETE", "/topics/made")
    assert deleted["name"] == "made"
    clients = AdminClient({"bootstrap.servers": cluster.addresses})
    eventually(lambda: "made" not in clients.list_topics(timeout=60).topics, "it is gone there")


def test_a_setting_changed_here_is_in_force_there(
    cluster: ReplicatedCluster, admin: LocalAdmin
) -> None:
    create(admin, "set", [1, 2, 3])
    produce(cluster, "set", 1)
    change = {"name": "max.message.bytes", "operation": "set", "value": "100"}
    admin.done("PATCH", "/topics/set/configs", {"alterations": [change]})

    def is_refused() -> bool:
        errors: list[Any] = []
        producer = Producer({"bootstrap.servers": cluster.addresses})
        producer.produce("set", b"x" * 300, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(60) == 0
        return errors[0] is not None and errors[0].name() == "MSG_SIZE_TOO_LARGE"

    eventually(is_refused, "records of 300 bytes are refused", POLL_SECONDS + 5)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "set")
    clients = AdminClient({"bootstrap.servers": cluster.addresses})
    shown = clients.describe_configs([resource])[resource].result(60)
    assert shown["max.message.bytes"].value == "100"


def test_offsets_reset_here_are_where_the_next_consumer_there_begins(
    cluster: ReplicatedCluster, admin: LocalAdmin
) -> None:
    create(admin, "read", [1, 2, 3], segment_bytes="8000", retention_ms="-1")
    produce(cluster, "read", 200, timestamp_ms=1_000_000)
    assert consume(cluster, "g", "read", 200) == list(range(200))
    path, topics = "/group/offsets/reset", [{"topic": "read"}]
    done = admin.done("POST", path, {"to": "offset", "offset": 120, "topics": topics}, group_id="g")
    assert done["offsets"][0]["offset"] == 120
    assert consume(cluster, "g", "read", 5) == list(range(120, 125))
    admin.done("POST", path, {"to": "earliest", "topics": topics}, group_id="g")
    assert consume(cluster, "g", "read", 5) == list(range(5))
    eventually(
        lambda: admin.done("GET", "/topics/read/partitions/0")["tiered"]["end_offset"] > 60,
        "some of it is in the tier",
    )
    at = {"to": "timestamp", "timestamp_ms": 1_000_042, "topics": topics}
    (found,) = admin.done("POST", path, at, group_id="g")["offsets"]
    assert (found["offset"], found["is_verified"]) == (42, True)
    assert consume(cluster, "g", "read", 5) == list(range(42, 47))
    for beyond in ({"to": "latest"}, {"to": "timestamp", "timestamp_ms": 1_000_199}):
        status, problem = admin("POST", path, {**beyond, "topics": topics}, group_id="g")
        assert (status, problem["error"]) == (422, "INVALID_REQUEST")
        assert "Only the leader of read-0 (broker" in problem["detail"]


def test_a_group_with_a_member_there_is_not_touched_here(
    cluster: ReplicatedCluster, admin: LocalAdmin
) -> None:
    create(admin, "held", [1, 2, 3])
    produce(cluster, "held", 3)
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.addresses,
            "group.id": "holders",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["held"])
    try:
        assert consumer.poll(DEADLINE_SECONDS) is not None
        (member,) = admin.done("GET", "/group", group_id="holders")["members"]
        assert member["assignment"] == [{"topic": "held", "partitions": [0]}]
        body = {"to": "earliest", "topics": [{"topic": "held"}]}
        status, problem = admin("POST", "/group/offsets/reset", body, group_id="holders")
        assert (status, problem["error"]) == (409, "NON_EMPTY_GROUP")
        assert admin("DELETE", "/group", group_id="holders")[0] == 409
        consumer.commit(offsets=[TopicPartition("held", 0, 2)], asynchronous=False)
    finally:
        consumer.close()
    state = lambda: admin.done("GET", "/group", group_id="holders")["state"]  # noqa: E731
    eventually(lambda: state() == "Empty", "the member has left")
    admin.done("DELETE", "/group", group_id="holders")
    clients = AdminClient({"bootstrap.servers": cluster.addresses})

    def is_listed() -> bool:
        found = clients.list_consumer_groups(request_timeout=60).result().valid
        return "holders" in [group.group_id for group in found]

    eventually(lambda: not is_listed(), "its coordinator has noticed", POLL_SECONDS + 5)
    wanted = ConsumerGroupTopicPartitions("holders", [TopicPartition("held", 0)])
    answered = clients.list_consumer_group_offsets([wanted])["holders"].result(60)
    assert answered.topic_partitions[0].offset < 0
    assert consume(cluster, "holders", "held", 3) == [0, 1, 2]


def test_a_reassignment_begun_here_is_carried_out_there(
    cluster: ReplicatedCluster, admin: LocalAdmin
) -> None:
    create(admin, "moved", [1])
    produce(cluster, "moved", 50)
    path = "/topics/moved/partitions/0"
    begun = admin.done("PUT", f"{path}/reassignment", {"replicas": [3, 2]})
    assert begun["reassignments"][0]["adding"] == [3, 2]

    def is_moved() -> bool:
        partition = admin.done("GET", path)["partition"]
        return bool(partition["replicas"] == [3, 2] and partition["leader"] == 3)

    eventually(is_moved, "brokers 3 and 2 have it")
    assert admin.done("GET", "/reassignments", topic="moved") == {"reassignments": []}
    assert consume(cluster, "movers", "moved", 50) == list(range(50))


def test_a_drained_broker_leads_nothing_and_nothing_is_lost(
    cluster: ReplicatedCluster, admin: LocalAdmin
) -> None:
    create(admin, "led", [1, 2, 3], [1, 3, 2], [2, 1, 3])
    cluster.wait_isr("led", {1, 2, 3})
    for partition in range(3):
        produce(cluster, "led", 20, partition=partition)
    drained = admin.done("POST", "/brokers/1/drain")
    assert drained["kept"] == []
    assert drained["moved_count"] >= 2
    clients = AdminClient({"bootstrap.servers": cluster.addresses})

    def leaders() -> set[int]:
        found = clients.list_topics(timeout=60).topics
        return {p.leader for topic in found.values() for p in topic.partitions.values()}

    eventually(lambda: leaders() <= {2, 3}, "clients are told of other leaders")
    for partition in range(3):
        produce(cluster, "led", 20, partition=partition)
        found = cluster_records(cluster, "led", partition, 40)
        assert found == [*range(20), *range(20)]
    (first,) = [b for b in admin.done("GET", "/brokers")["brokers"] if b["broker_id"] == 1]
    assert first["leader_count"] == 0


def cluster_records(
    cluster: ReplicatedCluster, topic: str, partition: int, count: int
) -> list[int]:
    """Return the numbers in a partition's records, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.addresses,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    numbers: list[int] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    try:
        while len(numbers) < count:
            assert time.monotonic() < deadline, f"only {len(numbers)} records came"
            for message in consumer.consume(count - len(numbers), timeout=1):
                assert message.error() is None, message.error()
                numbers.append(int(message.value()[:5]))
    finally:
        consumer.close()
    return numbers
