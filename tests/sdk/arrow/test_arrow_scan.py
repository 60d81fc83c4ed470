"""Whole topics as Arrow: from a node, and from the bucket alone."""

from __future__ import annotations

import datetime
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from tidelog import Consumer, Producer, scan_arrow
from tidelog.errors import (
    InvalidConfig,
    InvalidRequest,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)

from tests.sdk.conftest import make_topic
from tests.support.diskless_topic import numbered
from tests.support.node_process import NodeProcess
from tests.support.tiered_cluster import TieredCluster


@pytest.fixture(scope="module")
def topic(node: NodeProcess) -> str:
    """Values 0 to 99 in partition 0, a second apart, and 0 to 9 in partition 2; 1 has none."""
    name = make_topic(node, "scanned", 3)
    with Producer(node.address, batch_size_bytes=500).sync() as producer:
        for partition, count in ((0, 100), (2, 10)):
            for n in range(count):
                producer.send(
                    name,
                    b"%d" % n,
                    partition=partition,
                    timestamp_ms=n * 1000,
                    headers=[("n", b"%d" % n)],
                )
    return name


def read(reader: pa.RecordBatchReader) -> dict[int, list[int]]:
    """Return the values of each partition, whose offsets must rise."""
    found: dict[int, list[int]] = {}
    last: dict[int, int] = {}
    for batch in reader:
        for row in batch.to_pylist():
            assert last.get(row["partition"], -1) < row["offset"]
            last[row["partition"]] = row["offset"]
            found.setdefault(row["partition"], []).append(int(row["value"].removeprefix(b"v")))
    return found


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("earliest", "latest", {0: range(100), 2: range(10)}),
        (95, "latest", {0: range(95, 100)}),
        (3, 5, {0: range(3, 5), 2: range(3, 5)}),
        ({0: 98, 1: 0, 2: 9}, 1000, {0: range(98, 100), 2: range(9, 10)}),
        (datetime.datetime.fromtimestamp(97.5, datetime.UTC), "latest", {0: range(98, 100)}),
        (
            datetime.datetime.fromtimestamp(8, datetime.UTC),
            datetime.datetime.fromtimestamp(10, datetime.UTC),
            {0: range(8, 10), 2: range(8, 10)},
        ),
        ("latest", "latest", {}),
        (7, 7, {}),
    ],
)
def test_a_topic_is_read_between_two_places(
    node: NodeProcess, topic: str, start: object, end: object, expected: dict[int, range]
) -> None:
    reader = scan_arrow(topic, start, end, bootstrap_servers=node.address)  # type: ignore[arg-type]
    assert read(reader) == {partition: list(values) for partition, values in expected.items()}


def test_a_scan_ends_where_the_log_ended_when_it_began(node: NodeProcess) -> None:
    topic = make_topic(node, "growing")
    with Producer(node.address).sync() as producer:
        producer.send(topic, b"0")
        producer.flush()
        reader = scan_arrow(topic, bootstrap_servers=node.address)
        producer.send(topic, b"1")
        producer.flush()
        first = reader.read_next_batch()  # Reading begins.
        producer.send(topic, b"2")
        producer.flush()
        values = first.column("value").to_pylist()
        for batch in reader:
            values += batch.column("value").to_pylist()
    assert values == [b"0", b"1"]


def test_headers_are_a_column_if_they_are_asked_for(node: NodeProcess, topic: str) -> None:
    reader = scan_arrow(topic, 99, bootstrap_servers=node.address, include_headers=True)
    table = reader.read_all()
    assert table.column("headers").to_pylist() == [[{"key": "n", "value": b"99"}]]
    assert table.schema == reader.schema


def test_a_reader_that_is_given_up_ends_its_thread(node: NodeProcess, topic: str) -> None:
    reader = scan_arrow(topic, bootstrap_servers=node.address)
    reader.read_next_batch()
    reader.close()
    del reader
    assert [thread for thread in threading.enumerate() if thread.name == "tidelog-scan"] == []


INTERRUPTED = """
import asyncio, signal, threading
from tidelog import arrow_scan

begun, handled = threading.Event(), threading.Event()

def on_signal(number, frame):
    handled.set()
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, on_signal)

async def endless():
    try:
        begun.set()
        await asyncio.Event().wait()
        yield []
    finally:
        await asyncio.sleep(0.01)  # A consumer takes a while to leave.
        print("left")

def interrupt():
    begun.wait()
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    while not handled.wait(1):  # It came just before the main thread began to wait: Python slept on.
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    next(arrow_scan._in_thread(endless()))
except KeyboardInterrupt:
    print("interrupted")
print([each.name for each in threading.enumerate() if each.name.startswith("tidelog")])
"""


@pytest.mark.slow  # The moment of a signal is not ours to choose.
def test_an_interrupt_ends_the_reading_and_its_thread() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout.split("\n"), ended.stderr) == (
        ["left", "interrupted", "[]", ""],
        "",
    )


def test_the_bucket_is_read_without_a_node(tmp_path: Path) -> None:
    cluster = TieredCluster(tmp_path)
    cluster.create_topic("t", partition_count=2)
    cluster.add_segment("t", [numbered(0, 10), numbered(10, 20, compression=4)])
    assert read(scan_arrow("t", **cluster.options)) == {0: list(range(20))}
    assert read(scan_arrow("t", 5, 15, **cluster.options)) == {0: list(range(5, 15))}
    assert read(scan_arrow("t", {0: 18, 1: 0}, **cluster.options)) == {0: [18, 19]}
    assert read(scan_arrow("t", 20, **cluster.options)) == {}
    with pytest.raises(UnknownTopicOrPartition, match="nowhere"):
        scan_arrow("nowhere", **cluster.options).read_all()
    with pytest.raises(InvalidRequest, match="not at a time"):
        scan_arrow("t", datetime.datetime.now(datetime.UTC), **cluster.options)


def test_errors_come_with_the_reading(node: NodeProcess, topic: str) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="nowhere"):
        scan_arrow("nowhere", bootstrap_servers=node.address).read_all()
    with pytest.raises(InvalidRequest, match="partition 1 has none"):
        scan_arrow(topic, {0: 1, 2: 1}, bootstrap_servers=node.address).read_all()
    with pytest.raises(InvalidRequest, match="partition 3 does not exist"):
        scan_arrow(topic, dict.fromkeys(range(4), 0), bootstrap_servers=node.address).read_all()


def test_a_start_that_is_deleted_is_an_error(
    node: NodeProcess, new_topic: Callable[..., str]
) -> None:
    from tidelog import Admin

    topic = new_topic()
    with Producer(node.address).sync() as producer:
        for n in range(10):
            producer.send(topic, b"%d" % n)
    with Admin(node.address).sync() as admin:
        admin.delete_records({(topic, 0): 5})
    with pytest.raises(OffsetOutOfRange):
        scan_arrow(topic, 2, bootstrap_servers=node.address).read_all()
    assert read(scan_arrow(topic, bootstrap_servers=node.address)) == {0: list(range(5, 10))}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "bootstrap_servers, or both"),
        ({"metadata": "sqlite://x"}, "bootstrap_servers, or both"),
        ({"bootstrap_servers": "a:1", "objects": "file://x"}, "bootstrap_servers, or both"),
        ({"bootstrap_servers": "a:x"}, "a:x"),
        ({"metadata": "sqlite://x", "objects": "file://x", "client_id": "c"}, "client_id is for"),
    ],
)
def test_wrong_options_are_named_at_once(given: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidConfig, match=problem):
        scan_arrow("t", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["first", -1, True, 1.5, {0: -1}, None])
def test_wrong_places_are_named_at_once(place: object) -> None:
    with pytest.raises(InvalidRequest, match="a scan starts and ends at"):
        scan_arrow("t", place, bootstrap_servers="localhost:9092")  # type: ignore[arg-type]


def test_options_of_a_scan_are_checked_before_it_reads() -> None:
    where = {"bootstrap_servers": "localhost:1"}
    with pytest.raises(InvalidConfig, match="isolation_level must be one of"):
        scan_arrow("t", isolation_level="committed", **where)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="request_timeout_ms must be above zero"):
        scan_arrow("t", request_timeout_ms=0, **where)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"decode must be a SchemaDecoder, .* is 'avro'$"):
        scan_arrow("t", decode="avro", **where)  # type: ignore[arg-type]


async def test_a_poll_decodes_by_a_decoder_only(node: NodeProcess, topic: str) -> None:
    async with Consumer(node.address) as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(InvalidRequest, match="decode must be a SchemaDecoder"):
            await consumer.poll_arrow(decode="avro")  # type: ignore[arg-type]
