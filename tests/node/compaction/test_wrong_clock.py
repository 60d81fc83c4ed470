"""A node whose clock jumps days ahead keeps tombstones that readers have yet to see."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.node.clocked_node import DAY_SECONDS, ClockedNode
from tests.support.compacted_topics import (
    create,
    directory_of,
    produce,
    records_on_disk,
    wait_compacted,
)
from tests.support.waiting import eventually

CONFIG = {"log.cleaner.backoff.ms": "100", "log.retention.check.interval.ms": "100"}


@pytest.mark.slow
def test_tombstones_outlive_a_clock_that_is_eight_days_ahead_for_a_while(tmp_path: Path) -> None:
    clocked = ClockedNode(tmp_path, config=CONFIG)
    with clocked.process as node:
        create(node, "t", delete_retention_ms=str(86_400_000))
        produce(node.address, "t", 100, keys=4)
        producer = Producer({"bootstrap.servers": node.address})
        producer.produce("t", None, b"gone", partition=0)
        assert producer.flush(60) == 0
        directory = directory_of(node, "t")

        def has_tombstone() -> bool:
            return any(record.value is None for record in records_on_disk(directory))

        number = 0

        def compact_once_more() -> None:
            nonlocal number
            number += 400
            produce(node.address, "t", 400, keys=4, first=number)
            wait_compacted(node, "t")

        for _ in range(2):  # The tombstone gets its time, by a right clock.
            compact_once_more()
        assert has_tombstone()
        clocked.clock.set_off(8 * DAY_SECONDS)
        eventually(lambda: "clock runs ahead" in node.log, lambda: node.log[-3000:])
        for _ in range(2):
            compact_once_more()
        assert has_tombstone()
        # The same once more, by a clock that is believed: it was no wonder that it stayed.
        node.stop()
        node.start()
        eventually(
            lambda: (compact_once_more(), not has_tombstone())[1],
            lambda: f"the tombstone stays:\n{node.log[-3000:]}",
        )
