"""What three nodes say of replication, leaders and groups while one of them dies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.http_pages import Scraped, readiness, scrape
from tests.support.node_process import NodeProcess
from tests.support.replicated_cluster import ReplicatedCluster, replicated_cluster
from tests.support.waiting import eventually

PARTITIONS = 6
UNDER_REPLICATED = "tidelog_kafka_under_replicated_partitions"

pytestmark = pytest.mark.slow  # three nodes, and a lease that lapses


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedCluster]:
    folder = tmp_path_factory.mktemp("replicated")
    config = {"metrics.group.lag.interval.ms": "100"}
    with replicated_cluster(folder, config=config, has_http=True) as running:
        yield running


def summed(nodes: Iterable[NodeProcess], name: str, **labels: str) -> float:
    return sum(scrape(node.http_address).value(name, **labels) for node in nodes)


def wait_until(node: NodeProcess, holds: Callable[[Scraped], bool], what: str) -> None:
    eventually(lambda: holds(scrape(node.http_address)), what)


def test_a_dead_node_shows_in_the_metrics_of_the_others(cluster: ReplicatedCluster) -> None:
    cluster.create("t", partitions=PARTITIONS)
    nodes = cluster.running
    produced_to = cluster.producer()
    for partition in range(PARTITIONS):
        produced_to.produce("t", b"value" * 100, partition=partition)
    assert produced_to.flush(60) == 0
    eventually(
        lambda: summed(nodes, "tidelog_kafka_leaders") == PARTITIONS, "every partition is led once"
    )
    assert summed(nodes, "tidelog_kafka_replicas") == 3 * PARTITIONS
    assert summed(nodes, UNDER_REPLICATED) == 0
    came = summed(nodes, "tidelog_kafka_replicated_bytes_total", topic="t", direction="in")
    sent = summed(nodes, "tidelog_kafka_replicated_bytes_total", topic="t", direction="out")
    produced = summed(nodes, "tidelog_kafka_request_bytes_total", topic="t", request="produce")
    assert came == 2 * produced > 0
    assert sent >= came
    assert summed(nodes, "tidelog_kafka_request_bytes_total", topic="t", request="consume") == 0

    dead = cluster.nodes[3]
    dead.kill()
    left = cluster.running
    eventually(
        lambda: (
            summed(left, "tidelog_kafka_leaders") == PARTITIONS == summed(left, UNDER_REPLICATED)
        ),
        "the others lead, and lack a replica",
    )
    for node in left:
        wait_until(node, lambda s: s.value("tidelog_cluster_live_brokers") == 2, "two live")
        scraped = scrape(node.http_address)
        assert scraped.value("tidelog_cluster_brokers") == 3
        assert scraped.value("tidelog_cluster_unavailable_partitions") == 0
        assert readiness(node.http_address)[0] == 200
    assert summed(left, "tidelog_kafka_isr_shrinks_total") > 0
    assert summed(left, "tidelog_kafka_under_min_isr_partitions") == 0

    dead.start()
    eventually(lambda: summed(left, UNDER_REPLICATED) == 0, "all replicas are in sync again")
    assert summed(cluster.running, "tidelog_kafka_isr_expands_total") > 0


def test_lag_counts_partitions_that_other_nodes_lead(cluster: ReplicatedCluster) -> None:
    cluster.create("wide", partitions=PARTITIONS)
    producer, now_ms = cluster.producer(), int(time.time() * 1000)
    for partition in range(PARTITIONS):
        for _ in range(2):
            producer.produce("wide", b"x", partition=partition, timestamp=now_ms - 100_000)
    assert producer.flush(60) == 0
    settings = {"bootstrap.servers": cluster.addresses, "group.id": "g"}
    consumer = Consumer(settings)
    offsets = [TopicPartition("wide", partition, 1) for partition in range(PARTITIONS)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()

    def lags(name: str) -> list[float]:
        found = [scrape(node.http_address).values(name, group="g") for node in cluster.running]
        return [value for values in found for value in values]

    lag = "tidelog_kafka_consumer_group_lag"
    eventually(lambda: lags(lag) == [PARTITIONS], "one node, the coordinator, has the lag")
    eventually(lambda: lags(f"{lag}_seconds") != [], "the times are known")
    assert lags(f"{lag}_max") == [1]
    assert 100 <= lags(f"{lag}_seconds")[0] < 300
