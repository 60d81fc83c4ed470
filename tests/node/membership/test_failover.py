"""Nodes as real processes that are killed, stopped, continued and drained."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kio.schema.alter_partition_reassignments.v1 import request as alter_request
from kio.schema.errors import ErrorCode
from kio.schema.list_partition_reassignments.v0 import request as list_request

from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.replicated_cluster import (
    LEASE_MS,
    ReplicatedCluster,
    replicated_cluster,
    stopped,
)
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient, frame, produce_body
from tools.ports import free_port


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReplicatedCluster]:
    """Three nodes with a lease of two seconds."""
    with replicated_cluster(tmp_path) as running:
        yield running


def metadata(node: NodeProcess, topic: str | None = None) -> Any:
    admin = AdminClient({"bootstrap.servers": node.address})
    return admin.list_topics(topic, timeout=60)


def wait_leaders(node: NodeProcess, topic: str, allowed: set[int], seconds: float) -> set[int]:
    """Wait until only these lead the topic, as this node tells; return which of them do."""
    admin = AdminClient({"bootstrap.servers": node.address})
    found: set[int] = set()

    def are_leaders() -> bool:
        nonlocal found
        partitions = admin.list_topics(topic, timeout=60).topics[topic].partitions.values()
        found = {partition.leader for partition in partitions}
        return bool(found) and found <= allowed  # Empty: the node does not know the topic.

    eventually(are_leaders, f"{topic} is led by {allowed}", seconds)
    return found


def test_a_killed_leaders_partitions_take_writes_again(cluster: ReplicatedCluster) -> None:
    assert seconds_without_writes(cluster) < 60


@pytest.mark.slow  # It wants a machine that is not busy; test_elections has the same in virtual time.
def test_a_killed_leaders_partitions_take_writes_again_within_3_seconds(
    cluster: ReplicatedCluster,
) -> None:
    assert seconds_without_writes(cluster) < 3


def seconds_without_writes(cluster: ReplicatedCluster) -> float:
    """Kill a leader; return how long it took until all partitions had taken a write."""
    cluster.create("t", partitions=6)
    clients = {b: WireClient(cluster.nodes[b].port) for b in (2, 3)}
    for client in clients.values():
        client.socket.settimeout(60)
    for broker_id in clients:
        wait_leaders(cluster.nodes[broker_id], "t", {1, 2, 3}, 60)  # They know the topic.
    cluster.nodes[1].kill()
    killed = time.monotonic()
    missing = set(range(6))
    while missing:
        assert time.monotonic() - killed < 60, missing
        for partition in sorted(missing):
            for client in clients.values():
                answer = client.produce("t", batch_of(b"x"), partition=partition, acks=1)
                if answer.error_code is ErrorCode.none:
                    missing.discard(partition)
                    break
                assert answer.error_code is ErrorCode.not_leader_or_follower
        time.sleep(0.02)
    seconds = time.monotonic() - killed
    for client in clients.values():
        client.socket.close()
    print(f"writes taken again after {seconds:.2f} s")
    return seconds


def test_a_leader_that_was_stopped_for_longer_than_its_lease_acknowledges_nothing(
    cluster: ReplicatedCluster,
) -> None:
    """Not even what had arrived while it was stopped."""
    cluster.create("t", partitions=1)
    old = cluster.node_leading("t")
    others = [node for node in cluster.running if node is not old]
    with WireClient(old.port) as waiting:
        before = waiting.produce("t", batch_of(b"before"), acks=-1)
        assert before.error_code is ErrorCode.none
        with stopped(old):
            for number in range(3):
                body = produce_body("t", batch_of(b"lost"), acks=(1, -1, 1)[number])
                waiting.correlation_id += 1
                waiting.send(frame(0, 8, waiting.correlation_id, body, tags=b""))
            (new,) = wait_leaders(others[0], "t", {node.broker_id for node in others}, 10)
            with WireClient(cluster.nodes[new].port) as client:
                assert client.produce("t", batch_of(b"after")).error_code is ErrorCode.none
        last = waiting.correlation_id
        for waiting.correlation_id in range(last - 2, last + 1):
            answer = waiting._response(0, 8, is_flexible=False)
            (result,) = answer.responses[0].partition_responses
            assert result.error_code is ErrorCode.not_leader_or_follower
    assert list(cluster.consume("t", 2).values()) == [b"before", b"after"]
    cluster.wait_isr("t", {1, 2, 3})
    cluster.wait_same_logs("t")


def test_a_group_keeps_its_members_and_offsets_when_its_coordinator_dies(
    cluster: ReplicatedCluster,
) -> None:
    cluster.create("t", partitions=4)
    assigned: list[list[int]] = []
    lost: list[str] = []
    consumers = []
    for _ in range(2):
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.addresses,
                "group.id": "g",
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 300,
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe(
            ["t"],
            on_assign=lambda _, some: assigned.append([p.partition for p in some]),
            on_lost=lambda *_: lost.append("lost"),
        )
        consumers.append(consumer)

    def poll_all() -> bool:
        for consumer in consumers:
            consumer.poll(0.05)
        return sum(len(consumer.assignment()) for consumer in consumers) == 4

    def is_shared() -> bool:
        return poll_all() and all(len(c.assignment()) == 2 for c in consumers)

    def may_commit(consumer: Consumer) -> bool:
        kept = [TopicPartition("t", p.partition, 7) for p in consumer.assignment()]
        try:
            consumer.commit(offsets=kept, asynchronous=False)
        except KafkaException:
            return False
        return True

    eventually(is_shared, "both members have partitions")
    offsets = [TopicPartition("t", p.partition, 7) for p in consumers[0].assignment()]
    consumers[0].commit(offsets=offsets, asynchronous=False)
    assigned.clear()
    admin = AdminClient({"bootstrap.servers": cluster.addresses})
    group = admin.describe_consumer_groups(["g"])["g"].result(60)
    members = {member.member_id for member in group.members}
    coordinator = group.coordinator.id
    cluster.nodes[coordinator].kill()
    eventually(lambda: all(map(may_commit, consumers)), "the next coordinator has both members")
    ends = time.monotonic() + 2
    while time.monotonic() < ends:  # some heartbeats, of which none may take partitions away
        poll_all()
    survivor = AdminClient({"bootstrap.servers": cluster.running[0].address})
    after = survivor.describe_consumer_groups(["g"])["g"].result(60)
    assert after.coordinator.id != coordinator
    assert {member.member_id for member in after.members} == members
    assert not assigned
    assert not lost
    committed = consumers[0].committed(offsets, timeout=60)
    assert [found.offset for found in committed] == [7, 7]
    consumers[0].commit(
        offsets=[TopicPartition("t", p.partition, 9) for p in offsets], asynchronous=False
    )
    for consumer in consumers:
        consumer.close()


@pytest.mark.slow
def test_a_thousand_partitions_are_taken_over_within_5_seconds(tmp_path: Path) -> None:
    config = {"remote.task.interval.ms": "10000", "metadata.poll.interval.ms": "200"}
    with replicated_cluster(tmp_path, config=config) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.addresses})
        assignment = [[1, 2 + number % 2, 3 - number % 2] for number in range(1000)]
        new = NewTopic("wide", 1000, replica_assignment=assignment)
        admin.create_topics([new], operation_timeout=60)["wide"].result(90)
        eventually(
            lambda: metadata(cluster.nodes[2], "wide").topics["wide"].partitions[999].leader == 1,
            "the topic is known",
        )
        time.sleep(3)
        cluster.nodes[1].kill()
        killed = time.monotonic()
        wait_leaders(cluster.nodes[2], "wide", {2, 3}, 40)
        beyond_lease = time.monotonic() - killed - LEASE_MS / 1000
        print(f"a thousand partitions led again {beyond_lease:.2f} s after the lease")
        with WireClient(cluster.nodes[2].port) as two, WireClient(cluster.nodes[3].port) as three:
            for partition in (0, 1, 998, 999):
                codes = {
                    client.produce("wide", batch_of(b"x"), partition=partition).error_code
                    for client in (two, three)
                }
                assert codes == {ErrorCode.none, ErrorCode.not_leader_or_follower}
        assert beyond_lease < 5


def test_a_node_that_is_asked_to_stop_hands_over_without_an_error_for_producers(
    cluster: ReplicatedCluster,
) -> None:
    cluster.create("t", partitions=6, min_insync_replicas="2")
    producer = cluster.producer(**{"message.timeout.ms": 120_000})
    failed: list[object] = []
    acked: list[tuple[int, int]] = []
    is_over = threading.Event()

    def delivered(error: object, message: Any) -> None:
        if error is not None:
            failed.append(error)
        else:
            acked.append((message.partition(), message.offset()))

    def produce() -> None:
        number = 0
        while not is_over.is_set():
            producer.produce("t", b"x", partition=number % 6, on_delivery=delivered)
            producer.poll(0.002)
            number += 1

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        time.sleep(1)
        started = time.monotonic()
        assert cluster.nodes[1].stop() == 0
        seconds = time.monotonic() - started
        wait_leaders(cluster.nodes[2], "t", {2, 3}, 60)
        time.sleep(1)
    finally:
        is_over.set()
        producing.join()
    assert producer.flush(60) == 0
    print(f"stopped in {seconds:.2f} s, {len(acked)} records acknowledged")
    assert not failed
    assert len(set(acked)) == len(acked)
    assert "leaderships kept" not in cluster.nodes[1].log


def test_a_second_live_process_of_an_id_is_refused(
    cluster: ReplicatedCluster, tmp_path: Path
) -> None:
    first = cluster.nodes[2]
    command = [
        *(sys.executable, "-m", "tidelog_node", "--broker-id", "2", "--port", str(free_port())),
        *("--data-dir", str(tmp_path / "other"), "--metadata-store", str(first.metadata_store)),
        *("--set", f"broker.session.timeout.ms={LEASE_MS}"),
    ]
    for is_stopped in (False, True):
        ended = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert ended.stderr is not None
        try:
            if is_stopped:
                # It does not answer, but it comes back before its lease is over.
                os.kill(first.pid, signal.SIGSTOP)
                time.sleep(0.5)
                os.kill(first.pid, signal.SIGCONT)
            assert ended.wait(30) == 1
            assert b"runs already" in ended.stderr.read()
        finally:
            ended.kill()
            ended.wait()
            ended.stderr.close()
    assert sorted(metadata(cluster.nodes[1]).brokers) == [1, 2, 3]


def test_clients_are_told_of_the_brokers_that_live(cluster: ReplicatedCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.addresses})
    new = NewTopic("alone", 1, replica_assignment=[[3]])
    admin.create_topics([new])["alone"].result(60)
    cluster.create("t", partitions=1)
    survivor = cluster.nodes[1]
    eventually(lambda: sorted(metadata(survivor).brokers) == [1, 2, 3], "all are known", 60)
    cluster.nodes[3].kill()
    eventually(lambda: sorted(metadata(survivor).brokers) == [1, 2], "3 is gone", 60)

    def alone() -> Any:
        return metadata(survivor, "alone").topics["alone"].partitions[0]

    # The client asks any node: each answer may be of one that has not noticed yet.
    def has_no_leader() -> bool:
        partition = alone()
        return partition.leader == -1 and "LEADER_NOT_AVAILABLE" in str(partition.error)

    eventually(has_no_leader, "nobody leads its partition", 60)
    asked = AdminClient({"bootstrap.servers": survivor.address})
    eventually(
        lambda: sorted(node.id for node in asked.describe_cluster().result(60).nodes) == [1, 2],
        "3 is gone from the cluster's description",
        5,
    )
    with pytest.raises(Exception, match="REPLICATION_FACTOR"):
        asked.create_topics([NewTopic("four", 1, 4)])["four"].result(60)
    cluster.nodes[3].start()
    eventually(lambda: sorted(metadata(survivor).brokers) == [1, 2, 3], "3 is back", 60)
    eventually(lambda: alone().leader == 3, "its partition is led again", 60)


def test_partitions_are_added_elected_and_moved_on_a_live_cluster(
    cluster: ReplicatedCluster,
) -> None:
    cluster.create("t", partitions=3)
    admin = AdminClient({"bootstrap.servers": cluster.addresses})
    admin.create_partitions([NewPartitions("t", 6)])["t"].result(60)
    eventually(lambda: len(metadata(cluster.nodes[1], "t").topics["t"].partitions) == 6, "six")
    preferred = {
        number: partition.replicas[0]
        for number, partition in metadata(cluster.nodes[1], "t").topics["t"].partitions.items()
    }
    assert set(preferred.values()) == {1, 2, 3}
    cluster.nodes[1].kill()
    wait_leaders(cluster.nodes[2], "t", {2, 3}, 10)
    cluster.nodes[1].start()
    for number in preferred:
        cluster.wait_isr("t", {1, 2, 3}, number)
    found = admin.elect_leaders(ElectionType.PREFERRED, None).result(60)
    assert {(p.topic, p.partition) for p in found if p.topic == "t"} == {
        ("t", number) for number, leader in preferred.items() if leader == 1
    }
    assert not [error for error in found.values() if error is not None]
    eventually(
        lambda: (
            {
                number: partition.leader
                for number, partition in metadata(cluster.nodes[2], "t")
                .topics["t"]
                .partitions.items()
            }
            == preferred
        ),
        "every preferred leader leads",
    )


def test_a_partition_moves_to_other_replicas_with_its_records(cluster: ReplicatedCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.addresses})
    new = NewTopic("t", 1, replica_assignment=[[1, 2]])
    admin.create_topics([new])["t"].result(60)
    records = [b"%d" % number for number in range(50)]
    acked = cluster.produce("t", records)
    assert len(acked) == 50
    with WireClient(cluster.nodes[1].port) as client:
        assert ongoing(client) == {}
        (moved,) = client.call(reassign("t", 0, (3, 2))).responses[0].partitions
        assert moved.error_code is ErrorCode.none, moved.error_message
        cluster.wait_isr("t", {2, 3})
        eventually(lambda: cluster.leader("t") in (2, 3), "a new replica leads")
        eventually(lambda: ongoing(client) == {}, "nothing moves any more")
    assert cluster.consume("t", 50) == acked
    directory = cluster.nodes[1].data_dir / "t-0"
    eventually(lambda: not directory.exists(), "the old replica's log is gone")


def test_reassignments_can_be_cancelled_and_refused(cluster: ReplicatedCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.addresses})
    new = NewTopic("t", 1, replica_assignment=[[1, 2]])
    admin.create_topics([new])["t"].result(60)
    cluster.nodes[3].kill()
    eventually(lambda: 3 not in metadata(cluster.nodes[1]).brokers, "3 is gone", 60)
    with WireClient(cluster.nodes[1].port) as client:
        for target, code in (
            ((), ErrorCode.invalid_replica_assignment),
            ((1, 1), ErrorCode.invalid_replica_assignment),
            ((1, 9), ErrorCode.invalid_replica_assignment),
            (None, ErrorCode.no_reassignment_in_progress),
        ):
            (refused,) = client.call(reassign("t", 0, target)).responses[0].partitions
            assert refused.error_code is code
            assert refused.error_message
        (unknown,) = client.call(reassign("t", 7, (1,))).responses[0].partitions
        assert unknown.error_code is ErrorCode.unknown_topic_or_partition
        (resized,) = client.call(reassign("t", 0, (1,), resize=False)).responses[0].partitions
        assert resized.error_code is ErrorCode.invalid_replication_factor
        client.call(reassign("t", 0, (1, 3)))
        assert ongoing(client) == {("t", 0): ((1, 3, 2), (3,), (2,))}
        (cancelled,) = client.call(reassign("t", 0, None)).responses[0].partitions
        assert cancelled.error_code is ErrorCode.none
        assert ongoing(client) == {}
    eventually(
        lambda: metadata(cluster.nodes[1], "t").topics["t"].partitions[0].replicas == [1, 2],
        "clients are told the former replicas",
        60,
    )


def reassign(
    topic: str, partition: int, target: tuple[int, ...] | None, *, resize: bool = True
) -> Any:
    """Return the request."""
    moved = alter_request.ReassignablePartition(partition_index=partition, replicas=target)
    moves = alter_request.ReassignableTopic(name=topic, partitions=(moved,))
    return alter_request.AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=resize, topics=(moves,)
    )


def ongoing(client: WireClient) -> dict[tuple[str, int], tuple[tuple[int, ...], ...]]:
    """Return replicas, adding and removing of what moves."""
    answer = client.call(list_request.ListPartitionReassignmentsRequest(topics=None))
    return {
        (topic.name, p.partition_index): (p.replicas, p.adding_replicas, p.removing_replicas)
        for topic in answer.topics
        for p in topic.partitions
    }
