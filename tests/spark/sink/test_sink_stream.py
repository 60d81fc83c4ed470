"""Streams into a topic: a restarted query leaves every row there once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.sink.sinks import make_topic, open_transactions, values
from tests.support.node_process import NodeProcess


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node that the tests of this file share."""
    folder: Path = tmp_path_factory.mktemp("sink-stream")
    with NodeProcess(folder / "node") as node:
        yield node.address


def add_file(folder: Path, name: str, numbers: range) -> None:
    """Add a file, of which a query makes one micro-batch."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.txt").write_text("".join(f"{number}\n" for number in numbers))


def source(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder))


def run(table: DataFrame, checkpoint: Path, **options: str) -> None:
    """Run the query until all that is there has been written."""
    writer = table.writeStream.format("tidelog").options(**options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


@pytest.mark.slow
def test_a_stream_writes_every_row_once_whatever_it_repeats(spark, address, tmp_path):
    """A query that ends between the sink's commit and its own replays the micro-batch."""
    topic = make_topic(address)
    options = {"kafka.bootstrap.servers": address, "topic": topic}
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    add_file(folder, "a", range(10))
    add_file(folder, "b", range(10, 20))
    run(source(spark, folder), checkpoint, **options)
    assert values(address, topic) == list(range(20))
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
    add_file(folder, "c", range(20, 30))
    # Cut into other tasks than the first time.
    run(source(spark, folder).repartition(2), checkpoint, **options)
    assert values(address, topic) == list(range(30))
    assert open_transactions(address) == []


def test_a_micro_batch_that_fails_leaves_nothing_behind(spark, address, tmp_path):
    topic = make_topic(address)
    options = {"kafka.bootstrap.servers": address, "topic": topic}
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    add_file(folder, "a", range(10))
    wrong = (
        source(spark, folder).repartition(2).selectExpr("value", "if(value = 7, 9, 0) partition")
    )
    with pytest.raises(StreamingQueryException, match=f"{topic}-9, and the topic has"):
        run(wrong, checkpoint, **options)
    # Spark tells of the failure while another task may still begin its transaction: the next
    # batch ends that.
    run(source(spark, folder), checkpoint, **options)
    assert values(address, topic) == list(range(10))
    assert open_transactions(address) == []


def test_wrong_options_end_the_query_with_every_problem(spark, address, tmp_path):
    add_file(tmp_path / "in", "a", range(1))
    wrong = {
        "topic": "t",
        "writeId": "w",
        "kafka.compression.type": "lzma",
        "kafka.batch.size": "0",
    }
    with pytest.raises(Exception) as raised:  # noqa: PT011 - of what class, Spark decides
        run(source(spark, tmp_path / "in"), tmp_path / "checkpoint", **wrong)
    text = str(raised.value)
    assert "'kafka.bootstrap.servers' is missing" in text
    assert "must be one of none, gzip, snappy, lz4, zstd" in text
    assert "'kafka.batch.size' is '0'" in text
