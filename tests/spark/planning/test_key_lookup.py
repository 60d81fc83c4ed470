"""Rows of some keys: segments whose filter rules the keys out are not read at all."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pyarrow as pa
import pytest
from tidelog.arrow.columns import arrow_schema
from tidelog_core.errors import InvalidConfig
from tidelog_core.records.batch import CompressionType, Record, build_batch
from tidelog_spark.options.read_options import parse_options
from tidelog_spark.planning.table_planner import plan_read
from tidelog_spark.split_rows import read_rows

from tests.support.tiered_cluster import TieredCluster

SEGMENT_RECORDS = 200
SEGMENTS = 10


@pytest.fixture
def cluster(tmp_path: Path) -> TieredCluster:
    """Ten segments of two hundred records; each key is in two of them, and null in all."""
    built = TieredCluster(tmp_path)
    built.create_topic("t")
    for segment in range(SEGMENTS):
        base = segment * SEGMENT_RECORDS
        batches = [
            build_batch(
                [Record(0, i, key_of(i), b"%d" % i) for i in range(start, start + 20)],
                base_offset=start,
                compression=CompressionType.ZSTD,
            )
            for start in range(base, base + SEGMENT_RECORDS, 20)
        ]
        built.add_segment("t", batches, key_filter_records_max=1000)
    return built


def key_of(offset: int) -> bytes | None:
    return None if offset % 50 == 0 else b"\xff%d" % (offset % (SEGMENT_RECORDS * SEGMENTS // 2))


def rows(cluster: TieredCluster, **given: str) -> pa.Table:
    options = parse_options({**cluster.options, "subscribe": "t", **given})
    found = [batch for split in plan_read(options).splits for batch in read_rows(options, split)]
    return pa.Table.from_batches(found, arrow_schema(include_headers=False))


def segments_read(cluster: TieredCluster, **given: str) -> list[int]:
    options = parse_options({**cluster.options, "subscribe": "t", **given})
    return [
        part.start_offset // SEGMENT_RECORDS
        for split in plan_read(options).splits
        for part in split.slices
    ]


def test_rows_of_a_key_are_all_found_and_no_others(cluster):
    given = {"keyEncoding": "hex", "key": b"\xff777".hex()}
    found = rows(cluster, **given)
    assert found["offset"].to_pylist() == [777, 1777]
    assert found["value"].to_pylist() == [b"777", b"1777"]


def test_segments_without_the_keys_are_not_read(cluster):
    wanted = [b"\xff13", b"\xff999"]
    given = {
        "keyEncoding": "base64",
        "keys": json.dumps([base64.b64encode(key).decode() for key in wanted]),
    }
    # A filter may take an absent key for one that is there, and never the other way round.
    found = segments_read(cluster, **given)
    assert {0, 4, 5, 9} <= set(found)
    assert len(found) < 7
    for segment in set(range(SEGMENTS)) - set(found):
        pattern = f"*/{segment * SEGMENT_RECORDS:020d}-*.log"
        (log,) = cluster.objects.rglob(pattern.removeprefix("*/"))
        log.unlink()
    assert rows(cluster, **given)["offset"].to_pylist() == [13, 999, 1013, 1999]


def test_a_segment_without_a_filter_is_read(cluster):
    start = SEGMENTS * SEGMENT_RECORDS
    cluster.add_segment("t", [build_batch([Record(0, 1, b"only", None)], base_offset=start)])
    assert rows(cluster, key="only")["offset"].to_pylist() == [start]


def test_a_key_goes_with_ranges_and_small_splits(cluster):
    given = {"keyEncoding": "hex", "key": b"\xff777".hex(), "minPartitions": "7"}
    limits = {"startingOffsets": '{"t": {"0": 778}}'}
    assert rows(cluster, **given, **limits)["offset"].to_pylist() == [1777]
    limits = {"startingTimestamp": "700", "endingTimestamp": "778"}
    assert rows(cluster, **given, **limits)["offset"].to_pylist() == [777]
    assert rows(cluster, key="absent").num_rows == 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"key": "a", "keys": '["b"]'}, "give only one of the options 'key', 'keys'"),
        ({"keys": "a,b"}, "option 'keys' is 'a,b': it must be a JSON list"),
        ({"keys": "[]"}, "it must be a JSON list"),
        ({"keys": "[1]"}, "it must be a JSON list"),
        ({"key": "xyz", "keyEncoding": "hex"}, "it has 'xyz', which is not hexadecimal"),
        ({"key": "?", "keyEncoding": "base64"}, "it has '?', which is not base64"),
        ({"key": "a", "keyEncoding": "utf-16"}, "it must be one of utf-8, hex, base64"),
        ({"keyEncoding": "hex"}, "option 'keyEncoding' needs 'key' or 'keys'"),
    ],
)
def test_keys_that_cannot_be_read_are_refused(cluster, given, says):
    with pytest.raises(InvalidConfig) as raised:
        rows(cluster, **given)
    assert says in str(raised.value)
