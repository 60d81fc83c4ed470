"""confluent-kafka's registry client and serializers with a node that has a registry."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import (
    ProtobufDeserializer,
    ProtobufSerializer,
)
from confluent_kafka.serialization import (
    MessageField,
    SerializationContext,
    SerializationError,
)
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from tests.support.node_process import NodeProcess
from tools.ports import free_port

USER = '{"type":"record","name":"User","fields":[{"name":"id","type":"long"}]}'
GROWN = USER.replace("]}", ',{"name":"mail","type":"string","default":"-"}]}')


class RegistryNode(NodeProcess):
    """A node with a registry."""

    def __init__(self, data_dir: Path, **more: Any) -> None:
        self.registry_port = free_port()
        arguments = ("--registry-port", str(self.registry_port))
        super().__init__(data_dir, arguments=arguments, **more)

    @property
    def registry_url(self) -> str:
        return f"http://127.0.0.1:{self.registry_port}"


Connect = Callable[[], SchemaRegistryClient]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryNode]:
    with RegistryNode(tmp_path_factory.mktemp("registry") / "node") as running:
        yield running


@pytest.fixture
def connect(node: RegistryNode) -> Iterator[Connect]:
    """Give a factory of clients without anything in their caches."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(SchemaRegistryClient({"url": node.registry_url}))


def test_the_client_registers_finds_and_deletes(connect: Connect) -> None:
    client = connect()
    first = client.register_schema("client-value", Schema(USER, "AVRO"))
    assert client.register_schema("client-value", Schema(GROWN, "AVRO")) == first + 1
    assert client.get_schema(first).schema_str == USER
    assert client.lookup_schema("client-value", Schema(GROWN, "AVRO")).version == 2
    assert client.get_latest_version("client-value").schema.schema_str == GROWN
    assert client.get_version("client-value", 1).schema_id == first
    assert client.get_versions("client-value") == [1, 2]
    assert "client-value" in client.get_subjects()
    broken = Schema(USER.replace("long", "string"), "AVRO")
    assert not client.test_compatibility("client-value", broken)
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("client-value", broken)
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 40901)
    client.set_compatibility("client-value", "NONE")
    assert client.get_compatibility("client-value") == "NONE"
    assert client.test_compatibility("client-value", broken)
    assert client.delete_version("client-value", 2) == 2
    assert client.delete_subject("client-value") == [1]
    assert client.delete_subject("client-value", permanent=True) == [1, 2]
    with pytest.raises(SchemaRegistryError) as refused:
        connect().get_schema(first)
    assert refused.value.error_code == 40403


def test_avro_records_go_in_and_come_out(node: RegistryNode, connect: Connect) -> None:
    client = connect()
    topic = "avro-users"
    context = SerializationContext(topic, MessageField.VALUE)
    write = AvroSerializer(client, USER)
    producer = Producer({"bootstrap.servers": node.address})
    for number in range(1000):
        producer.produce(topic, write({"id": number}, context), partition=0)
    assert producer.flush(60) == 0
    read = AvroDeserializer(connect(), GROWN)
    found = [read(value, context) for value in consumed(node, topic, 1000)]
    assert found == [{"id": number, "mail": "-"} for number in range(1000)]
    assert client.get_latest_version(f"{topic}-value").version == 1


def test_schemas_refer_to_others(connect: Connect) -> None:
    client = connect()
    client.register_schema("part", Schema(USER, "AVRO"))
    whole = '{"type":"record","name":"Order","fields":[{"name":"by","type":"User"}]}'
    reference = SchemaReference("User", "part", 1)
    schema = Schema(whole, "AVRO", [reference])
    context = SerializationContext("orders", MessageField.VALUE)
    data = AvroSerializer(client, schema)({"by": {"id": 7}}, context)
    assert data is not None
    assert AvroDeserializer(connect())(data, context) == {"by": {"id": 7}}
    found = client.get_latest_version("orders-value").schema
    assert [(one.name, one.subject, one.version) for one in found.references] == [
        ("User", "part", 1)
    ]


def test_json_records_go_in_and_come_out(connect: Connect) -> None:
    reference = SchemaReference("part.json", "json-part", 1)
    client = connect()
    client.register_schema("json-part", Schema('{"type":"integer"}', "JSON"))
    whole = {"type": "object", "title": "Order", "properties": {"n": {"$ref": "part.json"}}}
    schema = Schema(json.dumps(whole), "JSON", [reference])
    context = SerializationContext("json-orders", MessageField.VALUE)
    write = JSONSerializer(schema, client)
    data = write({"n": 7}, context)
    assert data is not None
    read = JSONDeserializer(schema, schema_registry_client=connect())
    assert read(data, context) == {"n": 7}
    assert client.get_latest_version("json-orders-value").schema.schema_type == "JSON"
    with pytest.raises(SerializationError):
        write({"n": "seven"}, context)
    closed = Schema(json.dumps({**whole, "additionalProperties": False}), "JSON", [reference])
    assert not client.test_compatibility("json-orders-value", closed)


def test_protobuf_records_go_in_and_come_out(connect: Connect) -> None:
    part = FileDescriptorProto(name="part.proto", package="p", syntax="proto3")
    part.message_type.add(name="Part").field.add(name="n", number=1, type=5, label=1)
    whole = FileDescriptorProto(name="whole.proto", package="p", syntax="proto3")
    whole.dependency.append("part.proto")
    field = whole.message_type.add(name="Whole").field.add(name="part", number=1, label=1)
    field.type, field.type_name = 11, ".p.Part"
    pool = DescriptorPool()
    for file in (part, whole):
        pool.AddSerializedFile(file.SerializeToString())
    made = GetMessageClass(pool.FindMessageTypeByName("p.Whole"))
    context = SerializationContext("protobuf-orders", MessageField.VALUE)
    client = connect()
    message = made()
    message.part.n = 7
    data = ProtobufSerializer(made, client)(message, context)
    assert data is not None
    read = ProtobufDeserializer(made, schema_registry_client=connect())
    assert read(data, context) == message
    stored = client.get_latest_version("protobuf-orders-value").schema
    assert stored.schema_type == "PROTOBUF"
    assert "message Whole {\n  .p.Part part = 1;\n}" in stored.schema_str
    changed = Schema(stored.schema_str.replace(".p.Part", "int32"), "PROTOBUF", stored.references)
    assert not client.test_compatibility("protobuf-orders-value", changed)


def consumed(node: NodeProcess, topic: str, count: int) -> list[bytes]:
    """Return the values of so many records, from the topic's begin."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.address,
            "group.id": str(uuid.uuid5(uuid.NAMESPACE_DNS, topic)),
            "auto.offset.reset": "earliest",
        }
    )
    values: list[bytes] = []
    try:
        consumer.subscribe([topic])
        while len(values) < count:
            messages = consumer.consume(count, timeout=60)
            assert messages, f"{len(values)} of {count} records came"
            for message in messages:
                assert message.error() is None, message.error()
                value = message.value()
                assert value is not None
                values.append(value)
    finally:
        consumer.close()
    return values
