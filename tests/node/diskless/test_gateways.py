"""Producers of other zones write to their zone's replica: real nodes, a folder, librdkafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from kio.schema.metadata.v12 import request as metadata_request
from tidelog_core.wire_messages import build

from tests.support.replicated_cluster import ReplicatedCluster, replicated_cluster
from tests.support.share_member import ShareMember, make_group
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient

pytestmark = pytest.mark.slow
TOPIC = "t"


def values(begin: int, end: int) -> list[bytes]:
    return [b"value%d" % n for n in range(begin, end)]


@contextmanager
def gateways(
    folder: Path, *, metadata_store: str | None = None, **more: str
) -> Iterator[ReplicatedCluster]:
    config = {"diskless.gateways.enable": "true", **more}
    with replicated_cluster(
        folder, metadata_store=metadata_store, racks=True, config=config
    ) as cluster:
        cluster.create(TOPIC, diskless_enable="true")
        cluster.wait_isr(TOPIC, {1, 2, 3})
        yield cluster


def in_zone(broker_id: int) -> str:
    """Return a client id that says that the client is in the zone of the node."""
    return f"client,diskless_az=rack{broker_id}"


def leaders_seen(cluster: ReplicatedCluster) -> list[int]:
    """Return the leader that Metadata names to a client of each node's zone."""
    found = []
    for broker_id in cluster.nodes:
        producer = cluster.producer(**{"client.id": in_zone(broker_id)})
        found.append(producer.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions[0].leader)
    return found


@pytest.mark.parametrize("overlaps", ["false", "true"])
def test_producers_of_every_zone_write_to_its_node_and_all_read_the_same(
    tmp_path: Path, overlaps: str
) -> None:
    with gateways(tmp_path, **{"diskless.gateways.overlap.enable": overlaps}) as cluster:
        assert leaders_seen(cluster) == [1, 2, 3]
        acked: dict[int, bytes] = {}
        for broker_id in (1, 2, 3):
            some = values(1_000 * broker_id, 1_000 * broker_id + 300)
            acked |= cluster.produce(TOPIC, some, **{"client.id": in_zone(broker_id)})
        assert len(acked) == 900
        assert sorted(acked) == list(range(900))
        cluster.wait_same_logs(TOPIC)
        for broker_id in (1, 2, 3):
            config = {"client.id": in_zone(broker_id)}
            eventually(
                lambda c=config: cluster.consume(TOPIC, 900, **c) == acked, "the zone has all"
            )


def patiently(ask: Callable[[], Any]) -> Any:
    """Ask again if the partition has got another leader epoch: the client itself does not."""
    answers: list[Any] = []

    def is_answered() -> bool:
        try:
            answers.append(ask())
        except KafkaException as error:
            if error.args[0].code() != KafkaError.FENCED_LEADER_EPOCH:
                raise
        return bool(answers)

    eventually(is_answered, "the client knows the leader epoch")
    return answers[0]


def test_a_zones_node_answers_what_clients_ask_of_a_leader(tmp_path: Path) -> None:
    with gateways(tmp_path) as cluster:
        (gateway, _) = cluster.followers(TOPIC)
        zone = {"client.id": in_zone(gateway.broker_id), "bootstrap.servers": gateway.address}
        acked = cluster.produce(TOPIC, values(0, 200), **zone)
        assert len(acked) == 200
        consumer = Consumer({**zone, "group.id": "g", "auto.offset.reset": "error"})
        place = TopicPartition(TOPIC, 0)
        assert patiently(lambda: consumer.get_watermark_offsets(place, timeout=10)) == (0, 200)
        times = [TopicPartition(TOPIC, 0, 0)]
        (found,) = patiently(lambda: consumer.offsets_for_times(times, timeout=10))
        assert found.offset == 0
        # From the end: nothing there yet, also where the replica is behind the leader.
        consumer.assign([TopicPartition(TOPIC, 0, 200)])
        assert consumer.poll(0.5) is None
        more = cluster.produce(TOPIC, values(200, 210), **zone)
        read: list[bytes] = []

        def has_read_all() -> bool:
            message = consumer.poll(0.5)
            if message is not None:
                assert message.error() is None, message.error()
                read.append(message.value())
            return read == [more[offset] for offset in range(200, 210)]

        eventually(has_read_all, "what was appended then is read")
        admin = AdminClient(zone)
        deleted = admin.delete_records([TopicPartition(TOPIC, 0, 50)])
        assert next(iter(deleted.values())).result(20).low_watermark == 50
        assert patiently(lambda: consumer.get_watermark_offsets(place, timeout=10)) == (50, 210)
        consumer.close()


def test_a_member_of_a_share_group_finds_the_leader_in_another_zone(tmp_path: Path) -> None:
    zones = ",".join(f"127.0.0.{10 + n}/32=rack{n}" for n in (1, 2, 3))
    with gateways(tmp_path, **{"client.az.cidr.map": zones}) as cluster:
        leader, (gateway, _) = cluster.leader(TOPIC), cluster.followers(TOPIC)
        make_group(gateway.port, "g", TOPIC)
        with ShareMember(gateway.port, "g", str(uuid4()), TOPIC) as member:
            member.client.socket.close()
            member.client = WireClient(gateway.port, host=f"127.0.0.{10 + gateway.broker_id}")
            assert named_leader(member.client) == gateway.broker_id
            (partition,) = member.fetch().responses[0].partitions
            assert partition.error_code.name == "not_leader_or_follower"
            # Metadata names the real leader from now on.
            assert named_leader(member.client) == leader


def named_leader(client: WireClient) -> int:
    """Return the leader that Metadata names."""
    topic = build(metadata_request.MetadataRequestTopic, topic_id=None, name=TOPIC)
    request = build(
        metadata_request.MetadataRequest,
        topics=(topic,),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    leader_id: int = client.call(request).topics[0].partitions[0].leader_id
    return leader_id


@pytest.mark.parametrize("overlaps", ["false", "true"])
def test_transactions_through_a_gateway_are_read_when_they_are_committed(
    tmp_path: Path, overlaps: str
) -> None:
    with gateways(tmp_path, **{"diskless.gateways.overlap.enable": overlaps}) as cluster:
        gateway = cluster.followers(TOPIC)[0]
        zone = {"client.id": in_zone(gateway.broker_id)}
        producer = cluster.producer(**zone, **{"transactional.id": "tx"})
        producer.init_transactions(60)
        committed: list[bytes] = []
        for number in range(6):
            producer.begin_transaction()
            some = values(100 * number, 100 * number + 20)
            for value in some:
                producer.produce(TOPIC, value, partition=0)
            if number % 3 == 1:
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(60)
                committed += some
        for config in ({}, zone):
            found = cluster.consume(TOPIC, len(committed), **config)
            assert [found[offset] for offset in sorted(found)] == committed
        cluster.wait_same_logs(TOPIC)


class Load:
    """An idempotent producer in every zone, until told to stop."""

    def __init__(self, cluster: ReplicatedCluster) -> None:
        self.acks: list[list[tuple[int | None, bytes]]] = [[] for _ in cluster.nodes]
        self.sent: list[list[bytes]] = [[] for _ in cluster.nodes]
        self.failures: list[object] = []
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._produce, args=(cluster, broker_id))
            for broker_id in cluster.nodes
        ]
        for thread in self._threads:
            thread.start()

    def _produce(self, cluster: ReplicatedCluster, broker_id: int) -> None:
        acks, sent = self.acks[broker_id - 1], self.sent[broker_id - 1]
        producer = cluster.producer(
            **{"client.id": in_zone(broker_id), "message.timeout.ms": 120_000}
        )

        def delivered(error: object, message: Any) -> None:
            if error is None:
                acks.append((message.offset(), message.value()))
            else:
                self.failures.append(error)

        while not self._is_over.is_set():
            value = b"%d-%d" % (broker_id, len(sent))
            sent.append(value)
            producer.produce(TOPIC, value, partition=0, on_delivery=delivered)
            producer.poll(0)
            time.sleep(0.02)
        if producer.flush(120):
            self.failures.append("not flushed")

    def has(self, count: int) -> Callable[[], bool]:
        """Return whether every producer has so many more acks by then."""
        before = [len(acks) for acks in self.acks]
        return lambda: all(
            len(acks) >= start + count for acks, start in zip(self.acks, before, strict=True)
        )

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def check(self, found: dict[int, bytes]) -> None:
        """Hold what was acknowledged against all records of the partition.

        librdkafka knows no offset of a batch whose own answer was lost, if a later one was
        acknowledged: sequence numbers tell it that the first one is in the log.
        """
        assert not self.failures
        for broker_id, (sent, acks) in enumerate(zip(self.sent, self.acks, strict=True), 1):
            prefix = b"%d-" % broker_id
            assert [value for value in found.values() if value.startswith(prefix)] == sent
            assert sorted(value for _, value in acks) == sorted(sent), "each was acknowledged once"
            wrong = {o: (v, found.get(o)) for o, v in acks if o is not None and found.get(o) != v}
            assert not wrong, "offset: (acknowledged, read)"


@pytest.mark.parametrize("overlaps", ["false", "true"])
@pytest.mark.parametrize("who", ["gateway", "leader"])
def test_a_killed_node_loses_and_doubles_nothing(tmp_path: Path, who: str, overlaps: str) -> None:
    """Of any producer, wherever it is, in its order."""
    with gateways(tmp_path, **{"diskless.gateways.overlap.enable": overlaps}) as cluster:
        load = Load(cluster)
        try:
            eventually(load.has(100), "all zones produce")
            for _ in range(2):
                leader = cluster.node_leading(TOPIC)
                victim = leader if who == "leader" else cluster.followers(TOPIC)[0]
                victim.kill()
                eventually(load.has(50), "producers go on without the node")
                victim.start()
                cluster.wait_isr(TOPIC, {1, 2, 3})
                eventually(load.has(50), "producers go on with it")
        finally:
            load.stop()
        load.check(cluster.consume(TOPIC, sum(map(len, load.sent))))
        cluster.wait_same_logs(TOPIC)
