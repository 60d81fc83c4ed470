"""Avro values as JSON and back, beside fastavro; and bytes that no writer makes."""

from __future__ import annotations

import io
import json
import random
import time
from contextlib import suppress
from typing import Any

import fastavro
import pytest
from tidelog_core.schemas.model import SchemaType
from tidelog_core.schemas.values.codecs import ValueCodec, open_codec
from tidelog_core.schemas.values.framing import UnreadableValue

SIMPLE: list[tuple[Any, Any]] = [
    ("null", None),
    ("boolean", True),
    ("int", -(2**31)),
    ("long", 2**63 - 1),
    ("float", 1.5),
    ("double", -0.1),
    ("string", "höhe 🙂"),
    ("bytes", "\x00ÿ"),
    ({"type": "fixed", "name": "F", "size": 3}, "abc"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
    ({"type": "array", "items": "int"}, [1, 2, 3]),
    ({"type": "map", "values": "long"}, {"a": 1}),
    (["null", "string"], {"string": "x"}),
    (["null", "string"], None),
]
TREE = {
    "type": "record",
    "name": "Tree",
    "namespace": "a.b",
    "fields": [
        {"name": "value", "type": "int"},
        {"name": "next", "type": ["null", "Tree"], "default": None},
        {"name": "note", "type": "string", "default": "-"},
    ],
}


def codec(schema: Any) -> ValueCodec:
    return open_codec(SchemaType.AVRO, json.dumps(schema))


def by_fastavro(schema: Any, value: Any) -> bytes:
    """Return what fastavro writes of a value in Avro's JSON."""
    lines = io.StringIO(json.dumps(value) + "\n")
    (found,) = list(fastavro.json_reader(lines, schema))
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), found)
    return data.getvalue()


@pytest.mark.parametrize(("schema", "value"), SIMPLE, ids=[str(n) for n in range(len(SIMPLE))])
def test_values_are_written_and_read_as_avros_json_has_them(schema: Any, value: Any) -> None:
    of = codec(schema)
    data = of.encode(value)
    assert of.decode(data) == value
    record = {"type": "record", "name": "R", "fields": [{"name": "f", "type": schema}]}
    assert codec(record).encode({"f": value}) == by_fastavro(record, {"f": value}) == data


def test_records_within_themselves_and_defaults() -> None:
    of = codec(TREE)
    data = of.encode({"value": 1, "next": {"a.b.Tree": {"value": 2, "next": None}}})
    inner = {"value": 2, "next": None, "note": "-"}
    assert of.decode(data) == {"value": 1, "next": {"a.b.Tree": inner}, "note": "-"}
    assert of.encode({"value": 1, "next": {"value": 2}}) == data, "its only type needs no name"


def test_a_default_of_a_union_may_be_of_its_second_type() -> None:
    fields = [{"name": "f", "type": ["null", "int"], "default": 7}]
    of = codec({"type": "record", "name": "R", "fields": fields})
    assert of.decode(of.encode({})) == {"f": {"int": 7}}


def test_numbers_that_json_does_not_have_are_texts() -> None:
    of = codec({"type": "array", "items": "double"})
    value = ["NaN", "Infinity", "-Infinity"]
    assert of.decode(of.encode(value)) == value
    assert of.decode(of.encode([1])) == [1.0]


@pytest.mark.parametrize(
    ("schema", "value", "named"),
    [
        (TREE, {"next": None}, "value is missing"),
        (TREE, {"value": "1"}, "value must be int"),
        (TREE, {"value": 2**31}, "too large for int"),
        (TREE, {"value": True}, "value must be int"),
        (TREE, {"value": 1, "more": 1}, "no field 'more'"),
        (TREE, {"value": 1, "next": {"value": 2, "note": 3}}, "next.note must be string"),
        (["null", "int", "string"], 5, "write null or an object"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "C", "must be E"),
        ({"type": "fixed", "name": "F", "size": 2}, "abc", "3 bytes, 2 are required"),
        ({"type": "array", "items": "int"}, [1, "x"], r"\[1\] must be int"),
        ("bytes", "€", "stand for no byte"),
        ("float", 1e300, "too large"),
        ("string", "\ud800", "surrogate"),
        ("null", 0, "must be null"),
    ],
    ids=[str(number) for number in range(14)],
)
def test_json_that_does_not_fit_is_refused_by_its_place(
    schema: Any, value: Any, named: str
) -> None:
    with pytest.raises(UnreadableValue, match=named):
        codec(schema).encode(value)


NULLS = {"type": "array", "items": "null"}
WIDE = {
    "type": "record",
    "name": "Wide",
    "fields": [{"name": f"f{number}", "type": "null"} for number in range(2_000)],
}


def long(value: int) -> bytes:
    return codec("long").encode(value)


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ("int", b""),
        ("int", long(2**31)),
        ("long", b"\xff" * 11 + b"\1"),
        ("long", b"\xff" * 9 + b"\x7f"),
        ("string", long(2**40)),
        ("string", long(-1)),
        ("string", b"\x02\xff"),
        ("boolean", b"\2"),
        ("double", b"1234567"),
        ("int", b"\0\0"),
        (["null"], b"\2"),
        (["null"], b"\1"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\2"),
        ({"type": "fixed", "name": "F", "size": 2_000_000_000}, b"abc"),
        (NULLS, long(2**62) + b"\0"),
        (NULLS, (long(90_000)) * 2 + b"\0"),
        (NULLS, (long(-90_000) + b"\0") * 2 + b"\0"),
        ({"type": "array", "items": NULLS}, long(60_000) + (long(50) + b"\0") * 60_000 + b"\0"),
        ({"type": "array", "items": WIDE}, long(90_000) + b"\0"),
        ({"type": "array", "items": {"type": "fixed", "name": "Z", "size": 0}}, long(100_001)),
        (TREE, b"\2\2" * 50_000 + b"\0"),
        ({"type": "map", "values": "null"}, long(2**62)),
    ],
    ids=[str(number) for number in range(22)],
)
def test_bytes_that_no_writer_makes_are_refused_soon(schema: Any, data: bytes) -> None:
    of = codec(schema)
    before = time.process_time()
    with pytest.raises(UnreadableValue):
        of.decode(data)
    assert time.process_time() - before < 10


def test_damaged_values_are_read_or_refused() -> None:
    of, chance = codec(TREE), random.Random(7)
    whole = of.encode({"value": 1, "next": {"a.b.Tree": {"value": 2, "note": "x" * 20}}})
    for _ in range(3_000):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with suppress(UnreadableValue):
            of.decode(bytes(data[: chance.randint(0, len(data))]))


def test_values_may_nest_as_deep_as_is_said_and_no_deeper() -> None:
    of = codec(TREE)
    assert of.decode(b"\2\2" * 49 + b"\2\0\0" + b"\0" * 49)["value"] == 1
    with pytest.raises(UnreadableValue, match="nests more than 100 times"):
        of.decode(b"\2\2" * 60 + b"\2\0\0" + b"\0" * 60)
