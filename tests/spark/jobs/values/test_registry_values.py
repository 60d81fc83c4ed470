"""Values that name a schema of the registry, decoded by what the bucket has of it."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tidelog.arrow.columns import HEADERS_TYPE
from tidelog_cli.failures import UsageError
from tidelog_cli.spark_jobs.export import export_command
from tidelog_core.errors import InvalidConfig
from tidelog_core.schema_registry.deletion import SchemaDeletion
from tidelog_core.schema_registry.registry import SchemaRegistry
from tidelog_core.schemas.languages import parse
from tidelog_core.schemas.model import Reference, Schema, SchemaType
from tidelog_core.schemas.values.framing import VALUE_HEADER
from tidelog_spark.jobs.formats.parquet_table import ParquetTable
from tidelog_spark.jobs.parquet_table import committed_files
from tidelog_spark.jobs.values.decoding import DecoderSpec
from tidelog_spark.jobs.values.value_decoder import HeaderValueDecoder

from tests.spark.jobs.exported import Source
from tests.spark.jobs.registered import Registry, any_level, avro, framed, written

V1 = avro(("id", "int"))
V2 = avro(("id", "long"), ("note", ["null", "string"]))
APART = avro(("id", "string"))
USER = avro(("name", "string"), name="User")


def decoded(spec: DecoderSpec, values: list[bytes | None]) -> tuple[list[Any], dict[int, str]]:
    decoder = spec.open()
    found = decoder.decode(pa.array(values, pa.binary()))
    names = [field.name for field in decoder.fields]
    for field, column in zip(decoder.fields, found.columns, strict=True):
        assert (column.type, len(column)) == (field.type, len(values))
    rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows], dict(found.problems)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(Source(tmp_path), tmp_path)


def test_values_of_several_schemas_are_read_as_the_latest(registry: Registry) -> None:
    ids = registry.do(any_level, ("t-value", V1), ("t-value", APART), ("t-value", V2))
    assert ids == [1, 2, 3]
    values = [
        written(1, V1, {"id": 7}),
        written(3, V2, {"id": 2**40, "note": "x"}),
        None,
        written(2, APART, {"id": "no number"}),
        written(9, V1, {"id": 7}),
        b"plain",
        framed(1, b""),
        written(1, V1, {"id": 8}),
    ]
    rows, problems = decoded(registry.spec(), values)
    nothing = {"id": None, "note": None}
    read = [{"id": 7, "note": None}, {"id": 2**40, "note": "x"}]
    assert rows == [*read, *[nothing] * 5, {"id": 8, "note": None}]
    assert sorted(problems) == [3, 4, 5, 6]
    assert "(schema 2)" in problems[3]
    assert problems[4] == "the bucket has no schema with its id, 9"
    assert "Confluent" in problems[5]


def test_values_whose_schemas_are_in_headers_are_read(registry: Registry) -> None:
    registry.do(any_level, ("t-value", V1), ("t-value", V2))
    decoder = registry.spec().open()
    assert isinstance(decoder, HeaderValueDecoder)
    # The guid is that of the text as it is stored.
    stored = [replace(one, text=parse(one.schema_type, one.text, ()).canonical) for one in (V1, V2)]
    named = [b"\1" + UUID(one.guid).bytes for one in stored]
    payloads = [written(1, V1, {"id": 7})[5:], written(2, V2, {"id": 8, "note": "x"})[5:]]
    rows: list[tuple[bytes | None, list[tuple[str, bytes | None]] | None]] = [
        (payloads[0], [("a", b"x"), (VALUE_HEADER, named[0])]),
        (payloads[1], [(VALUE_HEADER, named[1])]),
        (payloads[1], [(VALUE_HEADER, framed(2, b""))]),
        (framed(1, payloads[0]), None),
        (None, [(VALUE_HEADER, named[0])]),
        (payloads[0], [(VALUE_HEADER, b"\1" + bytes(16))]),
        (payloads[0], [(VALUE_HEADER, b"\1")]),
        (payloads[0], [("__key_schema_id", named[0])]),
    ]
    headers = [
        None if one is None else [{"key": key, "value": value} for key, value in one]
        for _, one in rows
    ]
    values = pa.array([value for value, _ in rows], pa.binary())
    found = decoder.decode_with(values, pa.array(headers, HEADERS_TYPE))
    assert found.columns[0].to_pylist() == [7, 8, 8, 7, None, None, None, None]
    assert found.columns[1].to_pylist() == [None, "x", "x", *[None] * 5]
    assert sorted(found.problems) == [5, 6, 7]
    assert found.problems[5] == f"the bucket has no schema with its guid, {UUID(int=0)}"
    assert "no room for a schema's guid" in found.problems[6]


def test_values_that_their_schema_makes_endless_are_told(registry: Registry) -> None:
    """They would end the process that reads them, or keep it for ever."""
    within_itself = avro(("id", "int"), ("more", ["null", "Order"]))
    without_bytes = avro(("id", "int"), ("more", {"type": "array", "items": "null"}))
    ids = registry.do(
        any_level, ("t-value", within_itself), ("t-value", without_bytes), ("t-value", V1)
    )
    number = io.BytesIO()
    fastavro.schemaless_writer(number, "long", 2**40)
    values = [
        framed(ids[0], b"\x0e\x02" * 300_000 + b"\x0e\x00"),
        framed(ids[1], b"\x0e" + number.getvalue() + b"\x00"),
        written(ids[2], V1, {"id": 7}),
    ]
    rows, problems = decoded(registry.spec(), values)
    assert rows == [{"id": None}, {"id": None}, {"id": 7}]
    assert "contains itself" in problems[0]
    assert "take no bytes" in problems[1]


def test_a_schema_that_was_registered_after_the_others_were_read_is_found(
    registry: Registry,
) -> None:
    registry.do(any_level, ("t-value", V1))
    spec = registry.spec()
    newer = avro(("id", "int"), ("note", ["null", "string"]))
    (number,) = registry.do(("t-value", newer))
    values = [written(number, newer, {"id": 7, "note": "x"}), written(99, V1, {"id": 8})]
    rows, problems = decoded(spec, values)
    assert rows == [{"id": 7}, {"id": None}]
    assert problems == {1: "the bucket has no schema with its id, 99"}


def test_an_older_version_gives_its_columns(registry: Registry) -> None:
    async def delete_first(one: SchemaRegistry) -> None:
        await SchemaDeletion(one).delete_version("t-value", 1, is_permanent=False)

    registry.do(any_level, ("t-value", V1), ("t-value", V2), delete_first)
    values = [written(1, V1, {"id": 7}), written(2, V2, {"id": 1, "note": "x"})]
    rows, problems = decoded(registry.spec(version=1), values)
    assert rows == [{"id": 7}, {"id": None}]  # A long is no int.
    assert list(problems) == [1]
    rows, problems = decoded(registry.spec(), values)
    assert [one["id"] for one in rows] == [7, 1]
    for given, said in (({"version": 5}, "has no version 5; it has 1, 2"),):
        with pytest.raises(InvalidConfig, match=said):
            registry.spec(**given)
    with pytest.raises(InvalidConfig, match="no schema of the subject other; it has t-value"):
        registry.spec("other")


def test_schemas_that_refer_to_others_and_contexts_are_read(registry: Registry) -> None:
    order = avro(("by", "User"))
    order = Schema(order.schema_type, order.text, (Reference("User", "user", 1),))
    registry.do(("first", V1), (":.stage:user", USER), (":.stage:t-value", order))
    whole = avro(("by", json.loads(USER.text)))
    rows, problems = decoded(
        registry.spec(":.stage:t-value"), [written(2, whole, {"by": {"name": "eve"}})]
    )
    assert (rows, problems) == ([{"by": {"name": "eve"}}], {})


def test_json_is_read_by_the_latest_schema(registry: Registry) -> None:
    def schema(**properties: str) -> Schema:
        kinds = {name: {"type": kind} for name, kind in properties.items()}
        return Schema(SchemaType.JSON, json.dumps({"type": "object", "properties": kinds}))

    registry.do(any_level, ("t-value", schema(a="string")), ("t-value", schema(a="integer")))
    registry.do(("x-value", V1))
    values = [
        framed(2, b'{"a": 1, "b": 2}'),
        framed(1, b'{"a": "x"}'),
        framed(3, b'{"a": 1}'),
    ]
    rows, problems = decoded(registry.spec(), values)
    assert rows == [{"a": 1}, {"a": None}, {"a": None}]
    assert "it is AVRO" in problems[2]
    assert sorted(problems) == [1, 2]


PROTO = """
syntax = "proto3";
package shop;
message Order { int64 id = 1; string note = 2; message Line { int32 n = 1; } }
message Other { int64 id = 1; }
"""


def test_protobuf_is_read_by_the_numbers_of_fields(registry: Registry) -> None:
    newer = PROTO.replace("string note = 2;", "string note = 2; repeated string tags = 3;")
    registry.do(
        ("t-value", Schema(SchemaType.PROTOBUF, PROTO)),
        ("t-value", Schema(SchemaType.PROTOBUF, newer)),
    )
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=3, label=1)
    order.field.add(name="note", number=2, type=9, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    data = made(id=5, note="x").SerializeToString()
    values = [
        framed(1, b"\0" + data),
        framed(2, b"\2\0" + data),
        framed(1, b"\2\2" + data),  # the second message
        framed(1, b"\x12" + data),
        framed(1, b"\0\xff"),
    ]
    rows, problems = decoded(registry.spec(), values)
    assert rows[:2] == [{"id": 5, "note": "x", "tags": []}] * 2
    assert sorted(problems) == [2, 3, 4]
    assert "it is a shop.Other" in problems[2]
    rows, problems = decoded(registry.spec(message="shop.Other"), values)
    assert (rows[2], sorted(problems)) == ({"id": 5}, [0, 1, 3, 4])
    with pytest.raises(InvalidConfig, match="has no message"):
        registry.spec(message="shop.No").open()


def test_an_export_needs_no_registry_and_stops_at_a_value_without_schema(tmp_path: Path) -> None:
    values = [written(1 + n % 2, (V1, V2)[n % 2], {"id": n, "note": "x"}) for n in range(60)]
    source = Source(tmp_path, lambda n: values[n] if n < 60 else written(77, V1, {"id": n}))
    registry = Registry(source, tmp_path)
    registry.do(any_level, ("t-value", V1), ("t-value", V2))
    source.grow(60)
    table = ParquetTable((tmp_path / "export").as_uri())
    done = source.export(None, table, decoder=registry.spec())
    assert done.row_count == 60
    found = pa.concat_tables(
        pq.read_table(one.removeprefix("file://"), partitioning=None)
        for one in committed_files(table.location)
    ).sort_by("kafka_offset")
    assert found.column("id").to_pylist() == list(range(60))
    assert found.column("note").to_pylist() == [None, "x"] * 30
    source.grow(1)
    with pytest.raises(Exception, match="no schema with its id, 77"):
        source.export(None, table, decoder=registry.spec())
    bad = source.export(None, table, decoder=registry.spec(), keeps_bad_records=True)
    assert bad.row_count == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"value_format": "registry", "schema": Path(__file__)}, "leave out --schema"),
        ({"value_format": "avro"}, "give --value-format registry"),
        ({"subject": "a"}, "need --value-format registry"),
        ({"schema_version": "2"}, "need --value-format registry"),
        ({"value_format": "registry", "topics": ["t", "u"]}, "give --subject"),
        ({"value_format": "registry", "schema_version": "0"}, "must be latest"),
        ({"value_format": "registry"}, "the bucket has no schema of the subject t-value"),
    ],
    ids=["file", "no-file", "subject", "version", "topics", "zero", "none"],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    source = Source(tmp_path)
    source.grow(1)
    given: dict[str, Any] = {"topics": ["t"], "to": (tmp_path / "x").as_uri(), **options}
    with pytest.raises((UsageError, InvalidConfig), match=said):
        export_command(**source.cluster.options, **given)
