"""Tables become records, and come back as they were."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tidelog import Consumer, Producer, scan_arrow
from tidelog.arrow.send_columns import columns_to_send
from tidelog.errors import InvalidRequest, InvalidRow, MessageTooLarge
from tidelog.producing.arrow_batches import BatchBuilder
from tidelog.producing.batch_options import BatchOptions
from tidelog.reused_memory import thread_memory
from tidelog_core.records.batch import decode_records

from tests.support.key_partitions import partition_for_key
from tests.support.node_process import NodeProcess

WHEN = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_000, datetime.UTC)


def test_rows_become_records_and_come_back(
    node: NodeProcess, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(3)
    rows = [
        {
            "key": b"k%d" % n if n % 3 else None,
            "value": b"v%d" % n if n % 5 else None,
            "headers": [{"key": "n", "value": b"%d" % n}] if n % 2 else None,
            "timestamp": WHEN,
        }
        for n in range(1000)
    ]
    schema = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.large_binary()),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            ("timestamp", pa.timestamp("ns", tz="Europe/Vienna")),
        ]
    )
    table = pa.Table.from_pylist(rows, schema)
    with Producer(node.address, compression="lz4").sync() as producer:
        assert producer.send_table(topic, table) == 1000
    read = scan_arrow(topic, bootstrap_servers=node.address, include_headers=True).read_all()
    back = read.select(schema.names).cast(schema).to_pylist()
    assert sorted(map(str, back)) == sorted(map(str, table.to_pylist()))
    for row in read.to_pylist():
        if row["key"] is not None:
            assert row["partition"] == partition_for_key(row["key"], 3)


@pytest.mark.parametrize("library", [pd, pl])
def test_a_data_frame_is_a_table(
    node: NodeProcess, new_topic: Callable[..., str], library: Any
) -> None:
    topic = new_topic(3)
    rows = {"id": ["ä", None, "c"], "value": [b"1", b"2", None], "other": [1, 2, 3]}
    with Producer(node.address).sync() as producer:
        assert producer.send_table(topic, library.DataFrame(rows), key="id") == 3
    read = scan_arrow(topic, bootstrap_servers=node.address).read_all().to_pylist()
    found = {(row["key"], row["value"]) for row in read}
    assert found == {("ä".encode(), b"1"), (None, b"2"), (b"c", None)}


async def test_what_is_no_table_is_refused(node: NodeProcess, topic: str) -> None:
    async with Producer(node.address) as producer:
        for wrong in ([{"value": b"v"}], {"value": [b"v"]}, None):
            with pytest.raises(InvalidRequest, match=r"^table must be a Table, RecordBatch or"):
                await producer.send_table(topic, wrong)  # type: ignore[arg-type]


def test_columns_are_chosen_by_name(node: NodeProcess, topic: str) -> None:
    table = pa.table({"id": ["a", "b"], "body": ["x", "y"], "value": [1, 2], "key": [3, 4]})
    with Producer(node.address).sync() as producer:
        producer.send(topic, b"first")
        for each in (table, table.to_batches()[0], table.to_reader()):
            assert producer.send_table(topic, each, key="id", value="body") == 2
    read = scan_arrow(topic, bootstrap_servers=node.address).read_all()
    assert read.column("key").to_pylist() == [None, *[b"a", b"b"] * 3]
    assert read.column("value").to_pylist() == [b"first", *[b"x", b"y"] * 3]


def test_a_table_that_was_read_is_sent_to_the_same_partitions(
    node: NodeProcess, new_topic: Callable[..., str]
) -> None:
    first, second = new_topic(4), new_topic(4)
    with Producer(node.address).sync() as producer:
        for n in range(8):
            producer.send(first, b"%d" % n, partition=n % 4)
        producer.flush()
        table = scan_arrow(first, bootstrap_servers=node.address).read_all()
        producer.send_table(second, table)
    copied = scan_arrow(second, bootstrap_servers=node.address).read_all()
    columns = ["partition", "offset", "value", "timestamp"]
    assert copied.sort_by("value").select(columns) == table.sort_by("value").select(columns)


def test_a_transaction_sends_all_rows_or_none(node: NodeProcess, topic: str, name: str) -> None:
    def sent(table: pa.Table) -> None:
        with (
            Producer(node.address, transactional_id=name).sync() as producer,
            producer.transaction(),
        ):
            producer.send_table(topic, table)

    too_far = pa.table({"value": ["a", "b"], "partition": [0, 1]})
    with pytest.raises(InvalidRow, match="the topic has partitions 0 to 0"):
        sent(too_far)
    sent(pa.table({"value": ["c", "d"]}))
    options = {"bootstrap_servers": node.address, "isolation_level": "read_committed"}
    read = scan_arrow(topic, **options).read_all()
    assert read.column("value").to_pylist() == [b"c", b"d"]


async def test_a_consumer_commits_what_it_polled_as_arrow(
    node: NodeProcess, topic: str, name: str
) -> None:
    async with Producer(node.address) as producer:
        assert await producer.send_table(topic, pa.table({"value": ["a", "b", "c"]})) == 3

    async def polled(max_bytes: int) -> list[bytes]:
        async with Consumer(
            node.address, topics=[topic], group_id=name, auto_offset_reset="earliest"
        ) as consumer:
            found: list[pa.RecordBatch] = []
            while not found:
                found = await consumer.poll_arrow(max_bytes=max_bytes, timeout_ms=60_000)
            return [value for one in found for value in one.column("value").to_pylist()]

    assert await polled(1) == [b"a", b"b", b"c"]
    async with Producer(node.address) as producer:
        await producer.send_table(topic, pa.table({"value": ["d"]}))
    assert await polled(1) == [b"d"]


async def test_memory_is_given_back_after_small_answers_too(
    node: NodeProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.wire.frame_buffers.KEPT_S", 0.2)
    async with Producer(node.address, compression="lz4") as producer:
        await producer.send_table(topic, pa.table({"value": ["a", "b"]}))
    thread_memory().clear()
    async with Consumer(node.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        while not (found := await consumer.poll_arrow(timeout_ms=60_000)):
            pass
        assert [value.as_py() for value in found[0].column("value")] == [b"a", b"b"]
        assert thread_memory().kept_bytes, "it was decoded now"
        async with asyncio.timeout(60):
            while thread_memory().kept_bytes:
                assert not await consumer.poll_arrow(timeout_ms=10)


def test_a_row_that_is_too_large_is_an_error(node: NodeProcess, topic: str) -> None:
    table = pa.table({"value": [b"x" * 2_000_000]})
    with (
        Producer(node.address, request_size_bytes_max=1_000_000).sync() as producer,
        pytest.raises(MessageTooLarge),
    ):
        producer.send_table(topic, table)


@pytest.mark.parametrize(
    ("table", "given", "problem"),
    [
        (pa.table({"id": [1]}), {}, "there is no column 'value'"),
        (pa.table({"value": ["x"]}), {"key": "id"}, "there is no column 'id'"),
        (pa.table({"value": [1]}), {}, "column 'value' is int64; a record's value is binary or"),
        (pa.table({"value": ["x"], "key": [1.5]}), {}, "column 'key' is double"),
        (pa.table({"value": ["x"], "timestamp": [1]}), {}, "column 'timestamp' is int64"),
        (pa.table({"value": ["x"], "partition": ["0"]}), {}, "column 'partition' is string"),
        (pa.table({"value": ["x"], "headers": [["a"]]}), {}, "column 'headers' is list"),
        (pa.table([["x"], ["y"]], ["value", "value"]), {}, "there are several columns 'value'"),
    ],
    ids=["no value", "no key", "value", "key", "timestamp", "partition", "headers", "twice"],
)
def test_wrong_columns_are_named(table: pa.Table, given: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        columns_to_send(table, **{"key": None, "value": "value", **given})


@pytest.mark.parametrize(
    "column",
    [
        {"partition": pa.array([2**40])},
        {"timestamp": pa.array([2**62], pa.timestamp("s"))},
        {
            "headers": pa.array(
                [[{"key": b"\xff", "value": b""}]],
                pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())])),
            )
        },
    ],
    ids=["partition", "timestamp", "headers"],
)
def test_a_value_that_a_record_cannot_have_is_an_error_of_its_column(
    column: dict[str, pa.Array],
) -> None:
    table = pa.table({"value": ["x"], **column})
    with pytest.raises(InvalidRow, match=f"a row of column '{next(iter(column))}'"):
        list(columns_to_send(table, key=None, value="value"))


def test_times_lose_what_records_do_not_have_and_rows_come_in_parts() -> None:
    times = pa.array([1_500] * 150_000, pa.timestamp("ns"))
    table = pa.table({"value": pa.array(["x"] * 150_000), "timestamp": times})
    found = list(columns_to_send(table, key=None, value="value"))
    assert [batch.num_rows for batch in found] == [65_536, 65_536, 18_928]
    assert found[0].column("timestamp")[0].value == 1


def test_slices_and_large_lists_have_the_headers_of_their_rows() -> None:
    pair = pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])
    some = [[{"key": f"k{n}", "value": b"%d" % n}] * (n % 3) or None for n in range(9)]
    column = pa.array([None, *some], pa.large_list(pair)).slice(1)
    table = pa.table({"value": [b"%d" % n for n in range(9)], "headers": column}).slice(2, 5)
    builder = BatchBuilder(BatchOptions(topic="t"), lambda _: 1, clock_ms=lambda: 5)
    records = []
    for _, encoded in builder.build(columns_to_send(table, key=None, value="value")):
        records += decode_records(encoded.batch())
    assert [record.value for record in records] == [b"%d" % n for n in range(2, 7)]
    expected = [((f"k{n}", b"%d" % n),) * (n % 3) for n in range(2, 7)]
    assert [record.headers for record in records] == expected
