"""confluent-kafka's registry client and serializers with a node that has a registry."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import (
    ConfigCompatibilityLevel,
    Metadata,
    MetadataProperties,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    ServerConfig,
    header_schema_id_serializer,
)
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


class HeaderContext(SerializationContext):
    """Keeps the headers of a record, as a producer sends them."""

    def __init__(self, topic: str, field: str = MessageField.VALUE) -> None:
        self.sent: list[tuple[str, bytes]] = []
        super().__init__(topic, field, self.sent)


def test_a_schema_in_a_header_goes_through_a_topic_that_asks_for_schemas(
    node: RegistryNode, connect: Connect
) -> None:
    """confluent-kafka's serializers name the schema by its guid, and read it by that."""
    topic = "header-users"
    configs = {
        "confluent.value.schema.validation": "true",
        "confluent.key.schema.validation": "true",
        "tidelog.schema.validation.level": "full",
    }
    admin = AdminClient({"bootstrap.servers": node.address})
    for done in admin.create_topics([NewTopic(topic, 1, 1, config=configs)]).values():
        done.result(60)
    options = {"schema.id.serializer": header_schema_id_serializer}
    context, key_context = HeaderContext(topic), HeaderContext(topic, MessageField.KEY)
    client = connect()
    # Its deserializer takes no data of less than six bytes, wherever the schema is named.
    user = {"id": 7, "mail": "a@example"}
    value = AvroSerializer(client, GROWN, conf=options)(user, context)
    key = AvroSerializer(client, '"string"', conf=options)("the key", key_context)
    headers = [*context.sent, *key_context.sent]
    assert [name for name, _ in headers] == ["__value_schema_id", "__key_schema_id"]
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": node.address})

    def send(sent: list[tuple[str, bytes]]) -> None:
        producer.produce(topic, value, key, headers=sent, on_delivery=lambda e, _: errors.append(e))

    send(headers)
    assert producer.flush(60) == 0
    send(context.sent)  # The key's is missing.
    assert producer.flush(60) == 0
    assert errors[0] is None
    assert errors[1].code() == KafkaError.INVALID_RECORD
    (message,) = messages_of(node, topic, 1)
    found = SerializationContext(topic, MessageField.VALUE, message.headers())
    assert AvroDeserializer(connect())(message.value(), found) == user
    found = SerializationContext(topic, MessageField.KEY, message.headers())
    assert AvroDeserializer(connect())(message.key(), found) == "the key"


def test_json_and_protobuf_values_are_found_by_the_guid_in_a_header(connect: Connect) -> None:
    options: dict[str, Any] = {"schema.id.serializer": header_schema_id_serializer}
    whole = {"type": "object", "title": "Order", "properties": {"n": {"type": "integer"}}}
    schema = Schema(json.dumps(whole), "JSON")
    context = HeaderContext("header-json")
    data = JSONSerializer(schema, connect(), conf=options)({"n": 7}, context)
    assert data is not None
    assert json.loads(data) == {"n": 7}
    assert JSONDeserializer(None, schema_registry_client=connect())(data, context) == {"n": 7}
    file = FileDescriptorProto(name="headed.proto", package="p", syntax="proto3")
    file.message_type.add(name="Other")
    file.message_type.add(name="Headed").field.add(name="s", number=1, type=9, label=1)
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    made = GetMessageClass(pool.FindMessageTypeByName("p.Headed"))
    context = HeaderContext("header-protobuf")
    data = ProtobufSerializer(made, connect(), conf=options)(made(s="a text"), context)
    assert data == b"\x0a\x06a text"
    assert context.sent[0][1][17:] == b"\2\2", "its place in the file"
    read = ProtobufDeserializer(made, schema_registry_client=connect())
    assert read(data, context) == made(s="a text")


def test_serializers_use_the_newest_version_with_metadata(connect: Connect) -> None:
    """The data contract's way: the operator's rules stay, whatever producers register."""
    client = connect()
    for text, major in ((USER, "1"), (GROWN, "2")):
        metadata = Metadata(None, MetadataProperties({"major": major}), None)
        client.register_schema("contract-value", Schema(text, "AVRO", metadata=metadata))
    found = connect().get_latest_with_metadata("contract-value", {"major": "1"})
    assert (found.version, found.schema.schema_str) == (1, USER)
    options: dict[str, Any] = {
        "auto.register.schemas": False,
        "use.latest.with.metadata": {"major": "1"},
    }
    context = SerializationContext("contract", MessageField.VALUE)
    data = AvroSerializer(connect(), USER, conf=options)({"id": 7}, context)
    assert data is not None
    assert int.from_bytes(data[1:5], "big") == found.schema_id
    again = connect().register_schema_full_response("contract-value", Schema(USER, "AVRO"))
    assert again.version == 3, "the latest metadata goes on with the older text"
    metadata = connect().get_version("contract-value", 3).schema.metadata
    assert metadata is not None
    assert metadata.properties == MetadataProperties({"major": "2"})
    config = ServerConfig(compatibility=ConfigCompatibilityLevel.FULL, compatibility_group="major")
    client.set_config("contract-value", config)
    assert client.get_config("contract-value").compatibility_group == "major"
    client.delete_version("contract-value", 1)
    assert client.get_versions("contract-value", deleted_only=True) == [1]
    assert "contract-value" not in client.get_subjects(deleted_only=True)


def consumed(node: NodeProcess, topic: str, count: int) -> list[bytes]:
    """Return the values of so many records, from the topic's begin."""
    values = [one.value() for one in messages_of(node, topic, count)]
    assert None not in values
    return values


def messages_of(node: NodeProcess, topic: str, count: int) -> list[Any]:
    """Return so many records, from the topic's begin."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.address,
            "group.id": str(uuid.uuid5(uuid.NAMESPACE_DNS, topic)),
            "auto.offset.reset": "earliest",
        }
    )
    found: list[Any] = []
    try:
        consumer.subscribe([topic])
        while len(found) < count:
            messages = consumer.consume(count, timeout=60)
            assert messages, f"{len(found)} of {count} records came"
            for message in messages:
                assert message.error() is None, message.error()
                found.append(message)
    finally:
        consumer.close()
    return found
