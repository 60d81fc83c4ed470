"""``docs/read_segments.py`` against what the project writes: a page and a script, no shared code."""

from __future__ import annotations

import ast
import base64
import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tidelog_core.log.values import AppendOrigin
from tidelog_core.records.batch import Record, build_batch
from tidelog_core.records.codecs import CompressionType, compress
from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
)
from tidelog_core.tier.index_build import RewriteFacts
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.integrity import replaced_segment
from tidelog_node.replicas.replica import Replica

from tests.support.docs_reader import SCRIPT, only, read_all, reader, run
from tests.support.node_process import NodeProcess
from tests.support.tier_node import running_node
from tests.support.tier_segments import put_segment

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS_PER_CODEC = 60
SEGMENT_BYTES = 4000
DEADLINE_SECONDS = 120.0
NOW_MS = 1_700_000_000_000

Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def test_the_reader_is_short_and_imports_nothing_of_the_project() -> None:
    source = SCRIPT.read_text()
    assert len(source.splitlines()) <= 340
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or ".").partition(".")[0])
    assert names <= {
        "base64", "boto3", "collections", "contextlib", "cramjam", "crc32c", "gzip", "hashlib",
        "json", "os", "pathlib", "re", "struct", "sys", "uuid",
    }  # fmt: skip


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    """A bucket that a node has tiered records of every codec to, and what a consumer read."""
    folder = tmp_path_factory.mktemp("bucket")
    config = {"remote.task.interval.ms": "50"}
    store = f"file://{folder}/objects"
    with NodeProcess(folder / "node", object_store=store, config=config) as node:
        admin = AdminClient({"bootstrap.servers": node.address})
        configs = {"segment.bytes": str(SEGMENT_BYTES)}
        admin.create_topics([NewTopic("t", 1, 1, config=configs)])["t"].result(60)
        produce(node.address)
        rows = consume(node.address, RECORDS_PER_CODEC * len(CODECS))
        # One record more, nearly as large as a segment, seals what is there and stays behind itself.
        late = Producer({"bootstrap.servers": node.address})
        late.produce("t", bytes(SEGMENT_BYTES - 150))
        assert late.flush(60) == 0
        wait_tiered(folder / "objects", len(rows), node)
    return folder / "objects", rows


def produce(address: str) -> None:
    for codec in CODECS:
        producer = Producer(
            {"bootstrap.servers": address, "compression.type": codec, "batch.num.messages": 7}
        )
        for number in range(RECORDS_PER_CODEC):
            producer.produce(
                "t",
                key=None if number % 3 == 0 else b"key %d" % number,
                value=None if number % 7 == 0 else codec.encode() * (number + 1),
                headers=[("a", b"1"), ("é", None), ("a", b"")] if number % 2 else None,
                timestamp=NOW_MS - number,
            )
        assert producer.flush(60) == 0


def consume(address: str, count: int) -> list[Row]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "check.crcs": True})
    consumer.assign([TopicPartition("t", 0, 0)])
    rows: list[Row] = []
    while len(rows) < count:
        for message in consumer.consume(count, timeout=60):
            assert message.error() is None, message.error()
            offset, timestamp = message.offset(), message.timestamp()[1]
            headers = [(name, value) for name, value in message.headers() or []]
            assert offset is not None
            rows.append((offset, timestamp, message.key(), message.value(), headers))
    consumer.close()
    return rows


def wait_tiered(objects: Path, end_offset: int, node: NodeProcess) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        found, get = reader.open_bucket(str(objects))
        ends = [
            s.end for segments in reader.read_bucket(found, get, str).values() for s in segments
        ]
        if max(ends, default=0) == end_offset:
            return
        assert time.monotonic() < deadline, f"tiered up to {ends}:\n{node.log[-3000:]}"
        time.sleep(0.1)


def test_it_reads_what_a_consumer_reads(tiered: tuple[Path, list[Row]]) -> None:
    objects, rows = tiered
    ((folder, partition), records) = only(read_all(objects).items())
    assert folder.rpartition("/")[2].startswith("t-")
    assert partition == 0
    assert [tuple(record) for record in records] == rows
    found, get = reader.open_bucket(str(objects))
    segments = only(reader.read_bucket(found, get, str).values())
    assert len(segments) > 3
    codecs = {flags & 7 for segment in segments for *_, flags in segment.batches}
    assert codecs == set(range(5))


def test_it_runs_alone_and_prints_records_as_json(tiered: tuple[Path, list[Row]]) -> None:
    objects, rows = tiered
    done = run(f"file://{objects}", "t")
    assert (done.returncode, done.stderr) == (0, "")
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(r["partition"], r["offset"], r["timestamp"]) for r in printed] == [
        (0, offset, timestamp) for offset, timestamp, *_ in rows
    ]
    value = rows[-1][3]
    assert value is not None
    assert base64.b64decode(printed[-1]["value"]) == value
    listed = run(objects)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout.startswith("t-0 [0, ")


def test_it_lists_a_folder_in_which_files_come_and_go(tmp_path: Path) -> None:
    """A node writes objects to ``.staging`` first; retention deletes others."""
    (tmp_path / "kept").write_bytes(b"abc")
    (tmp_path / ".staging").mkdir()
    (tmp_path / ".staging" / "gone").symlink_to("nowhere")  # listed, and not there to ask
    found, get = reader.open_bucket(str(tmp_path))
    assert found == {"kept": 3}
    assert get("kept") == b"abc"


def test_it_reads_the_framing_of_snappy_java_and_several_gzip_members() -> None:
    """The project's own producers write snappy so; librdkafka writes it raw."""
    data = b"some text " * 10_000
    for codec in CompressionType:
        assert reader.decompress(codec, compress(codec, data)) == data
    twice = compress(CompressionType.GZIP, data) + compress(CompressionType.GZIP, data)
    assert reader.decompress(1, twice) == data * 2


async def test_read_committed_leaves_out_what_was_aborted(tmp_path: Path) -> None:
    """Also where the abort marker lies in a later segment than the records."""
    async with running_node(tmp_path) as node:
        replica = await node.create_topic()
        for producer_id, name in ((7, "gone"), (8, "kept")):
            append(replica, [f"{name} 1"], producer_id=producer_id)
        append(replica, ["plain 1"])
        replica.log.roll()
        append(replica, ["gone 2"], producer_id=7, sequence=1)
        end(replica, ControlType.ABORT, producer_id=7)
        end(replica, ControlType.COMMIT, producer_id=8)
        append(replica, ["kept after"], producer_id=7, sequence=2)
        end(replica, ControlType.COMMIT, producer_id=7)
        replica.log.roll()
        replica.log.flush()
        await node.wait_copied(replica, 2)
    objects = tmp_path / "objects"
    committed = only(read_all(objects).values())
    assert [record.value for record in committed] == [b"kept 1", b"plain 1", b"kept after"]
    everything = only(read_all(objects, committed=False).values())
    assert [record.value for record in everything] == [
        b"gone 1", b"kept 1", b"plain 1", b"gone 2", b"kept after",
    ]  # fmt: skip


def append(
    replica: Replica, values: list[str], *, producer_id: int = -1, sequence: int = 0
) -> None:
    is_transactional = producer_id >= 0
    records = [Record(n, NOW_MS, None, value.encode()) for n, value in enumerate(values)]
    data = build_batch(
        records,
        producer_id=producer_id,
        producer_epoch=0 if is_transactional else -1,
        base_sequence=sequence if is_transactional else -1,
        is_transactional=is_transactional,
    )
    replica.append(bytearray(data))


def end(replica: Replica, kind: ControlType, *, producer_id: int) -> None:
    marker = build_end_transaction_marker(
        EndTransactionMarker(kind, 0),
        producer_id=producer_id,
        producer_epoch=0,
        timestamp_ms=NOW_MS,
    )
    origin = AppendOrigin.COORDINATOR
    replica.log.append_as_leader(bytearray(marker), leader_epoch=0, origin=origin)
    replica.log.advance_high_watermark(replica.log.log_end_offset)


def offsets_of(objects: Path) -> list[int]:
    return [record.offset for record in only(read_all(objects).values())]


def test_overlapping_segments_are_read_once(tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    first = put_segment(objects, range(0, 100, 10))
    second = put_segment(objects, range(100, 200, 10), previous=first.chained_hash)
    # A new leader had rolled elsewhere, and copied from where the tier held a part.
    put_segment(objects, range(50, 250, 10), previous=first.chained_hash, leader_epoch=4)
    put_segment(objects, range(250, 300, 10), previous=second.chained_hash, leader_epoch=4)
    assert offsets_of(objects) == list(range(300))


@pytest.mark.parametrize("new_end", [50, 100, 150])
def test_of_segments_that_begin_together_the_newest_leaders_is_read_first(
    tmp_path: Path, new_end: int
) -> None:
    objects = tmp_path / "objects"
    put_segment(objects, range(0, 100, 10))
    put_segment(objects, range(0, new_end, 10), leader_epoch=4)
    found, get = reader.open_bucket(str(objects))
    segments = only(reader.read_bucket(found, get, str).values())
    assert [segment.leader_epoch for segment in segments] == [4, 3]
    assert offsets_of(objects) == list(range(max(100, new_end)))


def test_a_rewritten_segment_counts_with_and_without_those_it_replaces(tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    first = put_segment(objects, range(0, 100, 10))
    second = put_segment(objects, range(100, 200, 10), previous=first.chained_hash)
    replaced = tuple(replaced_segment(IndexFile.parse(one.data)) for one in (first, second))
    old = list(objects.rglob("0*.log"))
    put_segment(
        objects,
        range(0, 200, 50),
        end_offset=200,
        rewrite=RewriteFacts(rewrite_epoch=1, compacted_up_to=200, replaced=replaced),
    )
    put_segment(objects, range(200, 220, 10), previous=second.chained_hash)
    expected = [n for n in range(200) if n % 50 < 10] + list(range(200, 220))
    told: list[str] = []
    assert [r.offset for r in only(read_all(objects, told.append).values())] == expected
    for path in old:  # their deletion has begun, and ended
        path.with_suffix(".index").unlink()
        assert offsets_of(objects) == expected
        path.unlink()
    assert [r.offset for r in only(read_all(objects, told.append).values())] == expected
    assert told == []


def test_what_a_replaced_leader_left_behind_is_passed_over(tmp_path: Path) -> None:
    """After an unclean election the same offsets have other records, in a later epoch."""
    objects = tmp_path / "objects"
    first = put_segment(objects, range(0, 100, 10))
    put_segment(objects, range(100, 300, 10), previous=first.chained_hash, value_size=7)
    put_segment(
        objects,
        range(100, 200, 10),
        previous=first.chained_hash,
        leader_epoch=5,
        epochs=((1, 100), (5, 110)),
    )
    records = only(read_all(objects).values())
    assert [record.offset for record in records] == list(range(200))
    assert {len(record.value) for record in records} == {20}


def test_segments_before_a_new_chain_are_deleted_ones(tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    put_segment(objects, range(0, 100, 10))
    put_segment(objects, range(100, 200, 10))
    assert offsets_of(objects) == list(range(100, 200))


def partition_folder(objects: Path) -> Path:
    path = only(objects.rglob("*.log")).parent
    assert isinstance(path, Path)
    return path


def test_the_log_starts_where_the_bucket_tells_also_within_a_segment(tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    first = put_segment(objects, range(0, 100, 10))
    folder = partition_folder(objects)
    put_segment(objects, range(100, 200, 10), previous=first.chained_hash)
    for offset, expected in ((7, 7), (100, 100), (105, 105), (42, 105)):  # the greatest counts
        (folder / f"log-start-{offset:020d}.json").write_bytes(b"")
        assert offsets_of(objects) == list(range(expected, 200))
    (folder / f"log-start-{300:020d}.json").write_bytes(b"")
    assert offsets_of(objects) == []


def test_what_is_missing_behind_the_published_log_start_is_reported(tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    put_segment(objects, range(100, 200, 10), previous=b"x" * 32)
    assert offsets_of(objects) == list(range(100, 200))
    (partition_folder(objects) / f"log-start-{70:020d}.json").write_bytes(b"")
    told: list[str] = []
    read_all(objects, told.append)
    assert [text.partition(": ")[2] for text in told] == ["offsets [70, 100) are missing before it"]


def test_a_deleted_topic_is_passed_over(tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    put_segment(objects, range(0, 100, 10))
    folder = partition_folder(objects).parent
    only(objects.rglob("*.log")).unlink()  # its deletion has begun
    folder.with_name(f"{folder.name}.deleted.json").write_bytes(b"")
    assert read_all(objects) == {}


def test_missing_offsets_and_a_broken_chain_are_reported(tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    first = put_segment(objects, range(0, 100, 10))
    put_segment(objects, range(200, 300, 10), previous=first.chained_hash)
    put_segment(objects, range(300, 400, 10), previous=b"x" * 32)
    told: list[str] = []
    read_all(objects, told.append)
    assert [text.partition(": ")[2] for text in told] == [
        "offsets [100, 200) are missing before it",
        "it does not continue the chain of hashes",
    ]


@pytest.mark.parametrize("suffix", [".log", ".index"])
def test_every_changed_byte_is_reported(tmp_path: Path, suffix: str) -> None:
    objects = tmp_path / "objects"
    put_segment(objects, range(0, 20, 10))
    path = only(objects.rglob(f"*{suffix}"))
    whole = path.read_bytes()
    read_all(objects)
    padding = 0
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        told: list[str] = []
        try:
            read_all(objects, told.append)
        except reader.Corrupt as error:
            told.append(str(error))
        if told:
            assert told[0].startswith(str(path.relative_to(objects)))
        else:
            # Between sections lie zeros that nothing depends on.
            assert whole[position] == 0
            padding += 1
    assert padding == 0 if suffix == ".log" else padding < 64


def test_a_cut_or_missing_object_is_reported_and_ends_with_a_failure(tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    first = put_segment(objects, range(0, 100, 10))
    put_segment(objects, range(100, 200, 10), previous=first.chained_hash)
    victim = sorted(objects.rglob("*.log"))[1]
    victim.write_bytes(victim.read_bytes()[:-1])
    done = run(objects)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{victim.relative_to(objects)}: ")
    assert "t-4 [0, 100) 100 records" in done.stdout
    victim.unlink()
    assert str(victim.relative_to(objects)) in run(objects, "t", "4").stderr
