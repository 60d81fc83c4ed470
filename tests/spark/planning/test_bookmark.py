"""A bookmark reads the same rows again, or says which of them are gone."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from tidelog.arrow.columns import arrow_schema
from tidelog_core.errors import InvalidConfig
from tidelog_core.records.batch import CompressionType, Record, build_batch
from tidelog_spark import bookmark
from tidelog_spark.options import bookmarks
from tidelog_spark.options.read_options import parse_options
from tidelog_spark.planning.limits import OtherTopic
from tidelog_spark.planning.table_planner import plan_read
from tidelog_spark.reading.splits import DataLost
from tidelog_spark.split_rows import read_rows

from tests.support.tiered_cluster import TieredCluster


@pytest.fixture
def cluster(tmp_path: Path) -> TieredCluster:
    built = TieredCluster(tmp_path)
    built.create_topic("t", partition_count=2)
    fill(built, 0, 100)
    fill(built, 0, 40, partition=1)
    return built


def fill(cluster: TieredCluster, start: int, end: int, *, partition: int = 0) -> None:
    """Add a segment, ten records a batch, whose timestamps go up and down within a batch."""
    batches = [
        build_batch(
            [Record(0, 1000 + (i ^ 3), None, b"%d" % i) for i in range(base, base + 10)],
            base_offset=base,
            compression=CompressionType.LZ4,
        )
        for base in range(start, end, 10)
    ]
    cluster.add_segment("t", batches, partition=partition)


def given(cluster: TieredCluster, **more: str) -> dict[str, str]:
    return {**cluster.options, **({} if "asOf" in more else {"subscribe": "t"}), **more}


def rows(options: dict[str, str]) -> pa.Table:
    parsed = parse_options(options)
    found = [batch for split in plan_read(parsed).splits for batch in read_rows(parsed, split)]
    return pa.Table.from_batches(found, arrow_schema(include_headers=False))


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {
            "startingOffsets": '{"t": {"0": 7, "1": 40}}',
            "endingOffsets": '{"t": {"0": 33, "1": 40}}',
        },
        {"startingTimestamp": "1015", "endingTimestamp": "1038"},
        {"startingTimestamp": "1077", "startingOffsetsByTimestampStrategy": "latest"},
        {"endingTimestamp": "1000"},
    ],
)
def test_the_same_rows_come_again_whatever_was_written_since(cluster, limits):
    options = given(cluster, **limits)
    before = rows(options)
    saved = bookmark(options)
    fill(cluster, 100, 200)
    fill(cluster, 40, 90, partition=1)
    cluster.add_partitions("t", 3)
    fill(cluster, 0, 10, partition=2)
    assert rows(given(cluster, asOf=saved)).equals(before)
    assert rows(given(cluster, asOf=saved, minPartitions="9")).equals(before)


def test_a_bookmark_is_a_text_of_offsets(cluster):
    saved = json.loads(bookmark(given(cluster, isolation="read_committed")))
    assert saved["start"] == {"t": {"0": 0, "1": 0}}
    assert saved["end"]["t"] == {"0": 100, "1": 40}
    assert saved["isolation"] == "read_committed"


def test_rows_that_are_gone_are_named(cluster):
    saved = bookmark(given(cluster))
    cluster.set_log_start_offset("t", 0, 30)
    with pytest.raises(DataLost, match=r"offsets \[0, 30\) of t-0 were deleted"):
        rows(given(cluster, asOf=saved))
    assert rows(given(cluster, asOf=saved, failOnDataLoss="false")).num_rows == 110
    # What is gone already cannot be kept in a bookmark.
    late = given(cluster, startingOffsets='{"t": {"0": 5, "1": 0}}')
    with pytest.raises(DataLost, match=r"offsets \[5, 30\) of t-0 were deleted"):
        bookmark(late)


def test_a_topic_of_the_same_name_is_not_the_same_topic(cluster):
    saved = bookmark(given(cluster))
    cluster.delete_topic("t")
    cluster.create_topic("t", partition_count=2)
    fill(cluster, 0, 100)
    fill(cluster, 0, 40, partition=1)
    with pytest.raises(OtherTopic, match="topic 't' was deleted and created again"):
        rows(given(cluster, asOf=saved, failOnDataLoss="false"))


def test_what_a_bookmark_says_is_not_said_again(cluster):
    saved = bookmark(given(cluster))
    more = {"subscribe": "t", "endingOffsets": "latest", "isolation": "read_committed"}
    with pytest.raises(InvalidConfig) as raised:
        parse_options(given(cluster, asOf=saved, **more))
    text = str(raised.value)
    assert "option 'subscribe' is part of 'asOf' already" in text
    assert "option 'endingOffsets' is part of 'asOf' already" in text
    assert "'asOf' has isolation read_uncommitted: leave the other option out" in text
    assert not parse_options(given(cluster, asOf=saved, isolation="read_uncommitted")).keys


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "[]",
        "{}",
        '{"version":2,"isolation":"read_committed","start":{},"end":{}}',
        '{"version":1,"isolation":"serial","start":{},"end":{}}',
        '{"version":1,"isolation":"read_committed","start":{"t":{"0":1}},"end":{}}',
        '{"version":1,"isolation":"read_committed","start":{"t":{"0":5}},"end":{"t":{"0":4}}}',
        '{"version":1,"isolation":"read_committed","start":{"t":{"0":-1}},"end":{"t":{"0":4}}}',
        '{"version":1,"isolation":"read_committed","start":{"t":[1]},"end":{"t":{"0":4}}}',
    ],
)
def test_other_texts_are_no_bookmarks(cluster, text):
    with pytest.raises(
        InvalidConfig, match=r"it must be a value returned by tidelog_spark.bookmark\(\)"
    ):
        parse_options(given(cluster, asOf=text))


def test_a_bookmark_of_nothing_reads_nothing(cluster):
    options = {**cluster.options, "subscribePattern": "none"}
    saved = bookmark(options)
    fill(cluster, 100, 110)
    assert rows(given(cluster, asOf=saved)).num_rows == 0


def test_the_text_of_a_bookmark_is_read_back_as_it_was(cluster):
    saved = bookmark(given(cluster))
    assert bookmarks.Bookmark.from_text(saved).to_text() == saved
