"""``tidelog erase`` beside running nodes: the key is gone from disks and bucket, all else stays."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tidelog_cli.storage.erase import _sentence
from tidelog_core.metadata.erasures import LOCAL_ERASURE_COLLECTION
from tidelog_core.metadata.store import Item
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

from tests.support.command import called, tidelog
from tests.support.compacted_topics import consume as consume_all
from tests.support.node_process import NodeProcess

RECORDS = 60
KEYS = 5
SECRET = b"k3"
DEADLINE_SECONDS = 120.0
CONFIG = {
    "remote.task.interval.ms": "50",
    "log.retention.check.interval.ms": "100",
    "metadata.poll.interval.ms": "50",
}
TOPIC_CONFIG = {"segment.bytes": "3000", "file.delete.delay.ms": "0"}


def create_topic(node: NodeProcess, *, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": node.address})
    topic = NewTopic("t", 1, replicas, config=TOPIC_CONFIG)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(admin.list_topics(timeout=60).brokers) < replicas:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    admin.create_topics([topic])["t"].result(60)


def produce(node: NodeProcess, first: int, count: int = RECORDS) -> None:
    producer = Producer({"bootstrap.servers": node.address})
    for number in range(first, first + count):
        producer.produce("t", b"%06d" % number + b"x" * 90, b"k%d" % (number % KEYS))
        if number % 5 == 4:
            assert producer.flush(60) == 0
    assert producer.flush(60) == 0


def consume(node: NodeProcess) -> list[tuple[int, bytes | None]]:
    """Return the offset and the key of every record."""
    found = consume_all(node.address, "t", **{"check.crcs": True})
    return [(offset, key) for key, (offset, _) in found]


def files_with(folder: Path, text: bytes) -> list[Path]:
    """Return segments, and chunks of them in the tier's cache, that have the text."""
    paths = [*folder.rglob("*.log"), *folder.rglob("*.log.*")]
    return [path for path in paths if text in path.read_bytes()]


def requests(database: Path) -> list[Item]:
    async def read() -> list[Item]:
        store = SqliteMetadataStore(database)
        try:
            return await store.list(LOCAL_ERASURE_COLLECTION)
        finally:
            await store.close()

    return asyncio.run(read())


def test_a_key_is_gone_from_disk_and_bucket_and_what_comes_later_stays(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", config=CONFIG) as node:
        create_topic(node, replicas=1)
        produce(node, 0)
        assert len(consume(node)) == RECORDS  # also into the tier's cache
        asked = ("erase", "t", "--data-dir", node.data_dir, "--key", SECRET.decode())
        found = called(*asked, "--dry-run", "--json").document
        assert found[0]["records"] <= len([n for n in range(RECORDS) if n % KEYS == 3])
        assert files_with(node.data_dir, SECRET) != []
        outcome = called(*asked, "--receipt", tmp_path / "receipt.json")
        receipt = json.loads((tmp_path / "receipt.json").read_bytes())
        assert outcome.lines[0].startswith("12 records of the key removed from topic t, ")
        assert f"receipt erasure-{receipt['erasure_id']}.json" in outcome.lines[0]
        assert "tidelog: searching the tier of t-0 (1 of 1)\n" in outcome.errors
        assert receipt["is_done"]
        (partition,) = receipt["partitions"]
        assert partition["up_to_offset"] == RECORDS
        removed = [n for one in partition["segments_replaced"] for n in one["removed_offsets"]]
        assert removed == [n for n in range(RECORDS) if n % KEYS == 3]
        assert files_with(node.data_dir, SECRET) == []
        assert requests(node.data_dir / "metadata.db") == []
        produce(node, RECORDS, 10)
        seen = consume(node)
        left = [n for n in range(RECORDS + 10) if n % KEYS != 3 or n >= RECORDS]
        assert seen == [(n, b"k%d" % (n % KEYS)) for n in left]
        (stored,) = (node.data_dir / "objects").rglob("erasure-*.json")
        assert json.loads(stored.read_bytes()) == receipt
        assert SECRET not in stored.read_bytes()
        again = called("erase", "t", "--data-dir", node.data_dir, "--key", "nobody")
        assert again.lines[0].startswith("nothing found: no record of the key in the 1 partition")
        tidelog("verify", "--data-dir", node.data_dir)
        tidelog("verify", "--from", f"file://{node.data_dir}/objects")


@pytest.mark.slow
def test_a_replica_that_was_down_lets_go_before_it_serves(tmp_path: Path) -> None:
    database = f"sqlite://{tmp_path}/metadata.db"
    objects = f"file://{tmp_path}/objects"
    stores = ("--metadata", database, "--objects", objects)
    nodes = [
        NodeProcess(
            tmp_path / f"data{number}",
            broker_id=number,
            metadata_store=database,
            object_store=objects,
            config=CONFIG,
        )
        for number in (1, 2)
    ]
    with nodes[0] as first, nodes[1] as second:
        create_topic(first, replicas=2)
        produce(first, 0)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not all(files_with(node.data_dir, b"%06d" % (RECORDS - 1)) for node in nodes):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        second.kill()
        asked = ("erase", *stores, "--topic", "t", "--key", SECRET.hex(), "--key-format", "hex")
        outcome = tidelog(*asked, "--json", "--timeout", "12", status=1)
        assert not outcome.document["is_done"]
        assert "broker 2 has not released its local records" in outcome.errors
        assert files_with(second.data_dir, SECRET) != []
        assert files_with(first.data_dir, SECRET) == []
        produce(first, RECORDS, 10)
        second.start()
        assert {path.stem for path in (second.data_dir / "t-0").glob("*.log")} == {
            f"{RECORDS:020d}"
        }
        assert tidelog(*asked, "--json").document["is_done"]
        assert requests(tmp_path / "metadata.db") == []
        assert files_with(tmp_path, SECRET) == []
        left = [n for n in range(RECORDS + 10) if n % KEYS != 3]
        produce(first, RECORDS + 10, 1)
        assert [n for n, _ in consume(first, RECORDS + 10)] == [*left, RECORDS + 10]


def test_a_key_that_is_written_wrongly_is_refused(tmp_path: Path) -> None:
    given = ("erase", "--data-dir", tmp_path, "t", "--key", "zz", "--key-format")
    assert "missing argument 'TOPIC'" in called("erase", "--key", "k", status=2).errors
    both = called("erase", "t", "--topic", "u", "--key", "k", status=2)
    assert "give one of them" in both.errors
    assert "is not valid hex" in called(*given, "hex", status=2).errors
    assert "--key-format must be one of" in called(*given, "octal", status=2).errors


def test_partitions_that_an_answer_leaves_out_are_counted() -> None:
    rows = [{"partition": 7, "is_done": False}]
    summary = {"topic": "t", "erasure_id": "1", "is_done": False, "found": False}
    found = _sentence({**summary, "partitions": rows, "partition_count": 3_000})
    assert "2999 of 3000 partitions" in found
    assert "0 of 1 partition" in _sentence({**summary, "partitions": rows})
