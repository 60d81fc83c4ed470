"""A compacted topic that is tiered: the local log, the tier, and readers of both."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.support.command import called
from tests.support.compacted_topics import (
    active_base_offset,
    assert_compacted,
    cleaned_up_to,
    consume,
    create,
    directory_of,
    produce,
    records_on_disk,
    wait_compacted,
)
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually

CONFIG = {
    "log.cleaner.backoff.ms": "100",
    "remote.task.interval.ms": "100",
    "log.retention.check.interval.ms": "500",
}

PRODUCERS, KEYS = 15, 20


def test_readers_of_tier_and_local_log_get_the_newest_of_every_key(tmp_path: Path) -> None:
    """Also where the tier holds what a tombstone in the local log deletes."""
    with NodeProcess(tmp_path / "node", config=CONFIG) as node:
        create(node, "tiered", remote_storage_enable="true", delete_retention_ms="0")
        directory = directory_of(node, "tiered")
        produce(node.address, "tiered", 600, keys=10)
        producer = Producer({"bootstrap.servers": node.address})
        producer.produce("tiered", None, b"key-0", partition=0)
        assert producer.flush(60) == 0
        newest = {b"key-0": (600, None)}
        for round_index in range(2):
            # All keys but the deleted one.
            for number in range(1, 10):
                newest |= produce_one(node, number, 100, round_index)
            eventually(
                lambda: cleaned_up_to(directory) == active_base_offset(directory),
                lambda: f"it is not compacted:\n{node.log[-3000:]}",
            )
        below = [r for r in records_on_disk(directory) if r.offset < active_base_offset(directory)]
        assert len(below) == len({record.key for record in below})
        assert any(record.value is None for record in below), "the tombstone has gone"
        assert dict(consume(node.address, "tiered")) == newest

        # Once the tier has nothing older, it goes from the local log too.
        def has_no_tombstone() -> bool:
            nonlocal newest
            newest |= produce_one(node, 1, 200, 2)
            wait_compacted(node, "tiered")
            return all(record.value is not None for record in records_on_disk(directory))

        called("job", "compact", "--force", "--data-dir", node.data_dir)
        eventually(has_no_tombstone, lambda: f"the tombstone stays:\n{node.log[-3000:]}")
        seen = dict(consume(node.address, "tiered"))
        assert seen == {key: value for key, value in newest.items() if key != b"key-0"}

        evict(node, "tiered")
        eventually(
            lambda: len(list(directory.glob("*.log"))) == 1,
            lambda: f"segments are not evicted:\n{node.log[-3000:]}",
        )
        assert {**newest, **dict(consume(node.address, "tiered"))} == newest
        checked = called("verify", "--data-dir", tmp_path / "node")
        assert "all is well" in checked.out.decode()
        assert "ERROR" not in node.log


@pytest.mark.slow
def test_librdkafka_reads_on_where_many_producers_have_left_only_their_last_batch(
    tmp_path: Path,
) -> None:
    """It reports an error after ten answers without a record, so such segments have to be joined."""
    with NodeProcess(tmp_path / "node", config={**CONFIG, "log.cleaner.enable": "false"}) as node:
        create(node, "tiered", remote_storage_enable="true", local_retention_bytes="1")
        newest: dict[bytes, tuple[int, bytes | None]] = {}
        for index in range(PRODUCERS):
            newest |= produce(
                *(node.address, "tiered", 250),
                keys=KEYS,
                first=1_000 * index,
                **{"enable.idempotence": True},
            )
        directory = directory_of(node, "tiered")
        eventually(
            lambda: len(list(directory.glob("*.log"))) == 1,
            lambda: f"segments are not evicted:\n{node.log[-3000:]}",
        )
        active_base = active_base_offset(directory)
        (row,) = called("job", "compact", "--data-dir", node.data_dir, "--json").document
        assert row["compacted_up_to"] == active_base
        assert row["segments_before"] >= PRODUCERS
        # All segments but the last one have lost all their records.
        assert row["segments_after"] == 1

        def serves_the_new_segment() -> bool:
            """Until it has read the segments' metadata, the node serves the old ones."""
            found = consume(node.address, "tiered")
            offsets = [offset for _, (offset, _) in found if offset < active_base]
            return len(offsets) == KEYS

        eventually(serves_the_new_segment, lambda: f"old segments are served:\n{node.log[-3000:]}")
        assert_compacted(consume(node.address, "tiered"), newest, active_base)


def produce_one(
    node: NodeProcess, number: int, count: int, round_index: int
) -> dict[bytes, tuple[int, bytes | None]]:
    """Produce so many records of one key."""
    producer = Producer({"bootstrap.servers": node.address, "batch.size": 2_000, "linger.ms": 5})
    newest: dict[bytes, tuple[int, bytes | None]] = {}

    def delivered(error: object, message: object) -> None:
        assert error is None, error
        newest[message.key()] = message.offset(), message.value()  # type: ignore[attr-defined]

    for index in range(count):
        value = b"%d-%d" % (round_index, index) + b"x" * 90
        producer.produce("tiered", value, b"key-%d" % number, partition=0, on_delivery=delivered)
    assert producer.flush(60) == 0
    return newest


def evict(node: NodeProcess, topic: str) -> None:
    """Let the node keep nothing that is tiered."""
    admin = AdminClient({"bootstrap.servers": node.address})
    change = ConfigEntry("local.retention.bytes", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)
