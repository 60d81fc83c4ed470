"""Batches built from Arrow columns against core's encoder, which takes Python records."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog.errors import InvalidRow
from tidelog.producing import arrow_batches
from tidelog.producing.arrow_batches import BatchBuilder
from tidelog.producing.batch_options import BatchOptions
from tidelog.producing.encoded import EncodedRecords
from tidelog_core.errors import MessageTooLarge
from tidelog_core.model import TopicPartition
from tidelog_core.records.batch import CompressionType, Record, build_batch, decode_records

from tests.support.key_partitions import partition_for_key

NOW_MS = 1_700_000_000_123
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
COUNTS = {"a": 3, "b": 1, "ünï": 7}

contents = st.none() | st.binary(max_size=300)
headers = st.none() | st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=8), "value": contents}), max_size=3
)
rows_of_all_kinds = st.lists(
    st.fixed_dictionaries(
        {
            "topic": st.sampled_from(sorted(COUNTS)),
            "partition": st.none() | st.just(0),
            "key": contents,
            "value": contents,
            "headers": headers,
            "timestamp": st.none() | st.integers(0, 2**42).map(lambda ms: ms * 1000 + 999),
        }
    ),
    max_size=60,
)
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


def build(
    table: pa.RecordBatch | Sequence[pa.RecordBatch], **options: object
) -> Iterator[tuple[TopicPartition, EncodedRecords]]:
    builder = BatchBuilder(
        BatchOptions(**options),  # type: ignore[arg-type]
        COUNTS.__getitem__,
        clock_ms=lambda: NOW_MS,
    )
    return builder.build([table] if isinstance(table, pa.RecordBatch) else table)


def of_rows(rows: Sequence[dict[str, object]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)


def as_record(row: dict) -> Record:
    timestamp_us = row.get("timestamp")
    return Record(
        0,
        NOW_MS if timestamp_us is None else timestamp_us // 1000,
        row.get("key"),
        row["value"],
        tuple((header["key"], header["value"]) for header in row.get("headers") or ()),
    )


def records_of(encoded: EncodedRecords) -> list[Record]:
    return [record._replace(offset=0) for record in decode_records(encoded.batch())]


@settings(deadline=None)  # The first example waits for the compiler.
@given(
    rows=rows_of_all_kinds,
    codec=st.sampled_from(CompressionType),
    batch_size_bytes=st.integers(30, 4000),
    cuts=st.lists(st.integers(0, 60), max_size=3),
)
def test_batches_are_byte_for_byte_those_of_the_cores_encoder(rows, codec, batch_size_bytes, cuts):
    table = of_rows(rows)
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    pieces = [table.slice(a, b - a) for a, b in itertools.pairwise(edges)]
    built = list(build(pieces, compression=codec, batch_size_bytes=batch_size_bytes))
    by_topic: dict[str, list[Record]] = {}
    for target, encoded in built:
        records = records_of(encoded)
        numbers = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 5}
        expected = build_batch(records, compression=codec, is_transactional=True, **numbers)
        assert encoded.batch(is_transactional=True, **numbers) == expected
        assert encoded.size_bytes == len(expected)
        assert encoded.record_count == len(records)
        by_topic.setdefault(target.topic, []).extend(records)
    for topic in COUNTS:
        expected_records = [as_record(row) for row in rows if row["topic"] == topic]
        assert sorted(map(repr, by_topic.get(topic, []))) == sorted(map(repr, expected_records))


@settings(deadline=None, max_examples=50)
@given(keys=st.lists(st.none() | st.binary(max_size=40), max_size=80))
def test_rows_of_a_partition_keep_their_order_and_keys_choose_as_kafkas_clients_do(keys):
    rows = [{"key": key, "value": b"%d" % i} for i, key in enumerate(keys)]
    schema = pa.schema([("key", pa.large_binary()), ("value", pa.binary())])
    found: dict[int, list[Record]] = {}
    for target, encoded in build(of_rows(rows, schema), topic="ünï", batch_size_bytes=200):
        found.setdefault(target.partition, []).extend(records_of(encoded))
    for partition, records in found.items():
        numbers = [int(record.value) for record in records]
        assert numbers == sorted(numbers)
        for record in records:
            if record.key is not None:
                assert partition == partition_for_key(record.key, 7)
    assert sum(map(len, found.values())) == len(keys)


def test_rows_without_a_key_fill_batches_and_reach_every_partition():
    rows = [{"value": bytes(90)} for _ in range(700)]
    schema = pa.schema([("value", pa.binary())])
    built = list(build(of_rows(rows, schema), topic="ünï", batch_size_bytes=1000))
    assert {target.partition for target, _ in built} == set(range(7))
    assert len(built) <= 2 * 700 * 95 // 1000


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_key_and_value_come_as_text_or_bytes_of_any_layout(kind):
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    row = {"key": "kä" if is_text else "kä".encode(), "value": "v" if is_text else b"v"}
    schema = pa.schema([("key", kind), ("value", kind)])
    [(_, encoded)] = build(of_rows([row], schema), topic="b")
    assert records_of(encoded) == [Record(0, NOW_MS, "kä".encode(), b"v")]


def test_the_option_goes_before_the_topics_of_the_rows_and_headers_can_be_left_out():
    row = {"topic": "a", "value": b"v", "headers": [{"key": "k", "value": b"h"}]}
    [(target, encoded)] = build(of_rows([row]), topic="b", include_headers=False)
    assert target == ("b", 0)
    assert records_of(encoded) == [Record(0, NOW_MS, None, b"v")]


def test_a_record_larger_than_a_batch_goes_alone_and_one_too_large_is_refused():
    rows = [{"value": b"small"}, {"value": bytes(5000)}, {"value": bytes(9000)}, {"value": b"s"}]
    table = of_rows(rows, pa.schema([("value", pa.binary())]))
    built = list(build(table, topic="b", batch_size_bytes=1000))
    assert [encoded.record_count for _, encoded in built] == [1, 1, 1, 1]
    with pytest.raises(MessageTooLarge, match=r"'kafka\.max\.request\.size'"):
        list(build(table, topic="b", batch_size_bytes=1000, record_size_bytes_max=9000))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"topic": None, "value": b"v"}, "a row has no topic"),
        ({"topic": "a", "partition": 3, "value": b"v"}, "a-3, and the topic has partitions 0 to 2"),
        ({"topic": "a", "partition": -1, "value": b"v"}, "names partition -1"),
        ({"topic": "a", "value": b"v", "timestamp": -1}, "before 1970"),
        ({"topic": "a", "value": b"v", "headers": [None]}, "header of row 1 is null"),
        ({"topic": "a", "headers": [{"key": None, "value": b""}]}, "header of row 1 has no key"),
    ],
)
def test_a_row_that_cannot_be_a_record_is_named(row, problem):
    with pytest.raises(InvalidRow, match=problem):
        list(build(of_rows([{"topic": "a", "value": b"fine"}, row])))


def test_many_small_arrow_batches_become_few_record_batches(monkeypatch):
    table = of_rows([{"key": b"k%d" % i, "value": bytes(100)} for i in range(1000)])
    pieces = [table.slice(start, 10) for start in range(0, 1000, 10)]
    assert len(list(build(pieces, topic="a"))) == 3
    monkeypatch.setattr(arrow_batches, "GATHERED_SIZE_BYTES", 10_000)
    assert 3 < len(list(build(pieces, topic="a"))) < 100
