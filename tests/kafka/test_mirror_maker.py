"""The MirrorMaker configuration of ``docs/migrate.md`` moves records, settings and groups."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
)
from confluent_kafka.cimpl import NewTopic, TopicPartition

from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tools import kafka_broker, mirror_maker
from tools.places import ROOT, ToolAbsent

PAGE = ROOT / "docs" / "migrate.md"
TOPIC, PARTITIONS = "orders", 3
BEFORE, AFTER = 3_000, 300
SECONDS_MAX = 180.0
FIRST_MS = int(time.time() * 1000) - 3_600_000  # within the topic's retention
SETTINGS = {"retention.ms": "1234567890", "max.message.bytes": "2000000"}
LATER = {"retention.ms": "2345678901"}
OF_THE_SOURCE = {"remote.storage.enable": "false"}  # the page leaves it out

Record = tuple[int, bytes, bytes, str, int]  # with the headers as Python shows them


@pytest.fixture
def source(tmp_path: Path) -> Iterator[str]:
    if mirror_maker.PROGRAM.class_path() is None:
        pytest.skip("MirrorMaker is not installed: run `make tools`")
    try:
        with kafka_broker.serve(tmp_path / "kafka") as port:
            yield f"127.0.0.1:{port}"
    except ToolAbsent as absent:
        pytest.skip(str(absent))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[str]:
    config = {"default.replication.factor": "1", "log.segment.bytes": "65536"}
    with NodeProcess(tmp_path / "node", config=config) as node:
        yield node.address


def properties_of_page(source: str, target: str, *, is_exactly_once: bool = False) -> str:
    """Return the page's configuration for these clusters of one node each."""
    copy, exactly_once = re.findall(r"```properties\n(.*?)```", PAGE.read_text(), re.DOTALL)
    text = copy + exactly_once.replace("0.0.0.0:8083", "127.0.0.1:0") * is_exactly_once
    text = text.replace("kafka:9092", source).replace("tidelog:9092", target)
    return re.sub(r"(replication\.factor) = 3", r"\1 = 1", text)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_records_settings_and_groups_move(source: str, target: str, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": source})
    new = NewTopic(TOPIC, PARTITIONS, 1, config={**SETTINGS, **OF_THE_SOURCE})
    admin.create_topics([new])[TOPIC].result()
    produce(source, range(BEFORE))
    done = consume(source, "billing", BEFORE)
    half = consume(source, "slow", BEFORE // 2)
    assert len(done) == BEFORE

    properties = tmp_path / "mm2.properties"
    properties.write_text(properties_of_page(source, target))
    with mirror_maker.PROGRAM.running(properties):
        at_target = AdminClient({"bootstrap.servers": target})
        eventually(lambda: ends(at_target) is not None, "the topic is there", SECONDS_MAX)
        eventually(
            lambda: (
                sum((ends(at_target) or {}).values()) == BEFORE
                and committed(at_target, "billing") == ends(at_target)
                and committed(at_target, "slow").keys() == committed(admin, "slow").keys()
            ),
            lambda: f"{committed(at_target, 'billing')} is at {ends(at_target)}",
            SECONDS_MAX,
        )
        assert by_partition(consume(target, "check", BEFORE)) == by_partition(done)
        produce(source, range(BEFORE, BEFORE + AFTER))
        # Nothing is read twice by a group that had read everything, and nothing is skipped.
        moved = consume(target, "billing", AFTER)
        assert sorted(number_of(one) for one in moved) == list(range(BEFORE, BEFORE + AFTER))
        rest = set(range(BEFORE + AFTER)) - {number_of(one) for one in half}
        again = {number_of(one) for one in consume(target, "slow", None)}
        assert rest <= again
        change = ConfigEntry("retention.ms", LATER["retention.ms"])
        resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[change])
        change.incremental_operation = AlterConfigOpType.SET
        admin.incremental_alter_configs([resource])[resource].result()
        eventually(
            lambda: settings_of(target)["retention.ms"] == LATER["retention.ms"],
            lambda: f"settings are {settings_of(target)}",
            SECONDS_MAX,
        )
    settings = settings_of(target)
    assert settings.items() >= {**SETTINGS, **LATER}.items()
    assert settings["remote.storage.enable"] == "true"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_record_is_there_once_though_mirror_maker_is_killed_as_it_copies(
    source: str, target: str, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": source})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
    produce(source, range(BEFORE))
    properties = tmp_path / "mm2.properties"
    properties.write_text(properties_of_page(source, target, is_exactly_once=True))
    at_target = AdminClient({"bootstrap.servers": target})
    with mirror_maker.PROGRAM.running(properties) as process:
        # Committed or not: the end is behind the records of open transactions too.
        eventually(
            lambda: sum((ends(at_target) or {}).values()) > 0, "the copy has begun", SECONDS_MAX
        )
        process.kill()
    produce(source, range(BEFORE, BEFORE + AFTER))
    with mirror_maker.PROGRAM.running(properties):
        found = consume(target, "check", BEFORE + AFTER)
        assert consume(target, "check", None) == []
    assert sorted(number_of(one) for one in found) == list(range(BEFORE + AFTER))


def produce(address: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5})
    for number in numbers:
        producer.produce(
            TOPIC,
            key=f"key {number % 100}".encode(),
            value=str(number).encode(),
            headers=[("number", str(number).encode())],
            timestamp=FIRST_MS + number,
        )
    assert producer.flush(SECONDS_MAX) == 0


def consume(address: str, group: str, count: int | None) -> list[Record]:
    """Read as a member of the group, commit, and return the records; None: until silence."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    records: list[Record] = []
    with closing(consumer):
        consumer.subscribe([TOPIC])
        while count is None or len(records) < count:
            message = consumer.poll(15.0 if count is None else SECONDS_MAX)
            if message is None:
                break
            assert message.error() is None, message.error()
            records.append(record_of(message))
        consumer.commit(asynchronous=False)
    assert count is None or len(records) == count
    return records


def record_of(message: Message) -> Record:
    partition, key, value = message.partition(), message.key(), message.value()
    headers = message.headers()
    assert partition is not None
    assert key is not None
    assert value is not None
    assert headers is not None
    return partition, key, value, str(headers), message.timestamp()[1]


def number_of(record: Record) -> int:
    return int(record[2])


def by_partition(records: list[Record]) -> dict[int, list[Record]]:
    found = defaultdict[int, list[Record]](list)
    for record in records:
        found[record[0]].append(record)
    return dict(found)


def partitions() -> list[TopicPartition]:
    return [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]


def ends(admin: AdminClient) -> dict[int, int] | None:
    """Return the offset behind the last record of each partition; None until the topic is led."""
    if TOPIC not in admin.list_topics(timeout=60).topics:
        return None
    asked = admin.list_offsets(dict.fromkeys(partitions(), OffsetSpec.latest()))
    try:
        return {partition.partition: one.result().offset for partition, one in asked.items()}
    except KafkaException as error:
        # librdkafka says _NOENT if no partition has a leader, as in a diskless topic's first moments.
        if error.args[0].code() not in (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._NOENT):
            raise
        return None


def committed(admin: AdminClient, group: str) -> dict[int, int]:
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, partitions())])
    found = asked[group].result().topic_partitions
    return {one.partition: one.offset for one in found if one.offset >= 0}


def settings_of(address: str) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": address})
    resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC)
    found = admin.describe_configs([resource])[resource].result()
    return {name: entry.value for name, entry in found.items()}
