"""Fetch sessions of real followers that are refused, evicted, or lose their answers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.node.replication.test_replication import values
from tests.support.flaky_proxy import FlakyProxy
from tests.support.replicated_cluster import (
    ReplicatedCluster,
    replicated_cluster,
    running,
)
from tools.ports import free_port

SLOTS = "max.incremental.fetch.session.cache.slots"


def produce_and_compare(cluster: ReplicatedCluster, count: int = 300) -> None:
    acked = cluster.produce("t", values(count))
    assert sorted(acked) == list(range(count))
    cluster.wait_same_logs("t")
    assert cluster.consume("t", count) == acked


def test_one_follower_has_the_only_session_and_the_other_follows_as_well(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path, config={SLOTS: "1"}) as cluster:
        cluster.create("t", partitions=20, min_insync_replicas="3")
        produce_and_compare(cluster)


@pytest.mark.slow
def test_a_new_partition_does_not_wait_for_the_fetches_that_leaders_hold(tmp_path: Path) -> None:
    """The follower asks for it in a second fetch, on which the leader answers the held one."""
    config = {"replica.fetch.wait.max.ms": "30000", "replica.lag.time.max.ms": "60000"}
    with replicated_cluster(tmp_path, config=config) as cluster:
        cluster.create("held", partitions=6)
        cluster.produce("held", values(10))
        begun = time.monotonic()
        cluster.create("t", min_insync_replicas="3")
        produce_and_compare(cluster, 10)
        assert time.monotonic() - begun < 15


@pytest.mark.slow  # as before there were sessions
def test_followers_follow_without_any_session(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path, config={SLOTS: "0"}) as cluster:
        cluster.create("t", partitions=20, min_insync_replicas="3")
        produce_and_compare(cluster)


@pytest.mark.slow
def test_leaders_that_restart_are_followed_in_new_sessions(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path) as cluster:
        cluster.create("t", partitions=20)
        for broker_id in (1, 2, 3):
            node = cluster.nodes[broker_id]
            node.kill()
            node.start()
            for partition in (0, 7):
                cluster.wait_isr("t", {1, 2, 3}, partition)
        produce_and_compare(cluster)


@contextmanager
def flaky_proxies(targets: dict[int, int], seed: int) -> Iterator[list[FlakyProxy]]:
    """Proxies by port, with the ports behind them; some answers are lost. On a thread."""
    random = Random(seed)
    proxies: list[FlakyProxy] = []
    is_up, loop = threading.Event(), asyncio.new_event_loop()
    done = asyncio.Event()

    async def serve() -> None:
        for port, target in targets.items():
            proxies.append(
                FlakyProxy(target, port=port, loses_answer=lambda *_: random.random() < 0.03)
            )
            await proxies[-1].__aenter__()
        is_up.set()
        await done.wait()
        for proxy in proxies:
            await proxy.__aexit__()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert is_up.wait(60)
    try:
        yield proxies
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()


@pytest.mark.slow
def test_followers_go_on_when_answers_are_lost(tmp_path: Path) -> None:
    """The leader has counted the fetch: only a new session can go on from there."""
    seed = Random().getrandbits(32)
    print(f"seed {seed}")
    cluster = ReplicatedCluster(tmp_path, metadata_store=f"sqlite://{tmp_path}/metadata.db")
    proxy_ports = {}
    for node in cluster.nodes.values():
        port = free_port()
        proxy_ports[port] = node.port
        node.arguments = (*node.arguments, "--advertised-port", str(port))
    with flaky_proxies(proxy_ports, seed) as proxies, running(cluster):
        cluster.create("t", partitions=20, min_insync_replicas="2")
        count = 0
        while sum(proxy.lost_count for proxy in proxies) < 10:
            assert count < 10_000, "no answers are lost"
            cluster.produce("t", values(250, start=count))
            count += 250
        cluster.wait_same_logs("t")
        cluster.wait_isr("t", {1, 2, 3})
        assert len(cluster.consume("t", count)) == count
