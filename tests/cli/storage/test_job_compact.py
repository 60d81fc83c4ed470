"""``tidelog job compact`` beside a running node, and what every reader sees after it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tidelog_core.metadata import records
from tidelog_core.metadata.records import SegmentMeta, SegmentState, Topic
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

from tests.support.command import called, tidelog
from tests.support.compacted_topics import consume as consume_all
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually

KEYS = 7
RECORDS = 200
DEADLINE_SECONDS = 120.0
CONFIG = {
    "remote.task.interval.ms": "50",
    "log.retention.check.interval.ms": "100",
    "metadata.poll.interval.ms": "50",
    # After its 15 seconds it would remove records of sealed segments before they are tiered.
    "log.cleaner.enable": "false",
}
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "3000",
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "0",
    "delete.retention.ms": "0",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> NodeProcess:
    """A node with a compacted topic of which nearly all is in the tier alone."""
    with NodeProcess(tmp_path_factory.mktemp("compact") / "data", config=CONFIG) as node:
        admin = AdminClient({"bootstrap.servers": node.address})
        topic = NewTopic("t", 1, 1, config=TOPIC_CONFIG)
        admin.create_topics([topic, NewTopic("plain", 1, 1)])["t"].result(60)
        produce(node, 0)
        yield node  # type: ignore[misc]


def produce(node: NodeProcess, first: int) -> None:
    producer = Producer({"bootstrap.servers": node.address, "batch.num.messages": 10})
    for number in range(first, first + RECORDS):
        producer.produce("t", value_of(number), key_of(number))
        if number % 5 == 4:
            assert producer.flush(60) == 0
    eventually(
        lambda: is_tiered(node, first + RECORDS - 30),
        lambda: f"not everything is tiered:\n{node.log}",
        DEADLINE_SECONDS,
    )


def key_of(number: int) -> bytes:
    return b"k%d" % (number % KEYS)


def value_of(number: int) -> bytes:
    return b"%06d" % number + b"x" * 90


def is_tiered(node: NodeProcess, offset: int) -> bool:
    """Return whether the active segment alone is local, and begins at the offset or later."""
    logs = list((node.data_dir / "t-0").glob("*.log"))
    return len(logs) == 1 and int(logs[0].stem) >= offset


def consume(node: NodeProcess) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return the offset, the key and the value of every record."""
    found = consume_all(node.address, "t", **{"check.crcs": True})
    return [(offset, key, value) for key, (offset, value) in found]


def metas(node: NodeProcess) -> list[SegmentMeta]:
    async def read() -> list[SegmentMeta]:
        store = SqliteMetadataStore(node.data_dir / "metadata.db")
        try:
            item = await store.get(records.topic_key("t"))
            assert item is not None
            collection = records.segment_collection(Topic.from_item(item).topic_id, 0)
            return [SegmentMeta.from_item(item) for item in await store.list(collection)]
        finally:
            await store.close()

    return asyncio.run(read())


def test_consumers_get_the_newest_of_every_key_through_the_node(
    node: NodeProcess, tmp_path: Path
) -> None:
    before = consume(node)
    assert [offset for offset, *_ in before] == list(range(RECORDS))
    tiered_end = max(meta.end_offset for meta in metas(node))
    (row,) = tidelog(
        "job", "compact", "--data-dir", node.data_dir, "--topic", "t", "--json"
    ).document
    assert row["outcome"] == "compacted"
    assert row["compacted_up_to"] >= tiered_end
    assert 2 * row["bytes_after"] < row["bytes_before"]
    end = row["compacted_up_to"]
    expected = [n for n in range(RECORDS) if n >= end or n + KEYS >= end]
    # The second run ends the deletions; the node's readers find out by that.
    called("job", "compact", "--data-dir", node.data_dir)
    assert {meta.state for meta in metas(node)} == {SegmentState.COPY_FINISHED}
    after = consume(node)
    assert after == [before[number] for number in expected]
    called("verify", "--data-dir", node.data_dir)
    called("verify", "--from", f"file://{node.data_dir}/objects")
    # The leader goes on with the chain, and retention with what was rewritten.
    produce(node, RECORDS)
    called("verify", "--data-dir", node.data_dir)
    assert consume(node)[: len(expected)] == after
    restored(node, tmp_path)


def restored(node: NodeProcess, tmp_path: Path) -> None:
    """Bring the bucket back as another cluster, and read from that."""
    data_dir = tmp_path / "restored"
    data_dir.mkdir()
    shutil.copytree(node.data_dir / "objects", data_dir / "objects")
    tiered_end = max(meta.end_offset for meta in metas(node))
    expected = [row for row in consume(node) if row[0] < tiered_end]
    called("restore", "--from", f"file://{data_dir}/objects", "--data-dir", data_dir)
    with NodeProcess(data_dir, config=CONFIG) as again:
        assert consume(again) == expected


def test_a_topic_that_is_not_compacted_is_refused_by_name(node: NodeProcess) -> None:
    outcome = called("job", "compact", "--data-dir", node.data_dir, "--topic", "plain", status=1)
    assert "is not compacted" in outcome.errors
    outcome = called("job", "compact", "--data-dir", node.data_dir, "--partition", "0", status=2)
    assert "--partition needs exactly one --topic" in outcome.errors
