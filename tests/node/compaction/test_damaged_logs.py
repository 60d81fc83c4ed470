"""Compaction that meets a damaged segment."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import replace
from pathlib import Path

from tidelog_core.config import NodeConfig
from tidelog_core.records.batch import Record, build_batch
from tidelog_node.compaction.log_cleaner import LogCleaner
from tidelog_node.replicas.replica import Replica
from tidelog_node.upkeep.log_changes import LogChanges

from tests.node.replication.led_node import led_node
from tests.node.upkeep.repair_world import CopylessTier

COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "remote.storage.enable": "false",
}
DAY_MS = 86_400_000
WAIT_SECONDS = 30.0


def fill(replica: Replica) -> None:
    """Write three sealed segments that all have the same key."""
    for number in range(3):
        record = Record(0, 1_000_000 + number, b"key", b"%d" % number)
        replica.append(bytearray(build_batch([record])))
        replica.log.roll()
    replica.log.flush()
    replica.log.advance_high_watermark(replica.log.log_end_offset)


async def test_a_log_is_compacted_again_once_its_segment_is_mended(tmp_path: Path) -> None:
    config = dataclasses.replace(NodeConfig(), log_cleaner_backoff_ms=10)
    suspected: list[int] = []
    now_ms = 2_000_000
    async with led_node(tmp_path, config) as node:
        replica = await node.create_topic(**COMPACTED)
        fill(replica)
        cleaner = LogCleaner(
            replace(node.context, config=lambda: config, clock_ms=lambda: now_ms),
            replicas=node.replicas,
            tier=CopylessTier(),
            holds_files=node.directories.holds,
            suspect=lambda _, base_offset: suspected.append(base_offset),
            busy=set(),
        )
        changes = LogChanges(node.replicas)
        changes.subscribe(cleaner.on_changed)
        changes.publish()
        path = replica.log.sealed_segments()[1].path
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        task = asyncio.create_task(cleaner.run())
        async with asyncio.timeout(WAIT_SECONDS):
            while not suspected:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert int(path.stem) in suspected
        assert cleaner.run_count == 0
        path.write_bytes(whole)
        now_ms += DAY_MS
        async with asyncio.timeout(WAIT_SECONDS):
            while not cleaner.run_count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
