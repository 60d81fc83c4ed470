"""Topics with gateways become replicated and diskless again under load, and nodes stop meanwhile.

Real nodes, a folder, librdkafka: an idempotent producer in every zone, and a transactional one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from tests.node.diskless.test_converting import convert, wait_converted
from tests.node.diskless.test_gateways import TOPIC, Load, gateways, in_zone
from tests.support.replicated_cluster import ReplicatedCluster, stopped
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
BEYOND_LEASE_SECONDS = 6.0


class Transactions:
    """A transactional producer in the zone of one node, until told to stop."""

    def __init__(self, cluster: ReplicatedCluster, broker_id: int) -> None:
        self.committed: list[bytes] = []
        self.problems: list[BaseException] = []
        self._is_over = threading.Event()
        self._cluster = cluster
        self._broker_id = broker_id
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._produce()
        except BaseException as error:
            self.problems.append(error)

    def _produce(self) -> None:
        producer = self._cluster.producer(
            **{
                "client.id": in_zone(self._broker_id),
                "transactional.id": "tx",
                "transaction.timeout.ms": 60_000,
                "message.timeout.ms": 50_000,
            }
        )
        producer.init_transactions(60)
        number = 0
        while not self._is_over.is_set():
            values = [b"t%d.%d" % (number, n) for n in range(3)]
            is_commit = number % 3 != 2
            number += 1
            producer.begin_transaction()
            for value in values:
                producer.produce(TOPIC, value, partition=0)
            while True:
                try:
                    if is_commit:
                        producer.commit_transaction(60)
                    else:
                        producer.abort_transaction(60)
                except KafkaException as error:
                    if error.args[0].txn_requires_abort():
                        is_commit = False
                    elif not error.args[0].retriable():
                        raise
                else:
                    break
            if is_commit:
                self.committed += values

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        assert not self.problems


@contextmanager
def under_load(cluster: ReplicatedCluster) -> Iterator[Load]:
    """Produce in all zones, and check in the end that nothing is lost, doubled or torn."""
    load = Load(cluster)
    transactions = Transactions(cluster, cluster.followers(TOPIC)[0].broker_id)
    try:
        eventually(load.has(100), "all zones produce")
        yield load
        eventually(load.has(50), "all zones go on", seconds=120)
    finally:
        load.stop()
        transactions.stop()
    count = sum(map(len, load.sent)) + len(transactions.committed)
    found = cluster.consume(TOPIC, count)
    load.check(found)
    in_order = [found[offset] for offset in sorted(found)]
    assert [value for value in in_order if value.startswith(b"t")] == transactions.committed
    cluster.wait_same_logs(TOPIC)


@pytest.mark.parametrize("overlaps", ["false", "true"])
def test_a_topic_is_converted_both_ways_while_gateways_take_records(
    tmp_path: Path, overlaps: str
) -> None:
    store, config = tmp_path / "metadata.db", {"diskless.gateways.overlap.enable": overlaps}
    with (
        gateways(tmp_path, metadata_store=f"sqlite://{store}", **config) as cluster,
        under_load(cluster) as load,
    ):
        for is_diskless in (False, True, False, True):
            convert(cluster, is_diskless=is_diskless)
            wait_converted(store, is_diskless=is_diskless)
            eventually(load.has(50), "all zones go on", seconds=120)


@pytest.mark.parametrize("who", ["gateway", "leader"])
def test_a_node_that_sleeps_past_its_lease_loses_and_doubles_nothing(
    tmp_path: Path, who: str
) -> None:
    with gateways(tmp_path) as cluster, under_load(cluster) as load:
        for _ in range(2):
            leader = cluster.node_leading(TOPIC)
            victim = leader if who == "leader" else cluster.followers(TOPIC)[0]
            with stopped(victim):
                time.sleep(BEYOND_LEASE_SECONDS)
            eventually(load.has(50), "all zones go on", seconds=120)
