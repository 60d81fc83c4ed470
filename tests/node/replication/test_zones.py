"""Which bytes a follower counts as having come from another zone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog_core.config import NodeConfig
from tidelog_node.replicas.replica import Replica

from tests.node.replication.led_node import TOPIC, led_node
from tests.node.replication.session_leader import LedLog, session_leader
from tests.node.replication.test_leader_answers import fetchers_of
from tests.support.waiting import eventually_async

QUICK = NodeConfig(replica_fetch_wait_max_ms=20, replica_fetch_backoff_ms=20)


@pytest.mark.parametrize(
    ("own", "leaders", "is_across"),
    [("a", "b", True), ("a", "a", False), (None, "b", False), ("a", None, False)],
    ids=["another zone", "the same", "own is unknown", "the leader's is unknown"],
)
async def test_bytes_from_a_leader_in_another_zone_are_counted(
    tmp_path: Path, own: str | None, leaders: str | None, is_across: bool
) -> None:
    async with led_node(tmp_path, QUICK) as node, session_leader(node) as leader:
        await node.move(1, own)
        await node.move(2, leaders)
        replica: Replica = await node.create_topic(leader=2, partition_count=1)
        leader.topic_id, leader.logs = replica.topic_id.bytes, {0: LedLog()}
        await eventually_async(lambda: node.replica(0).is_follower, "it is followed")
        fetchers = fetchers_of(node)
        fetchers.start()
        leader.append(0, b"record")
        log = node.replica(0).log
        await eventually_async(lambda: log.log_end_offset == 1, "the record is there")
        await fetchers.close()
        traffic = node.context.counters.topics.of(TOPIC)
        assert traffic.replicated_in_bytes > 0
        assert traffic.replicated_across_bytes == traffic.replicated_in_bytes * is_across
