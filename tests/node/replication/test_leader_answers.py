"""What a follower does with answers that its leader seldom gives."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest
from tidelog_core.config import NodeConfig
from tidelog_node.follower import fetcher
from tidelog_node.follower.catch_up import CatchUp
from tidelog_node.follower.fetchers import FollowerFetchers
from tidelog_node.tier.client import TierClient
from tidelog_node.tier.history import TierHistory
from tidelog_node.tier.index_cache import IndexCache
from tidelog_node.tier.worker_command import WorkerCommand

from tests.node.replication.led_node import LedNode, led_node
from tests.node.replication.scripted_leader import OF_A_LATER_KAFKA, scripted_leader
from tests.support.batches import batch_of

SECONDS_MAX = 60.0


def fetchers_of(node: LedNode) -> FollowerFetchers:
    worker = WorkerCommand(
        socket=node.folder / "tier.sock",
        objects=f"file://{node.folder}/objects",
        cache_dir=node.folder / "cache",
        node_config=node.config,
    )
    history = TierHistory(
        store=node.store,
        indexes=IndexCache(TierClient(worker), executor=node.executor),
        view=node.view,
    )
    catch_up = CatchUp(node.context, history=history, timeout_s=5.0)
    return FollowerFetchers(node.context, replicas=node.replicas, catch_up=catch_up)


async def test_an_error_of_a_later_version_holds_up_its_partition_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "TROUBLE_SECONDS", 0.01)

    config = NodeConfig(replica_fetch_backoff_ms=10)
    async with led_node(tmp_path, config) as node, scripted_leader(node) as leader:
        replica = await node.create_topic(leader=2)
        leader.topic_id = replica.topic_id.bytes
        leader.answers = [(OF_A_LATER_KAFKA, b""), (0, batch_of(b"one")), (0, b"")]
        leader.holds = True
        fetchers = fetchers_of(node)
        fetchers.start()
        begun = time.monotonic()
        while replica.log.log_end_offset < 1:
            assert time.monotonic() < begun + SECONDS_MAX
            await asyncio.sleep(0.01)
        await fetchers.close()
        # The leader's other partitions would have waited, too, for another connection.
        assert leader.connection_count == 1
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.message for record in said] == ["replica cannot follow, will retry"]
    assert getattr(said[0], "reason", "") == f"the leader answers error {OF_A_LATER_KAFKA}"
