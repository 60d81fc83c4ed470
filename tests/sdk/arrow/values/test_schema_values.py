"""Values as columns by their schemas: beside core's readers, damaged, and of other versions."""

from __future__ import annotations

import json
import random
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from tidelog.arrow.columns import HEADERS_TYPE
from tidelog.arrow.schemas.found_schemas import FoundSchema
from tidelog.arrow.values import arrays, avro_cursors, header_ids, schema_values
from tidelog.arrow.values.avro_columns import AvroColumns
from tidelog.arrow.values.avro_cursors import Cursors
from tidelog.arrow.values.avro_readers import ITEMS_MAX
from tidelog.arrow.values.payloads import Payloads
from tidelog.arrow.values.schema_values import SchemaDecoder
from tidelog.errors import InvalidConfig
from tidelog_core.errors import InvalidRecord
from tidelog_core.schemas.avro.parsing import parse_avro
from tidelog_core.schemas.model import Reference, SchemaType
from tidelog_core.schemas.parsed_schema import InvalidSchema
from tidelog_core.schemas.values.codecs import open_codec
from tidelog_core.schemas.values.framing import (
    HEADER_BYTES_MAX,
    VALUE_HEADER,
    UnreadableValue,
    framed,
    joined_indexes,
)

WIDE = {
    "type": "record",
    "name": "Wide",
    "fields": [
        {"name": "i", "type": "int"},
        {"name": "l", "type": ["null", "long"]},
        {"name": "f", "type": "float"},
        {"name": "d", "type": ["double", "null"]},
        {"name": "b", "type": "boolean"},
        {"name": "s", "type": ["null", "string"]},
        {"name": "y", "type": "bytes"},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "x", "type": {"type": "fixed", "name": "F", "size": 3}},
        {
            "name": "r",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "R",
                    "fields": [
                        {"name": "a", "type": {"type": "array", "items": ["null", "string"]}}
                    ],
                },
            ],
        },
        {"name": "m", "type": {"type": "map", "values": {"type": "array", "items": "long"}}},
        {"name": "n", "type": "null"},
    ],
}


def wide(chance: random.Random) -> dict[str, Any]:
    """Return a value in Avro's JSON."""

    def maybe(name: str, value: Any) -> Any:
        return {name: value} if chance.random() < 0.7 else None

    def text() -> str:
        return "".join(chance.choices("aäß🙂 ", k=chance.randint(0, 9)))

    return {
        "i": chance.choice([0, -1, 2**31 - 1, -(2**31), 63, 64, -65]),
        "l": maybe("long", chance.choice([0, 2**63 - 1, -(2**63), 2**40])),
        "f": chance.choice([0.0, 1.5, -2.25]),
        "d": maybe("double", chance.random()),
        "b": chance.random() < 0.5,
        "s": maybe("string", text()),
        "y": "".join(map(chr, chance.choices(range(256), k=chance.randint(0, 5)))),
        "e": chance.choice("AB"),
        "x": "abc",
        "r": maybe("R", {"a": [maybe("string", text()) for _ in range(chance.randint(0, 4))]}),
        "m": {text() + str(one): [one] * one for one in range(chance.randint(0, 3))},
        "n": None,
    }


def plain(value: dict[str, Any]) -> dict[str, Any]:
    """Return what Arrow has of such a value."""

    def inner(one: Any) -> Any:
        return None if one is None else next(iter(one.values()))

    record = inner(value["r"])
    return {
        **value,
        **{name: inner(value[name]) for name in "lds"},
        "y": value["y"].encode("latin-1"),
        "x": value["x"].encode(),
        "r": record and {"a": [inner(one) for one in record["a"]]},
        "m": list(value["m"].items()),
    }


def payloads(values: list[bytes]) -> Payloads:
    return Payloads.of(pa.array(values, pa.binary()))


def columns(schema: Any) -> AvroColumns:
    return AvroColumns(parse_avro(json.dumps(schema))[0])


def test_columns_have_what_cores_reader_reads() -> None:
    chance = random.Random(3)
    values = [wide(chance) for _ in range(500)]
    codec = open_codec(SchemaType.AVRO, json.dumps(WIDE))
    found, problems = columns(WIDE).read(payloads([codec.encode(one) for one in values]))
    found.validate(full=True)
    assert problems == {}
    assert found.to_pylist() == [plain(one) for one in values]


def test_damaged_values_are_named_as_cores_reader_does_and_harm_no_other() -> None:
    chance = random.Random(4)
    codec = open_codec(SchemaType.AVRO, json.dumps(WIDE))
    values = [codec.encode(wide(chance)) for _ in range(600)]
    for number in range(0, 600, 2):
        data = bytearray(values[number])
        data[chance.randrange(len(data))] = chance.randrange(256)
        values[number] = bytes(data[: chance.randint(0, len(data))])
    found, problems = columns(WIDE).read(payloads(values))
    found.validate(full=True)
    rows = found.to_pylist()
    assert all(number % 2 == 0 for number in problems)
    assert len(problems) > 100
    for number, value in enumerate(values):
        if number in problems:
            with pytest.raises(UnreadableValue) as refused:
                codec.decode(value)
            assert problems[number] == str(refused.value)
        else:
            shown = json.dumps(rows[number], default=repr)
            assert shown == json.dumps(plain(codec.decode(value)), default=repr)


def test_long_arrays_are_read_one_by_one() -> None:
    schema = {
        "type": "record",
        "name": "A",
        "fields": [{"name": "a", "type": {"type": "array", "items": "int"}}],
    }
    codec = open_codec(SchemaType.AVRO, json.dumps(schema))
    values = [{"a": list(range(count))} for count in (0, 1, ITEMS_MAX, ITEMS_MAX + 1, 50_000)]
    blocks = b"\1\2\2\1\2\4\2\6\0"  # of one item each, two of them with their sizes
    found, problems = columns(schema).read(payloads([*map(codec.encode, values), blocks]))
    assert problems == {}
    assert found.to_pylist() == [*values, {"a": [1, 2, 3]}]


def test_arrays_within_arrays_are_read_one_by_one_beyond_a_number_of_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A value of 270 kB would else take a round for each of its 262,144 numbers."""
    kind: Any = "int"
    value: Any = 7
    for _ in range(3):
        kind, value = {"type": "array", "items": kind}, [value] * ITEMS_MAX
    schema = {"type": "record", "name": "A", "fields": [{"name": "a", "type": kind}]}
    data = open_codec(SchemaType.AVRO, json.dumps(schema)).encode({"a": value})
    reads = 0
    longs = Cursors.longs

    def counted(cursors: Cursors, rows: Any) -> Any:
        nonlocal reads
        reads += 1
        return longs(cursors, rows)

    monkeypatch.setattr(Cursors, "longs", counted)
    monkeypatch.setattr(avro_cursors, "STEPS_MAX", 1_000)
    found, problems = columns(schema).read(payloads([data, data[:-1]]))
    assert reads < 3_000
    assert (found[0].as_py(), list(problems)) == ({"a": value}, [1])
    found.validate(full=True)


def test_bytes_are_gathered_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(5)
    values = [wide(chance) for _ in range(200)]
    codec = open_codec(SchemaType.AVRO, json.dumps(WIDE))
    monkeypatch.setattr(arrays, "GATHERED_BYTES_MAX", 16)
    found, problems = columns(WIDE).read(payloads([codec.encode(one) for one in values]))
    found.validate(full=True)
    assert problems == {}
    assert found.to_pylist() == [plain(one) for one in values]


@pytest.mark.parametrize(
    ("schema", "values", "kind"),
    [
        ({"type": "int", "logicalType": "date"}, [0, 20_000], pa.date32()),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            [0, 1_700_000_000_000],
            pa.timestamp("ms", "UTC"),
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            ["\x01", "\xff\x00"],
            pa.decimal128(4, 2),
        ),
        ({"type": "string", "logicalType": "uuid"}, ["a"], pa.string()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, ["a"], pa.binary()),
    ],
    ids=["date", "timestamp", "decimal", "uuid", "no decimal"],
)
def test_logical_types_are_arrows(schema: Any, values: list[Any], kind: pa.DataType) -> None:
    record = {"type": "record", "name": "L", "fields": [{"name": "v", "type": schema}]}
    codec = open_codec(SchemaType.AVRO, json.dumps(record))
    found, problems = columns(record).read(payloads([codec.encode({"v": one}) for one in values]))
    assert (problems, found.type.field("v").type) == ({}, kind)
    found.validate(full=True)


@pytest.mark.parametrize(
    "schema",
    [
        "int",
        {"type": "record", "name": "A", "fields": [{"name": "a", "type": ["int", "string"]}]},
        {"type": "record", "name": "A", "fields": [{"name": "a", "type": ["null", "A"]}]},
    ],
    ids=["no record", "union", "within itself"],
)
def test_schemas_without_columns_are_named(schema: Any) -> None:
    with pytest.raises(InvalidSchema):
        columns(schema)


def doubling(count: int) -> dict[str, Any]:
    """Return a schema of a record that has two of another one, which has two of a third, and so on.

    It has as many columns as 2 to the power of that number.
    """
    kind: Any = "int"
    for number in range(count):
        name = f"R{number}"
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": "int"}]
        if number:
            fields[1]["type"] = f"R{number - 1}"
        kind = {"type": "record", "name": name, "fields": fields}
    return dict(kind)


def test_schemas_with_too_many_columns_are_named() -> None:
    assert columns(doubling(5)).type.num_fields == 2
    with pytest.raises(InvalidSchema, match="more than 10000 columns"):
        columns(doubling(25))
    messages = "".join(
        f"message R{number} {{ R{number + 1} a = 1; R{number + 1} b = 2; }}" for number in range(25)
    )
    text = f'syntax = "proto3"; {messages} message R25 {{}}'
    with pytest.raises(InvalidConfig, match="more than 10000 columns"):
        SchemaDecoder(Schemas(SchemaType.PROTOBUF, text), "t-value")


class Schemas:
    """A source with a few schemas, the last of which gives the columns."""

    def __init__(self, kind: SchemaType, *texts: str, known: Any = ()) -> None:
        self._found = [FoundSchema(kind, text, known) for text in texts]
        self.asked: list[int] = []

    def latest(self, subject: str) -> FoundSchema:
        assert subject == "t-value"
        return self._found[-1]

    def by_id(self, schema_id: int) -> FoundSchema | None:
        self.asked.append(schema_id)
        return self._found[schema_id - 1] if schema_id <= len(self._found) else None

    def by_guid(self, guid: str) -> FoundSchema | None:
        return self.by_id(UUID(guid).int)


def batch(values: list[bytes | None]) -> pa.RecordBatch:
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "value": pa.array(values, pa.binary()),
            "topic": ["t"] * count,
            "partition": [0] * count,
            "offset": np.arange(100, 100 + count),
        }
    )


def in_header(number: int, place: bytes = b"") -> bytes:
    """Return the header that names a schema by its guid, which is its number here."""
    return b"\1" + UUID(int=number).bytes + place


def with_headers(values: list[bytes | None], headers: list[Any]) -> pa.RecordBatch:
    """Return a batch with headers; one that is bytes names the value's schema."""
    made = [[(VALUE_HEADER, one)] if isinstance(one, bytes) else one for one in headers]
    rows = [None if one is None else [{"key": k, "value": v} for k, v in one] for one in made]
    return batch(values).append_column("headers", pa.array(rows, HEADERS_TYPE))


def test_values_whose_schemas_are_in_headers_are_decoded_beside_others() -> None:
    source = Schemas(SchemaType.AVRO, OLD, NEW)
    old = open_codec(SchemaType.AVRO, OLD).encode({"id": 1})
    new = open_codec(SchemaType.AVRO, NEW).encode({"id": 2, "mail": "a", "n": 0})
    others = [("a", b"x"), ("__key_schema_id", in_header(9))]
    data = with_headers(
        [new, old, new, framed(1, old), None, framed(2, new), old, framed(2, new)],
        [
            in_header(2),
            in_header(1),
            framed(2, b""),  # by its id
            others,
            in_header(1),
            None,
            [(VALUE_HEADER, in_header(2)), *others, (VALUE_HEADER, in_header(1))],  # the last
            [(VALUE_HEADER, None)],
        ],
    )
    first, second = {"mail": None, "id": 1, "n": 5}, {"mail": "a", "id": 2, "n": 0}
    wanted = [second, first, second, first, None, second, first, second]
    decoder = SchemaDecoder(source, "t-value")
    for _ in range(2):
        found = decoder.decode(data)
        assert found.column("value").to_pylist() == wanted
        assert found.column("headers") == data.column("headers")
        assert decoder.decode(data.slice(2, 4)).column("value").to_pylist() == wanted[2:6]
    assert len(source.asked) == 4, "each name is asked for once"


def test_wrong_headers_are_named_and_harm_no_other_value() -> None:
    old = open_codec(SchemaType.AVRO, OLD).encode({"id": 1})
    wrong = [b"", b"\1short", b"\2" + bytes(16), in_header(7), in_header(1, b"\0"), framed(7, b"")]
    data = with_headers([old] * 7, [*wrong, in_header(1)])
    decoder = SchemaDecoder(Schemas(SchemaType.AVRO, OLD), "t-value", errors="null")
    assert decoder.decode(data).column("value").to_pylist() == [None] * 6 + [{"id": 1}]
    strict = SchemaDecoder(Schemas(SchemaType.AVRO, OLD), "t-value")
    for row, reason in (
        (0, "its header __value_schema_id: 0 bytes have no room"),
        (1, "6 bytes have no room for a schema's guid"),
        (3, f"there is no schema {UUID(int=7)}"),
        (4, "1 bytes after the schema's id"),
        (5, "there is no schema 7"),
    ):
        with pytest.raises(InvalidRecord, match=reason):
            strict.decode(data.slice(row))


def test_messages_of_protobuf_have_their_place_in_the_header() -> None:
    text = 'syntax = "proto3"; message A { int32 n = 1; } message B {}'
    data = with_headers(
        [b"\x08\x07", b"", b"\x08\x07", b"\0\x08\x07"],
        [in_header(1, b"\0"), in_header(1, b"\0"), in_header(1, b"\2\2"), in_header(1)],
    )
    decoder = SchemaDecoder(Schemas(SchemaType.PROTOBUF, text), "t-value", errors="null")
    assert decoder.decode(data).column("value").to_pylist() == [{"n": 7}, {"n": 0}, None, None]


def test_headers_that_are_all_different_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header_ids, "NUMBERS_MAX", 3)
    old = open_codec(SchemaType.AVRO, OLD).encode({"id": 1})
    decoder = SchemaDecoder(Schemas(SchemaType.AVRO, OLD), "t-value", errors="null")
    for start in range(2, 50, 6):
        strange = with_headers([old] * 6, [in_header(start + one) for one in range(6)])
        assert decoder.decode(strange).column("value").null_count == 6
        known = with_headers([old], [in_header(1)])
        assert decoder.decode(known).column("value").to_pylist() == [{"id": 1}]
    assert len(decoder._headers._frames) <= 3


def test_all_headers_of_a_batch_count_though_fewer_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(header_ids, "NUMBERS_MAX", 3)
    old = open_codec(SchemaType.AVRO, OLD).encode({"id": 1})
    decoder = SchemaDecoder(Schemas(SchemaType.AVRO, OLD), "t-value", errors="null")
    strange = [in_header(one) for one in range(2, 9)]
    data = with_headers([old] * 8, [in_header(1), *strange])
    assert decoder.decode(data).column("value").to_pylist() == [{"id": 1}] + [None] * 7


def test_a_million_headers_of_one_schema_cost_one_question_and_one_reading() -> None:
    text = 'syntax = "proto3"; message A { int32 n = 1; }'
    source = Schemas(SchemaType.PROTOBUF, text)
    places = [joined_indexes((0, number)) for number in range(1_000)]
    wrong = [in_header(1, b"\0" + number.to_bytes(2, "big")) for number in range(1_000)]
    headers = [in_header(1, b"\0"), *(in_header(1, one) for one in places), *wrong]
    data = with_headers([b"\x08\x07"] * len(headers), headers)
    decoder = SchemaDecoder(source, "t-value", errors="null")
    assert decoder.decode(data).column("value").to_pylist() == [{"n": 7}] + [None] * 2_000
    assert len(source.asked) == 1
    in_headers = decoder._headers.values_of(data, data.column("value"))
    assert in_headers is not None
    groups, _ = decoder._groups(in_headers.column, in_headers)
    assert [len(one.rows) for one in groups] == [1_001]


def test_headers_that_no_serializer_writes_are_not_kept() -> None:
    """Each may have a megabyte, and thousands are remembered."""
    old = open_codec(SchemaType.AVRO, OLD).encode({"id": 1})
    long = in_header(1, bytes(HEADER_BYTES_MAX))
    decoder = SchemaDecoder(Schemas(SchemaType.AVRO, OLD), "t-value")
    with pytest.raises(InvalidRecord, match=r"359 bytes are too many, allowed are 342"):
        decoder.decode(with_headers([old], [long]))
    assert not decoder._headers._numbers


OLD = '{"type":"record","name":"U","fields":[{"name":"id","type":"int"}]}'
NEW = (
    '{"type":"record","name":"U","fields":[{"name":"mail","type":["null","string"],"default":null},'
    '{"name":"id","type":"long"},{"name":"n","type":"int","default":5}]}'
)


def test_values_of_older_versions_have_the_newest_ones_columns() -> None:
    source = Schemas(SchemaType.AVRO, OLD, NEW)
    old, new = open_codec(SchemaType.AVRO, OLD), open_codec(SchemaType.AVRO, NEW)
    first = framed(1, old.encode({"id": 1}))
    second = framed(2, new.encode({"id": 2, "mail": "a", "n": 0}))
    decoder = SchemaDecoder(source, "t-value")
    found = decoder.decode(batch([second, None, first, second, first]).slice(1))
    found.validate(full=True)
    older = {"mail": None, "id": 1, "n": 5}
    newer = {"mail": "a", "id": 2, "n": 0}
    assert found.column("value").to_pylist() == [None, older, newer, older]
    assert source.asked == [1, 2]
    assert decoder.decode(batch([])).num_rows == 0
    assert decoder.decode(batch([None])).column("value").null_count == 1


def test_what_cannot_be_decoded_raises_or_is_null() -> None:
    source = Schemas(SchemaType.AVRO, NEW)
    good = framed(1, open_codec(SchemaType.AVRO, NEW).encode({"id": 2}))
    for wrong, named in (
        (b"", "does not begin with"),
        (b"{}", "does not begin with"),
        (b"\1" + good[1:], "does not begin with"),
        (framed(9, b""), "there is no schema 9"),
        (good[:-1], "ends in the middle"),
        (good + b"x", "bytes follow"),
    ):
        values = [good, None, wrong, good]
        with pytest.raises(InvalidRecord, match=f"offset 102 of t-0 .*{named}"):
            SchemaDecoder(source, "t-value").decode(batch(values))
        found = SchemaDecoder(source, "t-value", errors="null").decode(batch(values))
        assert found.column("value").is_null().to_pylist() == [False, True, True, False]
    with pytest.raises(InvalidConfig, match="gives no columns"):
        SchemaDecoder(Schemas(SchemaType.AVRO, '"int"'), "t-value")


def test_defaults_are_those_of_avro() -> None:
    item = {
        "type": "record",
        "name": "I",
        "fields": [{"name": "n", "type": ["int", "null"], "default": 3}],
    }
    defaults: list[tuple[Any, Any, Any]] = [
        ("bytes", "\u00ff", b"\xff"),
        ({"type": "array", "items": "string"}, ["a"], ["a"]),
        ({"type": "map", "values": "int"}, {"a": 1}, [("a", 1)]),
        (item, {}, {"n": 3}),
        (["null", "string"], None, None),
        (["string", "null"], "a", "a"),
    ]
    added = [
        {"name": f"f{number}", "type": kind, "default": default}
        for number, (kind, default, _) in enumerate(defaults)
    ]
    newest = json.loads(OLD)
    newest["fields"] += added
    source = Schemas(SchemaType.AVRO, OLD, json.dumps(newest))
    data = framed(1, open_codec(SchemaType.AVRO, OLD).encode({"id": 1}))
    found = SchemaDecoder(source, "t-value").decode(batch([data, data])).column("value")
    found.validate(full=True)
    shown = {f"f{number}": value for number, (_, _, value) in enumerate(defaults)}
    assert found.to_pylist() == [{"id": 1, **shown}] * 2


@pytest.mark.parametrize(
    ("kind", "default"),
    [("string", "x" * 2_000), ({"type": "array", "items": "null"}, [None] * 2_000)],
    ids=["text", "nulls"],
)
def test_a_default_that_takes_much_memory_is_no_column(kind: Any, default: Any) -> None:
    """Every one of 65,536 records of a batch gets a copy."""
    newest = json.loads(OLD)
    newest["fields"].append({"name": "f", "type": kind, "default": default})
    source = Schemas(SchemaType.AVRO, OLD, json.dumps(newest))
    data = framed(1, open_codec(SchemaType.AVRO, OLD).encode({"id": 1}))
    with pytest.raises(InvalidRecord, match="the default of f is too large"):
        SchemaDecoder(source, "t-value").decode(batch([data]))


def test_values_that_do_not_fit_the_newest_types_are_named_and_harm_no_other() -> None:
    text = '{"type":"record","name":"U","fields":[{"name":"a","type":"%s"}]}'
    source = Schemas(SchemaType.AVRO, text % "bytes", text % "string")
    codec = open_codec(SchemaType.AVRO, text % "bytes")
    data = [framed(1, codec.encode({"a": one})) for one in ("a", "b", "\xff", "c", "d")]
    found = SchemaDecoder(source, "t-value", errors="null").decode(batch(data)).column("value")
    found.validate(full=True)
    assert found.to_pylist() == [{"a": "a"}, {"a": "b"}, None, {"a": "c"}, {"a": "d"}]
    with pytest.raises(InvalidRecord, match=r"offset 102 of t-0 .*\(schema 1\)"):
        SchemaDecoder(source, "t-value").decode(batch(data))


def test_a_schema_that_was_missing_is_found_once_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Schemas(SchemaType.AVRO, OLD)
    data = framed(2, open_codec(SchemaType.AVRO, OLD).encode({"id": 1}))
    decoder = SchemaDecoder(source, "t-value", errors="null")
    for _ in range(2):
        assert decoder.decode(batch([data])).column("value").to_pylist() == [None]
    assert source.asked == [2], "not again at once"
    source._found.append(source._found[0])
    monkeypatch.setattr(schema_values, "MISSING_SECONDS", 0.0)
    assert decoder.decode(batch([data])).column("value").to_pylist() == [{"id": 1}]


def test_a_batch_of_schemas_that_are_not_there_asks_for_a_few() -> None:
    source = Schemas(SchemaType.AVRO, OLD)
    good = framed(1, open_codec(SchemaType.AVRO, OLD).encode({"id": 1}))
    data = [good, *(framed(number, b"") for number in range(2, 5_000)), good]
    decoder = SchemaDecoder(source, "t-value", errors="null")
    found = decoder.decode(batch(data)).column("value")
    assert found.null_count == len(data) - 2
    assert source.asked == list(range(1, 2 + schema_values.MISSING_MAX))


def test_of_too_many_schemas_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_values, "READERS_MAX", 3)
    source = Schemas(SchemaType.AVRO, *[OLD] * 4)
    value = open_codec(SchemaType.AVRO, OLD).encode({"id": 1})
    decoder = SchemaDecoder(source, "t-value")
    for schema_id in (1, 2, 3, 4, 2, 3, 4, 1):
        found = decoder.decode(batch([framed(schema_id, value)])).column("value")
        assert found.to_pylist() == [{"id": 1}]
    assert source.asked == [1, 2, 3, 4, 1]


def test_json_values_are_columns() -> None:
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": ["null", "string"]}},
        },
    }
    decoder = SchemaDecoder(Schemas(SchemaType.JSON, json.dumps(schema)), "t-value", errors="null")
    values = [
        b'{"id":1,"tags":["a",null],"more":2}',
        b"{}",
        b"[1]",
        b'{"id":"x"}',
        b'{"id":99999999999999999999}',
    ]
    found = decoder.decode(batch([framed(1, one) for one in values])).column("value")
    assert found.to_pylist() == [
        {"id": 1, "tags": ["a", None]},
        {"id": None, "tags": None},
        *[None] * 3,
    ]


PROTO = """
syntax = "proto3";
import "item.proto";
message Order {
  int64 id = 1; repeated Item items = 2; map<string, int32> counts = 3; optional string note = 4;
  oneof by { string name = 5; bytes raw = 6; } Kind kind = 7; Item first = 8;
}
enum Kind { NONE = 0; SOME = 1; }
message Other {}
"""
KNOWN = ((Reference("item.proto", "item", 1), 'syntax = "proto3"; message Item { uint64 n = 1; }'),)


def test_protobuf_messages_are_columns() -> None:
    codec = open_codec(SchemaType.PROTOBUF, PROTO, KNOWN)
    value = {"id": 7, "items": [{"n": 1}, {}], "counts": {"a": 1}, "name": "ann", "kind": "SOME"}
    source = Schemas(SchemaType.PROTOBUF, PROTO, known=KNOWN)
    decoder = SchemaDecoder(source, "t-value", errors="null")
    data = [codec.encode(value), codec.encode({}), b"\0\x08", b"\2\2", b""]
    found = decoder.decode(batch([framed(1, one) for one in data])).column("value")
    found.validate(full=True)
    whole, empty, *others = found.to_pylist()
    assert whole == {
        "id": 7,
        "items": [{"n": 1}, {"n": 0}],
        "counts": [("a", 1)],
        "note": None,
        "name": "ann",
        "raw": None,
        "kind": "SOME",
        "first": None,
    }
    assert empty == {
        **dict.fromkeys(("note", "name", "raw", "first")),
        "id": 0,
        "items": [],
        "counts": [],
        "kind": "NONE",
    }
    assert others == [None] * 3
