"""The tail that is not tiered yet comes from real nodes, in the same read as the tier."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tidelog import Admin, Producer, SyncProducer
from tidelog.arrow.columns import arrow_schema
from tidelog.errors import ConnectionFailed
from tidelog_spark import nodes
from tidelog_spark.options.read_options import ReadOptions, parse_options
from tidelog_spark.planning.table_planner import bookmark, plan_read
from tidelog_spark.reading.splits import DataLost, Split
from tidelog_spark.split_rows import of_attempt, read_rows

from tests.spark.micro_batches import MicroBatches
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually

DEADLINE_SECONDS = 120.0
SEGMENT_BYTES = 20_000
VALUE_BYTES = 400


class GivenUp(Exception):
    """Ends a transaction without its commit."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder: Path = tmp_path_factory.mktemp("tail")
    process = NodeProcess(
        folder / "node",
        metadata_store=f"sqlite://{folder}/metadata.db",
        object_store=f"file://{folder}/objects",
        config={"remote.task.interval.ms": "100"},
    )
    with process:
        yield process


@pytest.fixture
def topic(node: NodeProcess, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions whose segments are small and leave the node when tiered."""
    name = re.sub(r"[^a-z0-9_]", "-", request.node.name[-70:])
    with Admin(node.address).sync() as admin:
        admin.create_topic(
            name,
            partition_count=2,
            configs={"segment.bytes": str(SEGMENT_BYTES), "local.retention.bytes": "1"},
        )
    return name


@pytest.fixture
def producer(node: NodeProcess) -> Iterator[SyncProducer]:
    # Small batches, so that segments are cut often and fetches begin inside of batches.
    with Producer(node.address, batch_size_bytes=4000, compression="lz4").sync() as made:
        yield made


def options(node: NodeProcess, topic: str, **given: str) -> dict[str, str]:
    assert node.metadata_store is not None
    assert node.object_store is not None
    named = {} if "asOf" in given else {"subscribe": topic}
    return {
        "metadata": node.metadata_store.replace("sqlite://", "sqlite:///", 1).replace(
            "////", "///"
        ),
        "objects": node.object_store,
        "kafka.bootstrap.servers": node.address,
        "kafka.request.timeout.ms": "10000",
        **named,
        **given,
    }


def tier_only(given: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if not name.startswith("kafka.")}


def send(producer: SyncProducer, topic: str, start: int, end: int, partition: int = 0) -> None:
    for number in range(start, end):
        producer.send(topic, value_of(number), key=b"k%d" % (number % 50), partition=partition)
    producer.flush()


def value_of(number: int) -> bytes:
    # Little of it is compressed away.
    return (b"%d-" % number) + bytes((number * 31 + i * i * 7) % 251 for i in range(VALUE_BYTES))


def rows(given: dict[str, str], splits: tuple[Split, ...] | None = None) -> pa.Table:
    parsed = parse_options(given)
    found = [
        batch
        for split in (plan_read(parsed).splits if splits is None else splits)
        for batch in read_rows(parsed, split)
    ]
    return pa.Table.from_batches(found, arrow_schema(include_headers=parsed.include_headers))


def offsets(given: dict[str, str]) -> list[int]:
    found: list[int] = rows(given)["offset"].to_pylist()
    return found


def tiered_end(given: dict[str, str]) -> int:
    parsed: ReadOptions = parse_options(tier_only(given))
    ends = [part.end_offset for split in plan_read(parsed).splits for part in split.slices]
    return max(ends, default=0)


def test_tier_and_tail_make_one_log(node, topic, producer):
    given = options(node, topic)
    send(producer, topic, 0, 400)
    eventually(lambda: tiered_end(given) > 100, "nothing is tiered")
    splits = plan_read(parse_options(given)).splits
    assert [bool(split.slices) for split in splits] == [True, False]
    found = rows(given)
    assert found["offset"].to_pylist() == list(range(400))
    assert found["value"].to_pylist() == [value_of(number) for number in range(400)]
    assert found["key"].to_pylist() == [b"k%d" % (number % 50) for number in range(400)]
    in_tier = offsets(tier_only(given))
    assert in_tier == list(range(len(in_tier)))
    assert len(in_tier) < 400
    limits = json.dumps({topic: {"0": 390, "1": 0}})
    assert offsets({**given, "startingOffsets": limits}) == list(range(390, 400))
    keyed = rows({**given, "keys": '["k7", "k49", "absent"]'})
    assert keyed["offset"].to_pylist() == [i for i in range(400) if i % 50 in (7, 49)]


def test_segments_tiered_and_evicted_after_planning_are_read_once(node, topic, producer):
    given = options(node, topic)
    send(producer, topic, 0, 100)
    splits = plan_read(parse_options(given)).splits
    before = tiered_end(given)
    assert before < 100
    send(producer, topic, 100, 400)
    local = node.data_dir / f"{topic}-0"
    eventually(
        lambda: tiered_end(given) > 100 and min(int(p.stem) for p in local.glob("*.log")) > 100,
        "what was the tail is not evicted",
    )
    assert rows(given, splits)["offset"].to_pylist() == list(range(100))
    assert offsets(given) == list(range(400))


def test_a_stream_reads_each_offset_once_while_segments_go_to_the_tier(node, topic, producer):
    stream = MicroBatches(options(node, topic, startingOffsets="earliest"))
    taken: dict[int, list[int]] = {0: [], 1: []}
    try:
        for start in range(0, 600, 100):
            for partition in range(2):
                send(producer, topic, start, start + 100, partition)
            assert stream.plan()
            if start % 200:
                stream.restart()  # The driver crashed after it had written the end down.
            for (_, partition), found in stream.read().items():
                taken[partition] += [offset for offset, _ in found]
    finally:
        stream.stop()
    assert taken == {0: list(range(600)), 1: list(range(600))}


def test_a_log_that_was_cut_is_a_loss_once_it_does_not_come_back(
    node, topic, producer, monkeypatch
):
    """An unclean election may cut it; a new leader that is still behind must not seem to."""
    now = 100.0
    monkeypatch.setattr("tidelog_spark.streaming.stream_reader.monotonic", lambda: now)
    send(producer, topic, 0, 20)
    stream = MicroBatches(options(node, topic))
    try:
        stream.checkpoint.append(json.dumps({topic: {"0": 50, "1": 0}}))
        assert stream.plan() is True, "the topic's id is news"
        assert stream.read() == {}
        now += 9
        assert stream.plan() is False
        now += 2
        assert stream.plan() is True
        with pytest.raises(DataLost, match=r"the end of .*-0 went back from 50 to 20"):
            stream.read()
        stream.restart(failOnDataLoss="false")
        assert stream.read() == {}
        send(producer, topic, 20, 25)
        assert list((stream.next_offsets() or {}).values()) == [[20, 21, 22, 23, 24]]
    finally:
        stream.stop()


def test_a_stream_that_would_begin_after_its_log_is_refused(node, topic, producer):
    """It would wait there, and pass over what is written before."""
    send(producer, topic, 0, 10)
    start = json.dumps({topic: {"0": 10, "1": 5}})
    refused = MicroBatches(options(node, topic, startingOffsets=start))
    with pytest.raises(DataLost, match=f"would start at 5 of {topic}-1, which ends at 0"):
        refused.plan()
    refused.stop()
    stream = MicroBatches(options(node, topic, startingOffsets=start, failOnDataLoss="false"))
    assert stream.next_offsets() == {}
    send(producer, topic, 10, 12, partition=1)
    assert stream.next_offsets() == {f"{topic}-1": [0, 1]}
    stream.stop()


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_stream_may_begin_after_a_transaction_that_is_open(node, topic, producer, loss):
    """Such a start is after the last stable offset, and not after the end of the log."""
    given = options(
        node,
        topic,
        isolation="read_committed",
        startingOffsets=json.dumps({topic: {"0": 3, "1": 0}}),
        failOnDataLoss=loss,
    )
    with Producer(node.address, transactional_id=f"o-{topic}").sync() as sender:
        with sender.transaction():
            sender.send(topic, b"0", partition=0).result()
            send(producer, topic, 1, 4)
            stream = MicroBatches(given)
            assert stream.next_offsets() == {}
        assert stream.next_offsets() == {f"{topic}-0": [3]}
        stream.stop()


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_stream_takes_transactions_as_its_isolation_says(node, topic, isolation):
    stream = MicroBatches(options(node, topic, isolation=isolation, startingOffsets="earliest"))
    found: list[int] = []
    try:
        with Producer(node.address, transactional_id=f"s-{topic}").sync() as sender:
            for number in range(6):
                with suppress(GivenUp), sender.transaction():
                    sender.send(topic, b"%d" % number, partition=0).result()
                    found += (stream.next_offsets() or {}).get(f"{topic}-0", [])
                    if number % 2:
                        raise GivenUp
        found += (stream.next_offsets() or {}).get(f"{topic}-0", [])
    finally:
        stream.stop()
    # Each record has a marker after it.
    assert found == ([0, 4, 8] if isolation == "read_committed" else [0, 2, 4, 6, 8, 10])


@pytest.mark.parametrize("fetch_size_bytes", [nodes.FETCH_SIZE_BYTES_MAX, 1])
def test_read_committed_ends_at_the_last_stable_offset_and_leaves_out_what_was_aborted(
    node, topic, monkeypatch, fetch_size_bytes
):
    """Also where each batch comes in an answer of its own, apart from its marker."""
    monkeypatch.setattr(nodes, "FETCH_SIZE_BYTES_MAX", fetch_size_bytes)
    with Producer(node.address, transactional_id=f"a-{topic}").sync() as first:
        with first.transaction():
            first.send(topic, b"0", partition=0).result()  # offset 0, its marker 1
        with suppress(GivenUp), first.transaction():
            first.send(topic, b"2", partition=0).result()
            raise GivenUp
        with first.transaction():
            first.send(topic, b"4", partition=0).result()
    with Producer(node.address, transactional_id=f"b-{topic}").sync() as second:
        transaction = second.transaction()
        transaction.__enter__()
        second.send(topic, b"6", partition=0).result()
        with Producer(node.address).sync() as plain:
            plain.send(topic, b"7", partition=0).result()
        given = options(node, topic)
        committed = {**given, "isolation": "read_committed"}
        assert offsets(given) == [0, 2, 4, 6, 7]
        assert offsets(committed) == [0, 4]
        saved = bookmark(committed)
        transaction.__exit__(None, None, None)
    assert offsets({**given, "kafka.isolation.level": "read_committed"}) == [0, 4, 6, 7]
    assert offsets(options(node, topic, asOf=saved)) == [0, 4]


def test_times_are_found_in_tier_and_tail(node, topic, producer):
    given = options(node, topic, assign=json.dumps({topic: [0]}))
    del given["subscribe"]
    for number in range(300):
        producer.send(topic, value_of(number), partition=0, timestamp_ms=1000 + number)
    producer.flush()
    eventually(lambda: tiered_end(given) > 50, "nothing is tiered")
    for start, end in ((1010, 1020), (1290, 1295), (1020, 1299), (1295, 9000)):
        limits = {"startingTimestamp": str(start), "endingTimestamp": str(end)}
        assert offsets({**given, **limits}) == list(range(start - 1000, min(end - 1000, 300)))


def test_a_bookmark_reads_the_same_rows_again(node, topic, producer):
    given = options(node, topic)
    send(producer, topic, 0, 150)
    saved = bookmark(given)
    before = rows(given)
    send(producer, topic, 150, 400)
    eventually(lambda: tiered_end(given) > 150, "nothing is tiered")
    assert rows(options(node, topic, asOf=saved)).equals(before)
    # By now the tier has it all, and no node is needed.
    assert rows(tier_only(options(node, topic, asOf=saved))).equals(before)


@pytest.mark.parametrize("is_created_again", [False, True])
def test_a_topic_that_is_deleted_after_planning_is_a_loss(node, topic, producer, is_created_again):
    send(producer, topic, 0, 20)
    splits = plan_read(parse_options(options(node, topic))).splits
    # A node that does not know the topic may come to know it: that is waited for.
    given = options(node, topic, **{"kafka.request.timeout.ms": "2000"})
    with Admin(node.address).sync() as admin:
        admin.delete_topics([topic])
        if is_created_again:
            admin.create_topic(topic, partition_count=2)
    if is_created_again:
        send(producer, topic, 0, 20)
    with pytest.raises(DataLost, match=r"offsets \[0, 20\) of .* are gone"):
        rows(given, splits)
    assert rows({**given, "failOnDataLoss": "false"}, splits).num_rows == 0


def test_a_task_waits_for_a_leader_that_was_killed_and_comes_back(tmp_path):
    node = NodeProcess(
        tmp_path / "node",
        metadata_store=f"sqlite://{tmp_path}/metadata.db",
        object_store=f"file://{tmp_path}/objects",
    ).start()
    try:
        with Admin(node.address).sync() as admin:
            admin.create_topic("t", partition_count=1)
        with Producer(node.address).sync() as sender:
            send(sender, "t", 0, 100)
        given = parse_options(options(node, "t", **{"kafka.request.timeout.ms": "60000"}))
        assert given.nodes is not None
        # A busy machine takes longer to start a node than a task waits.
        given = replace(given, nodes=replace(given.nodes, first_node_timeout_ms=60_000))
        (split,) = plan_read(given).splits
        node.kill()
        with ThreadPoolExecutor(1) as beside:
            found = beside.submit(lambda: pa.Table.from_batches(read_rows(given, split)))
            node.start()
            assert found.result()["offset"].to_pylist() == list(range(100))
    finally:
        if node.process is not None:
            node.stop()


def test_nodes_that_do_not_answer_are_named(node, topic):
    given = options(node, topic, **{"kafka.bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(ConnectionFailed, match=r"no node answers at 127\.0\.0\.1:1"):
        rows({**given, "kafka.request.timeout.ms": "500"})


def test_a_task_that_spark_repeats_waits_less_long_for_nodes(node, topic):
    given = parse_options(options(node, topic))
    first, second = (of_attempt(given, attempt).nodes for attempt in range(2))
    assert first is not None
    assert second is not None
    assert second.first_node_timeout_ms < first.first_node_timeout_ms
    gone = replace(
        second,
        bootstrap_servers="127.0.0.1:1",
        first_node_timeout_ms=200,
        request_timeout_ms=3_600_000,
    )
    with pytest.raises(ConnectionFailed, match="no node answers"):
        plan_read(replace(given, nodes=gone))


def test_spark_reads_tier_and_tail_as_a_table_and_as_a_stream(
    spark, node, topic, producer, tmp_path
):
    given = options(node, topic, startingOffsets="earliest")
    send(producer, topic, 0, 200)
    eventually(lambda: tiered_end(given) > 50, "nothing is tiered")
    table = spark.read.format("tidelog").options(**given).load()
    assert sorted(row.offset for row in table.select("offset").collect()) == list(range(200))
    query = (
        spark.readStream.format("tidelog")
        .options(**given)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "table"))
    )
    assert query.awaitTermination(120)
    written = spark.read.parquet(str(tmp_path / "table")).select("offset").collect()
    assert sorted(row.offset for row in written) == list(range(200))
