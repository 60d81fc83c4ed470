"""``poll_arrow`` and ``scan_arrow`` with values as columns, from a node and its registry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tidelog import BucketSchemas, Consumer, SchemaDecoder, scan_arrow
from tidelog.errors import ConnectionFailed, InvalidConfig
from tidelog_core.errors import InvalidRecord

from tests.support.node_process import NodeProcess
from tools.ports import free_port

USER = '{"type":"record","name":"User","fields":[{"name":"id","type":"long"}]}'
GROWN = USER.replace("]}", ',{"name":"mail","type":["null","string"],"default":null}]}')


class RegistryNode(NodeProcess):
    """Has a registry."""

    def __init__(self, data_dir: Path) -> None:
        self.registry_port = free_port()
        super().__init__(data_dir, arguments=("--registry-port", str(self.registry_port)))

    @property
    def registry(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.registry_port}"

    def write(self, topic: str, text: str, *values: dict[str, Any]) -> None:
        """Send values of a schema as Confluent's serializer writes them."""
        producer = Producer({"bootstrap.servers": self.address})
        context = SerializationContext(topic, MessageField.VALUE)
        with SchemaRegistryClient({"url": self.registry}) as client:
            serializer = AvroSerializer(client, text)
            for value in values:
                producer.produce(topic, serializer(value, context), partition=0)
        assert producer.flush(60) == 0

    def write_raw(self, topic: str, value: bytes | None) -> None:
        """Send a value without a schema."""
        producer = Producer({"bootstrap.servers": self.address})
        producer.produce(topic, value, partition=0)
        assert producer.flush(60) == 0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryNode]:
    with RegistryNode(tmp_path_factory.mktemp("decoded") / "node") as running:
        yield running


def test_a_scan_has_a_column_of_structs(node: RegistryNode) -> None:
    node.write("users", USER, {"id": 1}, {"id": 2})
    node.write("users", GROWN, {"id": 3, "mail": "a@b"})
    node.write_raw("users", None)
    decoder = SchemaDecoder(node.registry, "users-value")
    table = scan_arrow("users", bootstrap_servers=node.address, decode=decoder).read_all()
    assert table.column("offset").to_pylist() == [0, 1, 2, 3]
    assert table.column("value").to_pylist() == [
        {"id": 1, "mail": None},
        {"id": 2, "mail": None},
        {"id": 3, "mail": "a@b"},
        None,
    ]


async def test_a_poll_that_fails_hands_its_records_out_again(node: RegistryNode) -> None:
    node.write("polled", USER, {"id": 1})
    node.write_raw("polled", b"no schema")
    node.write("polled", USER, {"id": 2})
    strict = SchemaDecoder(node.registry, "polled-value")
    lenient = SchemaDecoder(node.registry, "polled-value", errors="null")
    async with Consumer(
        node.address, topics=["polled"], group_id="polled", auto_offset_reset="earliest"
    ) as consumer:
        found: list[Any] = []

        async def poll(decoder: SchemaDecoder) -> None:
            for batch in await consumer.poll_arrow(timeout_ms=30_000, decode=decoder):
                found.extend(batch.column("value").to_pylist())

        failed = ""
        while not failed:  # The first may come alone.
            try:
                await poll(strict)
            except InvalidRecord as error:
                failed = str(error)
        assert "offset 1 of polled-0" in failed
        while len(found) < 3:
            await poll(lenient)
    assert found == [{"id": 1}, None, {"id": 2}]


async def test_a_part_of_a_poll_is_not_committed_before_it_is_processed(
    node: RegistryNode,
) -> None:
    """Its structs take too much, so the rest is read again: the position goes back to there."""
    node.write("parted", USER, *({"id": number} for number in range(50)))
    decoder = SchemaDecoder(node.registry, "parted-value", batch_bytes_max=100)

    async def poll(consumer: Consumer) -> list[int]:
        found: list[int] = []
        while not found:
            for batch in await consumer.poll_arrow(max_bytes=1, timeout_ms=30_000, decode=decoder):
                found += batch.column("offset").to_pylist()
        return found

    def consumer() -> Consumer:
        return Consumer(
            node.address, topics=["parted"], group_id="parted", auto_offset_reset="earliest"
        )

    failing = consumer()
    try:
        part = await poll(failing)
        assert 0 < len(part) < 50
        assert failing.positions()["parted", 0].offset == len(part)
    finally:  # It fails while it works on the records.
        await failing.close(has_failed=True)
    async with consumer() as later:
        assert await poll(later) == part
        second = await poll(later)
        assert second[0] == len(part)


def test_the_buckets_schemas_are_enough(node: RegistryNode) -> None:
    node.write("stored", USER, {"id": 1})
    node.write("stored", GROWN, {"id": 2, "mail": None})
    stores = {
        "metadata": f"sqlite://{node.data_dir}/metadata.db",
        "objects": f"file://{node.data_dir}/objects",
    }
    schemas = BucketSchemas(**stores)
    decoder = SchemaDecoder(schemas, "stored-value")
    table = scan_arrow("stored", bootstrap_servers=node.address, decode=decoder).read_all()
    assert table.column("value").to_pylist() == [{"id": 1, "mail": None}, {"id": 2, "mail": None}]
    assert schemas.by_id(9_999) is None
    with pytest.raises(InvalidConfig, match="no schema of the subject 'none'"):
        schemas.latest("none")


def test_a_registry_that_is_not_there_is_named(node: RegistryNode) -> None:
    with pytest.raises(InvalidConfig, match="has no subject 'none-value'"):
        SchemaDecoder(node.registry, "none-value")
    with pytest.raises(ConnectionFailed, match="no registry answers"):
        SchemaDecoder(f"http://127.0.0.1:{free_port()}", "users-value")
    with pytest.raises(InvalidConfig, match="a registry is a URL"):
        SchemaDecoder("localhost:8081", "users-value")
