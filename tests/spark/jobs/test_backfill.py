"""Tables into topics: every row once, whatever is interrupted and asked for again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame
from tidelog import Admin
from tidelog.errors import InvalidConfig
from tidelog_spark.jobs.backfilling import BackfillRequest, PlanChanged, backfill, check_backfill

from tests.spark.sink.sinks import committed, make_topic, values
from tests.support.command import environment, tidelog
from tests.support.node_process import NodeProcess
from tools.ports import free_port


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node that the tests of this file share."""
    folder: Path = tmp_path_factory.mktemp("backfill")
    with NodeProcess(folder / "node") as node:
        yield node.address


@pytest.fixture
def orders(spark, tmp_path) -> Path:
    """A table of 100 rows in two files."""
    table: DataFrame = spark.range(100, numPartitions=2).selectExpr(
        "id", "id % 10 as customer", "if(id = 3, null, id * 1.5) as `the price`",
        "timestamp_millis(1700000000000 + id) as at",
    )  # fmt: skip
    path = tmp_path / "orders"
    table.write.parquet(str(path))
    return path


def sink(address: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": address, "kafka.compression.type": "zstd"}


@pytest.mark.slow
def test_rows_become_json_under_their_key_in_order_and_only_once(spark, address, orders):
    topic = make_topic(address)
    request = BackfillRequest(
        topic=topic, path=str(orders), key="customer", timestamp="at", order_by=("id desc",)
    )
    report = backfill(spark, request, sink(address), task_count=3)
    assert (report.row_count, report.task_count, report.tasks_found_written) == (100, 3, 0)
    records = committed(address, topic)
    rows = [json.loads(record.value or b"") for record in records]
    assert sorted(row["id"] for row in rows) == list(range(100))
    for row, record in zip(rows, records, strict=True):
        assert list(row) == ["id", "customer", "the price", "at"]
        assert row["the price"] == (None if row["id"] == 3 else row["id"] * 1.5)
        assert record.key == str(row["customer"]).encode()
        assert record.timestamp_ms == 1_700_000_000_000 + row["id"]
    for customer in range(10):
        own = [row["id"] for row in rows if row["customer"] == customer]
        assert own == sorted(own, reverse=True)
    # The table need not even be there for what is done already.
    shutil.rmtree(orders)
    again = backfill(spark, request, sink(address))
    assert (again.row_count, again.tasks_found_written) == (100, 3)
    assert len(committed(address, topic)) == 100


@pytest.mark.slow
def test_an_interrupted_backfill_goes_on_however_the_table_is_read_then(spark, address, orders):
    """A row of some tasks is refused, so those fail; the topic then gets what they lacked."""
    topic = make_topic(address, 1)
    spark.read.parquet(str(orders)).createOrReplaceTempView("orders")
    request = BackfillRequest(topic=topic, table="orders", value="id", partition="0")
    broken = BackfillRequest(
        topic=topic, query="select id from orders", value="id", partition="if(id = 7, 5, 0)"
    )
    with pytest.raises(PythonException, match=f"{topic}-5, and the topic has"):
        backfill(spark, broken, sink(address), backfill_id=f"i-{topic}", task_count=8)
    written = values(address, topic)
    assert len(written) < 100
    with pytest.raises(PlanChanged, match="another table, topic or expressions"):
        backfill(spark, request, sink(address), backfill_id=f"i-{topic}")
    # The same request; the partition that was lacking is there now, and the files are other ones.
    with Admin(address).sync() as admin:
        admin.create_partitions({topic: 6})
    spark.table("orders").repartition(5).createOrReplaceTempView("orders")
    with pytest.raises(PlanChanged, match="was begun with 8 tasks, not 9"):
        backfill(spark, broken, sink(address), backfill_id=f"i-{topic}", task_count=9)
    report = backfill(spark, broken, sink(address), backfill_id=f"i-{topic}")
    assert report.row_count == 100
    assert values(address, topic) == list(range(100))


def test_what_cannot_be_repeated_or_is_not_said_is_refused(spark, address, orders):
    topic = make_topic(address)
    random = BackfillRequest(topic=topic, path=str(orders), value="rand()")
    with pytest.raises(InvalidConfig, match="is not deterministic"):
        backfill(spark, random, sink(address))
    with pytest.raises(InvalidConfig, match="give one of a path, a table and a query; order_by"):
        backfill(spark, BackfillRequest(topic=topic, order_by=("id",)), sink(address))
    wrong = {**sink(address), "kafka.compression.type": "zip"}
    with pytest.raises(InvalidConfig, match=r"kafka\.compression\.type"):
        backfill(spark, BackfillRequest(topic=topic, path=str(orders)), wrong)
    assert committed(address, topic) == []


@pytest.mark.parametrize(
    ("given", "sink", "problem"),
    [
        ({}, {}, "give one of a path, a table and a query"),
        ({"path": "p", "order_by": ("x",)}, {}, "give a key too"),
        ({"path": "p"}, {"kafka.acks": "1"}, "option 'kafka.acks' is '1'"),
    ],
    ids=["source", "order", "sink"],
)
def test_wrong_options_are_found_before_spark_starts(given, sink, problem):
    with pytest.raises(InvalidConfig, match=problem):
        check_backfill(
            BackfillRequest(topic="t", **given), {"kafka.bootstrap.servers": "h:1", **sink}
        )


@pytest.mark.slow
def test_the_command_says_that_no_node_answers_before_spark_starts(tmp_path):
    no_spark = {**environment(), "SPARK_HOME": str(tmp_path)}
    address = f"127.0.0.1:{free_port()}"
    told = tidelog(
        *("job", "backfill", "t", "--path", "p", "-b", address), environ=no_spark, status=1
    )
    assert f"no node answers at {address}: connection refused" in told.errors
