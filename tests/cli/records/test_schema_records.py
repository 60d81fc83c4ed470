"""``consume`` and ``produce`` with keys and values by a registry's schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tidelog_cli.records.decoded_records import NAMED_MAX

from tests.support.command import Outcome, called
from tests.support.node_process import NodeProcess
from tools.ports import free_port

USER = (
    '{"type":"record","name":"User","fields":[{"name":"id","type":"long"},'
    '{"name":"mail","type":["null","string"],"default":null}]}'
)
PROTO = 'syntax = "proto3"; message A { string s = 1; } message B { int32 n = 1; }'
PERSON = '{"type":"object","required":["name"],"properties":{"name":{"type":"string"}}}'


class RegistryNode(NodeProcess):
    """Has a registry."""

    def __init__(self, data_dir: Path) -> None:
        self.registry_port = free_port()
        super().__init__(data_dir, arguments=("--registry-port", str(self.registry_port)))

    @property
    def registry(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.registry_port}"

    def consume(self, topic: str, count: int, *options: object, status: int = 0) -> Outcome:
        """Return what ``consume`` prints of the first records."""
        limits = ("--from-beginning", "-n", count, "--timeout", 60, "--registry", self.registry)
        where = ("--bootstrap", self.address)
        return called("consume", topic, *limits, *where, *options, status=status)

    def produce(self, topic: str, file: Path, *options: object, status: int = 0) -> Outcome:
        """Write the lines of a file."""
        where = ("--bootstrap", self.address, "--registry", self.registry)
        return called("produce", topic, file, *where, *options, status=status)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryNode]:
    with RegistryNode(tmp_path_factory.mktemp("records") / "node") as running:
        yield running


def send(node: RegistryNode, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": node.address})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0


def test_values_of_other_clients_are_shown_and_theirs_can_read_ours(
    node: RegistryNode, tmp_path: Path
) -> None:
    topic, context = "users", SerializationContext("users", MessageField.VALUE)
    with SchemaRegistryClient({"url": node.registry}) as client:
        theirs = AvroSerializer(client, USER)({"id": 7, "mail": "a@b"}, context)
        assert theirs is not None
        send(node, topic, theirs)
        shown = '{"id":7,"mail":{"string":"a@b"}}'
        assert node.consume(topic, 1, "--value-format", "avro").lines == [shown]
        lines = tmp_path / "lines"
        lines.write_text(f'{shown}\n{{"id":8}}\n')
        node.produce(topic, lines, "--value-format", "avro")
        done = node.consume(topic, 3, "--value-format", "auto", "--format", r"%o %s\n")
        assert done.lines == [f"0 {shown}", f"1 {shown}", '2 {"id":8,"mail":null}']
        raw = node.consume(topic, 3, "--format", r"%s").out
        assert raw[: 2 * len(theirs)] == theirs * 2
        assert AvroDeserializer(client)(raw[2 * len(theirs) :], context)["id"] == 8


def test_values_whose_schemas_are_in_headers_are_shown(node: RegistryNode) -> None:
    """confluent-kafka names them by their guid there, and the value is the payload alone."""
    options = {"schema.id.serializer": header_schema_id_serializer}
    headers: list[tuple[str, bytes]] = []
    context = SerializationContext("headed", MessageField.VALUE, headers)
    with SchemaRegistryClient({"url": node.registry}) as client:
        data = AvroSerializer(client, USER, conf=options)({"id": 7, "mail": None}, context)
    producer = Producer({"bootstrap.servers": node.address})
    producer.produce("headed", data, headers=headers, partition=0)
    unknown = b"\1" + bytes(16)
    producer.produce("headed", data, headers=[("__value_schema_id", unknown)], partition=0)
    assert producer.flush(60) == 0
    shown = ['{"id":7,"mail":null}']
    assert node.consume("headed", 1, "--value-format", "auto").lines == shown
    assert node.consume("headed", 1, "--value-format", "avro").lines == shown
    done = node.consume("headed", 2, "--value-format", "avro", status=1)
    assert done.lines == shown
    assert "the registry has no schema 00000000-0000-0000-0000-000000000000" in done.errors


def test_a_file_of_a_schema_is_registered_and_keys_have_their_own(
    node: RegistryNode, tmp_path: Path
) -> None:
    of_keys, of_values, lines = tmp_path / "k.avsc", tmp_path / "v.proto", tmp_path / "lines"
    of_keys.write_text('"long"')
    of_values.write_text(PROTO)
    lines.write_text('1\t{"n":5}\n2\t{}\n3\tNULL\n')
    options = ("--key-separator", r"\t", "--null-marker", "NULL", "--message", "B")
    keys = ("--key-format", "avro", "--key-schema", of_keys)
    values = ("--value-format", "protobuf", "--value-schema", of_values)
    node.produce("both", lines, *options, *keys, *values, "--partition", 0)
    formats = ("--key-format", "auto", "--value-format", "auto")
    done = node.consume("both", 3, *formats, "--json")
    found = [json.loads(line) for line in done.lines]
    assert [(one["key"], one["value"]) for one in found] == [(1, {"n": 5}), (2, {}), (3, None)]
    copied = tmp_path / "copied"
    copied.write_bytes(done.out)
    options = ("--format", "json", "--key-format", "avro", "--key-schema", of_keys)
    node.produce("both-copied", copied, *options, *values, "--message", "B")
    again = node.consume("both-copied", 3, *formats, "--json")
    assert [json.loads(line)["value"] for line in again.lines] == [{"n": 5}, {}, None]


def test_json_values_are_checked_when_they_are_written(node: RegistryNode, tmp_path: Path) -> None:
    schema, lines = tmp_path / "person.json", tmp_path / "lines"
    schema.write_text(PERSON)
    lines.write_text('{"name":"ann"}\n{"name":1}\n')
    options = ("--value-format", "json", "--value-schema", schema)
    done = node.produce("people", lines, *options, status=1)
    assert "line 2: the value does not fit its schema" in done.errors
    assert "name" in done.errors
    lines.write_text('{"name":"bob"}\n')
    node.produce("people", lines, "--value-format", "json")
    shown = node.consume("people", 1, "--value-format", "json").lines[-1]
    assert json.loads(shown)["name"] in {"ann", "bob"}


def test_references_are_read_too(node: RegistryNode) -> None:
    with SchemaRegistryClient({"url": node.registry}) as client:
        client.register_schema("part", Schema(USER, "AVRO"))
        whole = '{"type":"record","name":"Order","fields":[{"name":"by","type":"User"}]}'
        schema = Schema(whole, "AVRO", [SchemaReference("User", "part", 1)])
        context = SerializationContext("orders", MessageField.VALUE)
        data = AvroSerializer(client, schema)({"by": {"id": 1, "mail": None}}, context)
        assert data is not None
        send(node, "orders", data)
    assert node.consume("orders", 1, "--value-format", "avro").lines == [
        '{"by":{"id":1,"mail":null}}'
    ]


def test_what_cannot_be_decoded_is_named_and_the_rest_goes_on(node: RegistryNode) -> None:
    with SchemaRegistryClient({"url": node.registry}) as client:
        good = (
            b"\0" + client.register_schema("bad-value", Schema('"int"', "AVRO")).to_bytes(4) + b"\2"
        )
    send(node, "bad", good, b"\0\0\0\x27\x0f\2", b"plain", good[:5], good)
    done = node.consume("bad", 5, "--value-format", "avro", status=1)
    assert done.lines == ["1", "1"]
    for text in (
        "bad-0 offset 1: the value cannot be decoded: the registry has no schema 9999",
        "bad-0 offset 2: the value cannot be decoded: it begins with the byte 112",
        "bad-0 offset 3: the value cannot be decoded: it ends in the middle",
        "3 records could not be decoded",
    ):
        assert text in done.errors
    done = node.consume("bad", 5, "--value-format", "auto", "--json", status=1)
    found = [json.loads(line) for line in done.lines]
    assert [one.get("value") for one in found] == [
        1,
        "\0\0\0'\x0f\2",
        "plain",
        good[:5].decode(),
        1,
    ]
    done = node.consume("bad", 1, "--value-format", "protobuf", status=1)
    assert "is AVRO, not PROTOBUF" in done.errors
    send(node, "worse", *([b"x"] * (NAMED_MAX + 30)))
    done = node.consume("worse", NAMED_MAX + 30, "--value-format", "avro", status=1)
    assert done.errors.count("cannot be decoded") == NAMED_MAX
    assert "50 records could not be decoded" in done.errors


def test_the_registry_may_be_in_the_settings(node: RegistryNode, tmp_path: Path) -> None:
    settings, lines = tmp_path / "client.properties", tmp_path / "lines"
    settings.write_text(f"bootstrap.servers={node.address}\nschema.registry.url={node.registry}\n")
    schema = tmp_path / "int.avsc"
    schema.write_text('"int"')
    lines.write_text("5\n")
    command = ("--command-config", settings)
    called(*command, "produce", "set", lines, "--value-format", "avro", "--value-schema", schema)
    limits = ("--from-beginning", "-n", 1, "--timeout", 60)
    assert called(*command, "consume", "set", *limits, "--value-format", "avro").lines == ["5"]
    assert "set-value" in called(*command, "schema", "list", "set").out.decode()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--value-format", "xml"), "bytes, avro, json, protobuf"),
        (("--value-schema", "1"), "--value-schema needs --value-format"),
        (("--value-format", "avro", "--value-schema", "/no/such.avsc"), "neither an id nor a file"),
        (("--value-format", "avro", "--message", "A"), "--message needs"),
        (("--value-format", "avro"), "error 40401"),
        (("--value-format", "avro", "--value-schema", "9999"), "no schema 9999"),
    ],
)
def test_wrong_options_are_named(
    node: RegistryNode, tmp_path: Path, options: tuple[str, ...], named: str
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("1\n")
    status = 1 if "error" in named or "no schema" in named else 2
    assert named in node.produce("none", lines, *options, status=status).errors


def test_a_registry_that_does_not_answer_ends_the_command(node: RegistryNode) -> None:
    send(node, "away", b"\0\0\0\0\1\2")
    options = ("--value-format", "avro", "--registry", f"http://127.0.0.1:{free_port()}")
    assert "no registry answers" in node.consume("away", 1, *options, status=1).errors
