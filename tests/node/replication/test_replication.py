"""What three nodes promise of a replicated topic while all is well, and when one is not."""

from __future__ import annotations

from pathlib import Path

from tests.node.replication.replicated_cluster import replicated_cluster, stopped


def values(count: int, start: int = 0) -> list[bytes]:
    return [b"%08d" % number + b"x" * 100 for number in range(start, start + count)]


def test_followers_hold_the_same_bytes_as_the_leader(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path) as cluster:
        cluster.create("t", segment_bytes="20000")
        acked = cluster.produce("t", values(1_000))
        assert sorted(acked) == list(range(1_000))
        assert len(cluster.wait_same_logs("t")) > 100_000
        assert cluster.consume("t", 1_000) == acked
