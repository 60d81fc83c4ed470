"""Clients' own producers with topics that ask for schemas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.support.node_process import NodeProcess
from tools.ports import free_port

USER = '{"type":"record","name":"User","fields":[{"name":"id","type":"long"}]}'
SECONDS_MAX = 60.0


class ValidatingNode(NodeProcess):
    """Has a registry, and topics that are validated whole; one of them is diskless."""

    def __init__(self, data_dir: Path) -> None:
        self.registry_port = free_port()
        config = {"diskless.storage.system.enable": "true"}
        arguments = ("--registry-port", str(self.registry_port))
        super().__init__(data_dir, arguments=arguments, config=config)

    def prepare(self) -> None:
        """Create the topics."""
        configs = {
            "confluent.value.schema.validation": "true",
            "tidelog.schema.validation.level": "full",
        }
        topics = [
            NewTopic("plain", 1, 1, config=configs),
            NewTopic("diskless", 1, 1, config={**configs, "diskless.enable": "true"}),
        ]
        admin = AdminClient({"bootstrap.servers": self.address})
        for done in admin.create_topics(topics).values():
            done.result(SECONDS_MAX)

    def serialized(self, topic: str, user_id: int) -> bytes:
        """Return a value as Confluent's serializer makes it."""
        with SchemaRegistryClient({"url": f"http://127.0.0.1:{self.registry_port}"}) as client:
            serializer = AvroSerializer(client, USER)
            value = serializer({"id": user_id}, SerializationContext(topic, MessageField.VALUE))
        assert value is not None
        return value

    def stored(self, topic: str) -> int:
        """Return how many records a reader of committed ones sees."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": f"count-{topic}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        count = 0
        try:
            while (message := consumer.poll(SECONDS_MAX)) is not None:
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return count
                assert error is None
                count += 1
        finally:
            consumer.close()
        raise AssertionError("the topic has no end")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValidatingNode]:
    with ValidatingNode(tmp_path_factory.mktemp("validating") / "node") as running:
        running.prepare()
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("topic", ["plain", "diskless"])
def test_an_idempotent_and_a_transactional_producer_get_an_error_and_go_on(
    node: ValidatingNode, topic: str
) -> None:
    good = node.serialized(topic, 7)
    producer = Producer({"bootstrap.servers": node.address, "enable.idempotence": True})
    assert produced(producer, topic, good) is None
    assert produced(producer, topic, b"no schema") == KafkaError.INVALID_RECORD
    assert produced(producer, topic, good) is None
    assert produced(producer, topic, good[:5]) == KafkaError.INVALID_RECORD
    assert produced(producer, topic, None) is None
    assert node.stored(topic) == 3

    settings = {"bootstrap.servers": node.address, "transactional.id": f"validated-{topic}"}
    in_transactions = Producer(settings)
    in_transactions.init_transactions(SECONDS_MAX)
    in_transactions.begin_transaction()
    assert produced(in_transactions, topic, good) is None
    assert produced(in_transactions, topic, b"no schema") == KafkaError.INVALID_RECORD
    with pytest.raises(KafkaException):
        in_transactions.commit_transaction(SECONDS_MAX)
    in_transactions.abort_transaction(SECONDS_MAX)
    assert node.stored(topic) == 3
    # librdkafka counts the refused record's sequence: only a new epoch helps, as with Kafka.
    in_transactions = Producer(settings)
    in_transactions.init_transactions(SECONDS_MAX)
    in_transactions.begin_transaction()
    assert produced(in_transactions, topic, good) is None
    in_transactions.commit_transaction(SECONDS_MAX)
    assert node.stored(topic) == 4
    assert "ERROR" not in node.log


def produced(producer: Producer, topic: str, value: bytes | None) -> int | None:
    """Return the error of one record, ``None`` if it is stored."""
    errors: list[Any] = []
    producer.produce(topic, value, key=b"k", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(SECONDS_MAX) == 0
    (error,) = errors
    return None if error is None else error.code()
