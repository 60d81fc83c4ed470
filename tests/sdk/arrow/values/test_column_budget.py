"""A few bytes that stand for gigabytes of columns: batches are split, single values refused."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog.arrow.schemas.found_schemas import FoundSchema
from tidelog.arrow.values.column_budget import ColumnCounter, ranges_of, width_of
from tidelog.arrow.values.schema_values import SchemaDecoder
from tidelog.consuming.arrow_polling import decode_values
from tidelog.errors import InvalidConfig
from tidelog_core.errors import InvalidRecord
from tidelog_core.schemas.model import SchemaType
from tidelog_core.schemas.values.framing import framed

MIB = 1 << 20


class Schemas:
    """A source of numbered schemas, the last of which gives the columns."""

    def __init__(self, kind: SchemaType, *texts: str) -> None:
        self._found = [FoundSchema(kind, text) for text in texts]

    def latest(self, subject: str) -> FoundSchema:
        assert subject == "t-value"
        return self._found[-1]

    def by_id(self, schema_id: int) -> FoundSchema | None:
        return self._found[schema_id - 1]

    def by_guid(self, guid: str) -> FoundSchema | None:
        raise AssertionError(guid)


def decoder_of(kind: SchemaType, *schemas: Any, **options: Any) -> SchemaDecoder:
    texts = [one if isinstance(one, str) else json.dumps(one) for one in schemas]
    return SchemaDecoder(Schemas(kind, *texts), "t-value", **options)


def batch_of(*values: bytes | None, schema_id: int = 1) -> pa.RecordBatch:
    payloads = [None if one is None else framed(schema_id, one) for one in values]
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "value": pa.array(payloads, pa.binary()),
            "topic": ["t"] * count,
            "partition": [0] * count,
            "offset": np.arange(100, 100 + count),
        }
    )


def names(count: int) -> list[str]:
    return [f"f{number}" for number in range(count)]


def json_items(width: int) -> dict[str, Any]:
    """Return the schema of an object with an array of objects of so many properties."""
    item = {"type": "object", "properties": {one: {"type": "integer"} for one in names(width)}}
    return {"type": "object", "properties": {"a": {"type": "array", "items": item}}}


def avro_items(fields: list[dict[str, Any]]) -> dict[str, Any]:
    item = {"type": "record", "name": "I", "fields": fields}
    return {
        "type": "record",
        "name": "A",
        "fields": [{"name": "a", "type": {"type": "array", "items": item}}],
    }


EMPTY = {"type": "fixed", "name": "F", "size": 0}
NOTHING = [{"name": "f0", "type": EMPTY}, *({"name": f"g{n}", "type": "F"} for n in range(99))]
SYMBOLS = {"type": "enum", "name": "E", "symbols": ["S" * 40_000, "T"]}
MANY = " ".join(f"optional int64 f{number} = {number + 1};" for number in range(300))
PROTO_ITEMS = f'syntax = "proto3"; message A {{ repeated I a = 1; }} message I {{ {MANY} }}'
LONG = "S" * 9_000
PROTO_ENUM = f'syntax = "proto3"; message A {{ repeated E a = 1; }} enum E {{ {LONG} = 0; }}'
EIGHTY = b"\xa0\x01\0"  # items, and the end


@pytest.mark.parametrize(
    ("kind", "schema", "payload"),
    [
        (SchemaType.JSON, json_items(300), b'{"a":[' + b"{}," * 49 + b"{}]}"),
        (SchemaType.AVRO, avro_items(NOTHING), EIGHTY),
        (
            SchemaType.AVRO,
            {"type": "record", "name": "A", "fields": [{"name": "e", "type": SYMBOLS}]},
            b"\0",
        ),
        (
            SchemaType.AVRO,
            {
                "type": "record",
                "name": "A",
                "fields": [{"name": "a", "type": {"type": "array", "items": SYMBOLS}}],
            },
            b"\x08" + b"\0" * 4 + b"\0",
        ),
        (SchemaType.PROTOBUF, PROTO_ITEMS, b"\0" + b"\x0a\x00" * 20),
        (SchemaType.PROTOBUF, PROTO_ENUM, b"\0" + b"\x0a\x14" + b"\0" * 20),
    ],
    ids=["json", "avro without bytes", "avro enum", "avro enums", "protobuf", "protobuf enums"],
)
def test_what_expands_is_split(kind: SchemaType, schema: Any, payload: bytes) -> None:
    decoder = decoder_of(kind, schema, batch_bytes_max=MIB // 4)
    sizes, rows = [], 0
    for part in decoder.parts(batch_of(*[payload] * 15)):
        column = part.column("value")
        column.validate(full=True)
        sizes.append(column.nbytes)
        assert part.column("offset")[0].as_py() == 100 + rows
        rows += part.num_rows
    assert rows == 15
    assert max(sizes) <= MIB // 4
    assert len(sizes) > 1


def test_a_value_that_takes_too_much_is_named_before_anything_is_made() -> None:
    count = 2_000
    payload = b"\0" + b"\x0a\x00" * count
    given = batch_of(b"\0", payload)
    text = r"offset 101 of t-0 cannot be decoded: it takes \d+ bytes as columns, 1048576 are"
    tracemalloc.start()
    with pytest.raises(InvalidRecord, match=text) as refused:
        list(decoder_of(SchemaType.PROTOBUF, PROTO_ITEMS, batch_bytes_max=MIB).parts(given))
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused.value.record_indexes == (1,)
    assert most_bytes < MIB
    lenient = decoder_of(SchemaType.PROTOBUF, PROTO_ITEMS, batch_bytes_max=MIB, errors="null")
    found = lenient.decode(given).column("value").to_pylist()
    assert found == [{"a": []}, None]
    wide = decoder_of(SchemaType.PROTOBUF, PROTO_ITEMS, batch_bytes_max=1_000 * MIB)
    assert len(wide.decode(batch_of(payload)).column("value")[0]["a"]) == count


def test_many_columns_of_small_values_are_split() -> None:
    """A record of ten bytes has a place in each of them."""
    schema = {"type": "object", "properties": {one: {"type": "string"} for one in names(500)}}
    decoder = decoder_of(SchemaType.JSON, schema, batch_bytes_max=MIB // 4)
    parts = list(decoder.parts(batch_of(*[b"{}", None] * 500)))
    assert len(parts) > 5
    assert max(one.column("value").nbytes for one in parts) <= MIB // 4
    assert sum(one.column("value").null_count for one in parts) == 500


def test_defaults_of_new_fields_count() -> None:
    fields = [{"name": "id", "type": "int"}]
    added = [{"name": one, "type": "string", "default": "x" * 900} for one in names(100)]
    old, new = ({"type": "record", "name": "A", "fields": one} for one in (fields, fields + added))
    decoder = decoder_of(SchemaType.AVRO, old, new, batch_bytes_max=MIB)
    parts = list(decoder.parts(batch_of(*[b"\2"] * 50)))
    assert len(parts) > 3
    assert max(one.column("value").nbytes for one in parts) <= MIB
    assert parts[0].column("value")[0].as_py()["f99"] == "x" * 900


def test_a_batch_that_does_not_fit_is_refused_as_a_whole() -> None:
    decoder = decoder_of(SchemaType.JSON, json_items(300), batch_bytes_max=MIB)
    payload = b'{"a":[' + b"{}," * 99 + b"{}]}"
    assert decoder.decode(batch_of(payload)).num_rows == 1
    with pytest.raises(InvalidRecord, match=r"before offset 10\d of t-0 fill 1048576 bytes"):
        decoder.decode(batch_of(*[payload] * 9))


def test_parts_name_the_first_record_that_is_wrong() -> None:
    decoder = decoder_of(SchemaType.JSON, json_items(300), batch_bytes_max=MIB)
    payload = b'{"a":[' + b"{}," * 99 + b"{}]}"
    values = [payload] * 9
    values[7] = b"{"
    found = decoder.parts(batch_of(*values))
    rows = [next(found).num_rows]
    with pytest.raises(InvalidRecord, match="offset 107 of t-0"):
        rows.extend(part.num_rows for part in found)
    assert sum(rows) <= 7


def test_what_a_poll_decodes_is_limited_and_the_rest_is_left() -> None:
    decoder = decoder_of(SchemaType.JSON, json_items(300), batch_bytes_max=MIB)
    payload = b'{"a":[' + b"{}," * 99 + b"{}]}"
    batches = [batch_of(*[payload] * 9), batch_of(payload)]
    found, left = decode_values(batches, decoder, size_bytes_max=1)
    assert len(found) == 1
    rows = found[0].num_rows
    assert [one.num_rows for one in left] == [9 - rows, 1]
    assert left[0].column("offset")[0].as_py() == 100 + rows
    found, left = decode_values(batches, decoder, size_bytes_max=1 << 40)
    assert sum(one.num_rows for one in found) == 10
    assert list(left) == []


def test_a_schema_of_too_many_properties_has_no_columns() -> None:
    schema = {"type": "object", "properties": {one: {"type": "string"} for one in names(10_000)}}
    with pytest.raises(InvalidConfig, match="more than 10000 columns"):
        decoder_of(SchemaType.JSON, schema)


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="batch_bytes_max must be above zero"):
        decoder_of(SchemaType.JSON, json_items(1), batch_bytes_max=0)


# -- the estimates ------------------------------------------------------------------------------

SCALARS = st.sampled_from([pa.int64(), pa.float64(), pa.string(), pa.bool_()])
KINDS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=4).map(
            lambda some: pa.struct([(f"f{n}", one) for n, one in enumerate(some)])
        )
        | inner.map(pa.list_)
    ),
    max_leaves=8,
)


@settings(max_examples=25)
@given(KINDS, st.data())
def test_what_is_counted_is_what_arrow_takes(kind: pa.DataType, data: st.DataObject) -> None:
    rows = [data.draw(values_of(kind)) for _ in range(8)]
    taken = pa.array(rows, kind).nbytes
    counter = ColumnCounter(kind)
    counted = sum(counter.bytes_of(row, len(repr(row))) for row in rows)
    buffers = 8 * str(kind).count("list") + 8 * str(kind).count("string")  # one more offset each
    assert taken <= counted + buffers + 64
    assert counter.bytes_of(None, 0) == width_of(kind)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries(
            {}, optional={field.name: values_of(field.type) for field in kind}
        )
    if pa.types.is_list(kind):
        return st.none() | st.lists(values_of(kind.value_type), max_size=6)
    if kind == pa.string():
        return st.none() | st.text("ab", max_size=9)
    return st.none() | st.just(1 if kind == pa.int64() else 1.0 if kind == pa.float64() else True)


@given(st.lists(st.floats(0, 20), max_size=40))
def test_ranges_have_every_row_once_and_no_more_than_they_may(costs: list[float]) -> None:
    found = list(ranges_of(np.array(costs, np.float64), 25.0))
    assert [row for start, end in found for row in range(start, end)] == list(range(len(costs)))
    for start, end in found:
        assert end == start + 1 or sum(costs[start:end]) <= 25.0 + 1e-6
