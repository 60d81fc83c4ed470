"""Replicas of a compacted partition: each compacts for itself, and followers cross gaps."""

from __future__ import annotations

from pathlib import Path

from tests.support.compacted_topics import (
    active_base_offset,
    assert_compacted,
    consume,
    directory_of,
    produce,
    wait_compacted,
)
from tests.support.replicated_cluster import replicated_cluster

CONFIG = {"log.cleaner.backoff.ms": "100"}


def test_a_follower_that_fetches_across_gaps_can_lead(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path, config=CONFIG) as cluster:
        cluster.create(
            "topic",
            cleanup_policy="compact",
            segment_bytes="20000",
            min_cleanable_dirty_ratio="0.01",
            remote_storage_enable="false",
        )
        produce(cluster.addresses, "topic", 200, acks="all")
        away = cluster.followers("topic")[0]
        away.kill()
        leader = cluster.node_leading("topic")
        newest = produce(leader.address, "topic", 2_000, first=200, acks="all")
        active_base = wait_compacted(leader, "topic")
        away.start()
        cluster.wait_isr("topic", {1, 2, 3})
        wait_compacted(away, "topic")
        for node in list(cluster.running):
            if node is not away:
                node.kill()
        cluster.wait_leader("topic", other_than=leader.broker_id)
        records = consume(away.address, "topic")
        assert_compacted(
            records, newest, min(active_base, active_base_offset(directory_of(away, "topic")))
        )
        # It goes on where the others have stopped.
        more = produce(away.address, "topic", 20, first=10_000)
        assert min(offset for offset, _ in more.values()) == 2_200
        assert dict(consume(away.address, "topic")) == {**newest, **more}
