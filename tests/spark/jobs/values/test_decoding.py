"""Values into columns: what each format's own documents say, and that no bad value gets by."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.errors import InvalidConfig
from tidelog_spark.jobs.export.export_tasks import exported_schema
from tidelog_spark.jobs.values.decoding import DecoderSpec
from tidelog_spark.jobs.values.value_decoder import Decoded

UTC = datetime.UTC
TIME = datetime.datetime(2024, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


def decode(values: list[bytes | None], **spec: object) -> tuple[list[dict[str, object]], Decoded]:
    decoder = DecoderSpec(**spec).open()
    decoded = decoder.decode(pa.array(values, pa.binary()))
    for field, column in zip(decoder.fields, decoded.columns, strict=True):
        assert (column.type, len(column)) == (field.type, len(values))
    names = [field.name for field in decoder.fields]
    columns = [column.to_pylist() for column in decoded.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)], decoded


def json_spec(properties: dict[str, object], **schema: object) -> dict[str, object]:
    whole = {"type": "object", "properties": properties, **schema}
    return {"format": "json", "schema": json.dumps(whole).encode()}


NUMBER = json_spec({"n": {"type": "integer"}}, required=["n"])


def test_every_type_of_a_json_schema_has_a_column():
    spec = json_spec(
        {
            "i": {"type": "integer"},
            "f": {"type": ["number", "null"]},
            "b": {"type": "boolean"},
            "s": {"type": "string"},
            "t": {"type": "string", "format": "date-time"},
            "l": {"type": "array", "items": {"type": "string"}},
            "o": {"type": "object", "properties": {"p": {"type": "integer"}}},
        }
    )
    value = {
        "i": 2**53 + 1,
        "f": 0.5,
        "b": True,
        "s": "ü\n",
        "l": ["a", None],
        "o": {"p": 1},
        "t": "2024-01-02T04:04:05.678+01:00",
        "unknown": [{}],
    }
    expected = {**value, "t": TIME}
    del expected["unknown"]
    rows, decoded = decode([json.dumps(value, indent=2).encode(), b"{}", None], **spec)
    assert rows == [expected, *([dict.fromkeys(expected)] * 2)]
    assert decoded.problems == {}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(-(2**63), 2**63 - 1),
            st.sampled_from(
                [
                    b"", b" ", b"null", b"3", b"[]", b'"x"', b"{", b"}", b'{"n": "1"}', b'{"n": 1.5}',
                    b'{"n": 1} {"n": 2}', b'{"n": 1}\n{"n": 2}', b'{"n": 1}}', b'{"n": 1', b"\xff",
                    b'{"n": 1}}\n{"n":0,"v":{"n":7}', b'{"m": 1}', b'{"n": null}', b'{"n": 1},',
                    b'{"n": 1},{"n": 2}', b'{"n": 1}],"z":[{"n": 2}', b'{"n": 1}],"v":[{"n": 2}',
                ]
            ),
            st.none(),
        ),
        max_size=20,
    )
)  # fmt: skip
def test_a_bad_json_value_is_told_and_shifts_no_other(values):
    texts = [b'{"n": %d}' % one if isinstance(one, int) else one for one in values]
    rows, decoded = decode(texts, **NUMBER)
    for number, (value, row) in enumerate(zip(values, rows, strict=True)):
        assert row["n"] == (value if isinstance(value, int) else None)
        assert (number in decoded.problems) == isinstance(value, bytes)


@pytest.mark.parametrize(
    "text",
    [
        b'{"n": 1},"z":3',
        b'{"n": 1},"z":{}',
        b'{"n": 1},"v":{"n": 2}',
        b'{"n": 1},"n":0',
        b'{"n": 1},{"n": 2}',
        b'{"n": 1}],"z":[{"n": 2}',
        b'{"n": 1}],"v":[{"n": 2}',
        b'{"n": 1}]} {"v":[{"n": 2}',
        b'{"n": 1},{"n": 0}],"z":[{"n": 2}',
    ],
)
def test_a_text_that_goes_on_after_its_object_is_told(text):
    """Beside valid ones, with which it is parsed."""
    rows, decoded = decode([b'{"n": 8}', text, b'{"n": 9, "z": [{}]}'], **NUMBER)
    assert rows == [{"n": 8}, {"n": None}, {"n": 9}]
    assert list(decoded.problems) == [1]


def test_a_required_json_property_must_be_there():
    rows, decoded = decode([b'{"m": 1}', b'{"n": 1}'], **NUMBER)
    assert rows == [{"n": None}, {"n": 1}]
    assert decoded.problems == {0: "the required property 'n' is not there"}


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (b"{", "not valid JSON"),
        (b'{"type": "array"}', "object"),
        (b'{"type": "object", "properties": {}}', "no properties"),
        (b'{"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}', "value.a"),
        (b'{"type": "object", "properties": {"a": {"$ref": "#"}}}', "value.a"),
        (
            b'{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]}',
            "b, not",
        ),
    ],
)
def test_a_json_schema_that_is_no_table_is_refused(schema, problem):
    with pytest.raises(InvalidConfig, match=problem):
        DecoderSpec(format="json", schema=schema).open()


SPECIFIED = {
    "type": "record",
    "name": "test",
    "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}],
}


def avro_spec(schema: object, **given: object) -> dict[str, object]:
    return {"format": "avro", "schema": json.dumps(schema).encode(), **given}


def avro(schema: object, value: object) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return stream.getvalue()


def test_the_example_of_avros_specification_is_read():
    rows, _ = decode([bytes.fromhex("3606666f6f")], **avro_spec(SPECIFIED))
    assert rows == [{"a": 27, "b": "foo"}]


def test_every_type_of_avro_has_a_column():
    def logical(kind: str, name: str, **more: object) -> dict[str, object]:
        return {"type": kind, "logicalType": name, **more}

    point = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "double"}]}
    fields = {
        "bool": ("boolean", True),
        "int": ("int", -1),
        "bytes": ("bytes", b"\0"),
        "maybe": (["null", "float"], None),
        "enum": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
        "list": ({"type": "array", "items": "int"}, [1, 2]),
        "map": ({"type": "map", "values": "long"}, {"k": 1}),
        "fixed": ({"type": "fixed", "name": "F", "size": 2}, b"ab"),
        "first": (point, {"x": 0.5}),
        "second": ("Point", {"x": 1.5}),
        "date": (logical("int", "date"), TIME.date()),
        "time": (logical("int", "time-millis"), TIME.time()),
        "at": (logical("long", "timestamp-millis"), TIME),
        "price": (logical("bytes", "decimal", precision=9, scale=2), Decimal("1.25")),
        "id": (logical("string", "uuid"), "9f0f5cf5-0d1f-4f9c-9d0b-5f3c0c9d7d43"),
    }
    schema = {
        "type": "record",
        "name": "All",
        "namespace": "n",
        "fields": [{"name": name, "type": kind} for name, (kind, _) in fields.items()],
    }
    value = {name: one for name, (_, one) in fields.items()}
    [row], decoded = decode([avro(schema, value)], **avro_spec(schema))
    assert {**row, "map": dict(row["map"])} == value
    assert decoded.problems == {}


def test_an_avro_value_that_is_cut_or_too_long_is_bad_and_shifts_no_other():
    whole = avro(SPECIFIED, {"a": 5, "b": "five"})
    values = [whole[:cut] for cut in range(len(whole))] + [whole + b"\0", None, whole]
    rows, decoded = decode(values, **avro_spec(SPECIFIED))
    assert [row["a"] for row in rows] == [None] * (len(values) - 1) + [5]
    assert set(decoded.problems) == set(range(len(values) - 2))


def test_an_avro_time_beyond_what_a_column_holds_is_a_bad_value():
    schema = {
        **SPECIFIED,
        "fields": [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}],
    }
    plain = {**SPECIFIED, "fields": [{"name": "at", "type": "long"}]}
    values = [avro(plain, {"at": at}) for at in (0, 2**62, 1)]
    rows, decoded = decode(values, **avro_spec(schema))
    assert (rows[1]["at"], set(decoded.problems)) == (None, {1})
    assert rows[2]["at"] == datetime.datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)


def test_confluents_framing_is_taken_off_and_demanded():
    framed = b"\0\0\0\0\7" + avro(SPECIFIED, {"a": 1, "b": ""})
    rows, decoded = decode(
        [framed, framed[5:], b"\0\0"], **avro_spec(SPECIFIED, framing="confluent")
    )
    assert rows[0] == {"a": 1, "b": ""}
    assert set(decoded.problems) == {1, 2}
    framed = b'\0\0\0\0\7{"n": 1}'
    rows, decoded = decode([framed, framed[5:]], **NUMBER, framing="confluent")
    assert (rows[0], set(decoded.problems)) == ({"n": 1}, {1})


@pytest.mark.parametrize(
    "kind",
    [["int", "string"], "Unknown", {"type": "array", "items": ["null", "int", "long"]}],
)
def test_an_avro_schema_that_is_no_table_is_refused(kind):
    schema = {**SPECIFIED, "fields": [{"name": "a", "type": kind}]}
    with pytest.raises(InvalidConfig):
        DecoderSpec(**avro_spec(schema)).open()
    with pytest.raises(InvalidConfig, match="of a record"):
        DecoderSpec(**avro_spec("string")).open()


def descriptor_set() -> bytes:
    """Return what protoc writes for a file with every kind of field."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto",
        package="shop",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )
    order = file.message_type.add(name="Order")
    item = order.nested_type.add(name="Item")
    item.field.add(name="sku", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    state = order.enum_type.add(name="State")
    state.value.add(name="OPEN", number=0)
    state.value.add(name="PAID", number=1)

    def add(
        name: str,
        number: int,
        kind: int,
        *,
        of: str = "",
        repeated: bool = False,
        optional: bool = False,
    ) -> None:
        label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        field = order.field.add(name=name, number=number, type=kind, label=label)
        if of:
            field.type_name = of
        if optional:
            field.proto3_optional = True
            order.oneof_decl.add(name=f"_{name}")
            field.oneof_index = len(order.oneof_decl) - 1

    add("a", 1, kinds.TYPE_INT32)
    add("note", 2, kinds.TYPE_STRING, optional=True)
    add("items", 3, kinds.TYPE_MESSAGE, of=".shop.Order.Item", repeated=True)
    add("counts", 4, kinds.TYPE_MESSAGE, of=".shop.Order.CountsEntry", repeated=True)
    add("state", 5, kinds.TYPE_ENUM, of=".shop.Order.State")
    add("at", 6, kinds.TYPE_MESSAGE, of=".google.protobuf.Timestamp")
    add("big", 7, kinds.TYPE_UINT64)
    add("raw", 8, kinds.TYPE_BYTES)
    add("inner", 9, kinds.TYPE_MESSAGE, of=".shop.Order.Item")
    timestamps = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamps)
    return descriptor_pb2.FileDescriptorSet(file=[timestamps, file]).SerializeToString()


PROTOBUF = {"format": "protobuf", "schema": descriptor_set(), "message": "shop.Order"}
EMPTY_ORDER = {
    "a": 0,
    "note": None,
    "items": [],
    "counts": [],
    "state": "OPEN",
    "at": None,
    "big": Decimal(0),
    "raw": b"",
    "inner": None,
}


def test_the_example_of_protobufs_encoding_is_read():
    rows, decoded = decode([bytes.fromhex("089601"), b"", None], **PROTOBUF)
    assert rows == [{**EMPTY_ORDER, "a": 150}, EMPTY_ORDER, dict.fromkeys(EMPTY_ORDER)]
    assert decoded.problems == {}


def test_every_kind_of_protobuf_field_has_a_column():
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set()).file:
        pool.Add(file)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))()
    order.note = ""
    order.items.add(sku="x")
    order.counts["k"] = -1
    order.state = 1
    order.at.FromDatetime(TIME)
    order.big = 2**64 - 1
    order.raw = b"\0"
    order.inner.sku = "y"
    content = order.SerializeToString()
    expected = {
        "a": 0,
        "note": "",
        "items": [{"sku": "x"}],
        "counts": [("k", -1)],
        "state": "PAID",
        "at": TIME,
        "big": Decimal(2**64 - 1),
        "raw": b"\0",
        "inner": {"sku": "y"},
    }
    rows, decoded = decode([content, content[:-1], b"\xff"], **PROTOBUF)
    assert rows[0] == expected
    assert set(decoded.problems) == {1, 2}
    # With Confluent's framing the message's place in its file comes first: 0, or a count and places.
    for place in (b"\0", b"\2\0", b"\4\2\4"):
        framed = b"\0\0\0\0\1" + place + content
        assert decode([framed], **PROTOBUF, framing="confluent")[0] == [expected]
    cut = decode([b"\0\0\0\0\1", b"\0\0\0\0\1\x80"], **PROTOBUF, framing="confluent")[1]
    assert set(cut.problems) == {0, 1}


def test_a_protobuf_message_that_is_not_in_the_set_is_refused():
    for wrong in ({"message": "shop.None"}, {"schema": b"\xff"}):
        with pytest.raises(InvalidConfig, match="no message"):
            DecoderSpec(**{**PROTOBUF, **wrong}).open()


def test_a_field_with_the_name_of_a_column_of_the_exports_own_is_refused():
    for properties, problem in (
        ({"kafka_offset": {"type": "integer"}}, "'kafka_offset' is reserved"),
        ({"a": {"type": "integer"}, "A": {"type": "integer"}}, "differ in case only: a"),
    ):
        decoder = DecoderSpec(**json_spec(properties)).open()
        with pytest.raises(InvalidConfig, match=problem):
            exported_schema(decoder, include_headers=False, keeps_bad_records=False)


@pytest.mark.parametrize("unknown", [{"format": "xml"}, {"framing": "glue"}])
def test_unknown_formats_and_framings_are_refused(unknown):
    with pytest.raises(InvalidConfig, match="must be one of"):
        DecoderSpec(**unknown).open()
