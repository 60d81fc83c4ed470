"""Node and function apply retention to the same partition at the same time."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.errors import OffsetOutOfRange
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.objects.location import open_object_store
from tidelog_core.tier.keys import segment_keys
from tidelog_functions.cluster_reader import ClusterReader
from tidelog_functions.invocation import TimeLimit
from tidelog_functions.retention.handler import apply_retention

from tests.support.function_world import Steps
from tests.support.tier_node import TierNode, running_node
from tests.support.waiting import eventually_async

DELAY_MS = 1000


async def call_function(node: TierNode) -> int:
    """Run the function as scheduled; return how many segments it has deleted."""
    objects = open_object_store(node.objects_url)
    try:
        result = await apply_retention(
            node.store,
            objects,
            ClusterReader(node.store, NodeConfig()),
            keys=(),
            is_scheduled=True,
            clock_ms=node.clock,
            may_expire=lambda: True,
            limit=TimeLimit(Steps()),
        )
    finally:
        await objects.close()
    assert result.failed == {}
    return result.done.segment_deleted_count


@pytest.mark.parametrize("seed", range(2))
async def test_who_is_first_makes_no_difference(tmp_path: Path, seed: int) -> None:
    """Copies go on meanwhile; the chain of what is left holds, and readers find all of it."""
    chance = random.Random(seed)

    async with running_node(tmp_path) as node:
        configs = {"file.delete.delay.ms": str(DELAY_MS), "retention.bytes": "3000"}
        replica = await node.create_topic(configs=configs)
        by_function = 0
        for _ in range(8):
            node.produce_segments(replica, chance.randint(1, 3), batch_count=2)
            actions = [
                chance.choice([node.tier.apply_retention, lambda: call_function(node)])()
                for _ in range(chance.randint(1, 3))
            ]
            node.tier.nudge()
            found = await asyncio.gather(*actions)
            by_function += sum(count for count in found if isinstance(count, int))
            node.clock.now_ms += chance.choice([0, DELAY_MS // 2, DELAY_MS])
            await node.view.refresh()

        async def is_at_rest() -> bool:
            node.tier.nudge()
            await call_function(node)
            await node.view.refresh()
            await node.tier.apply_retention()
            node.clock.now_ms += DELAY_MS
            return (
                replica.log.tiered_up_to == replica.log.active_segment_base_offset
                and node.tier.status["copying_partition_count"] == 0
                and node.tier.status["failing_partition_count"] == 0
                and await node.metas(replica) == await node.finished(replica)
            )

        await eventually_async(is_at_rest)
        metas = await node.metas(replica)
        assert set(await node.objects()) == keys_of(node, metas)
        start, end = replica.log.log_start_offset, metas[-1].end_offset
        assert 0 < start == metas[0].base_offset
        logs = await node.verify(replica)
        data = await node.read_all(replica, start, end, max_bytes=4000)
        assert data == b"".join(logs)
        with pytest.raises(OffsetOutOfRange):
            await node.read(replica, start - 1, max_bytes=1)
        assert by_function + node.tier.status["deleted_segment_count"] > 0


def keys_of(node: TierNode, metas: list[SegmentMeta]) -> set[str]:
    keys = [segment_keys(node.view.image.cluster_id, "events", meta) for meta in metas]
    return {key for pair in keys for key in (pair.log, pair.index)}
