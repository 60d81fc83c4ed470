"""What three nodes promise of a replicated topic while all is well, and when one is not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v11 import request as fetch_request
from tidelog_core.log.checkpoint import read_checkpoint
from tidelog_core.wire_messages import build

from tests.support.batches import batch_of
from tests.support.replicated_cluster import replicated_cluster, stopped
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient


def values(count: int, start: int = 0) -> list[bytes]:
    return [b"%08d" % number + b"x" * 100 for number in range(start, start + count)]


def test_followers_hold_the_same_bytes_as_the_leader(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path) as cluster:
        cluster.create("t", segment_bytes="20000")
        acked = cluster.produce("t", values(1_000))
        assert sorted(acked) == list(range(1_000))
        assert len(cluster.wait_same_logs("t")) > 100_000
        assert cluster.consume("t", 1_000) == acked


def test_acknowledged_records_survive_the_death_of_the_leader(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path) as cluster:
        cluster.create("t", min_insync_replicas="2")
        acked = cluster.produce("t", values(500))
        first = cluster.leader("t")
        cluster.nodes[first].kill()
        second = cluster.wait_leader("t", other_than=first)
        acked |= cluster.produce("t", values(500, start=500))
        assert sorted(acked) == list(range(1_000))
        assert cluster.consume("t", 1_000) == acked
        cluster.nodes[first].start()
        cluster.wait_isr("t", {1, 2, 3})
        cluster.wait_same_logs("t")
        cluster.nodes[second].kill()
        cluster.wait_leader("t", other_than=second)
        assert cluster.consume("t", 1_000) == acked


@pytest.mark.slow  # tests/chaos does the same, and more
def test_producing_goes_on_while_leaders_die(tmp_path: Path) -> None:
    """An idempotent producer neither loses nor repeats a record over a failover."""
    with replicated_cluster(tmp_path) as cluster:
        cluster.create("t", min_insync_replicas="2")
        sent = 0
        acked: dict[int, bytes] = {}
        producer = cluster.producer()

        def delivered(error: object, message: Any) -> None:
            assert error is None, error
            acked[message.offset()] = message.value()

        for _ in range(2):
            for value in values(300, start=sent):
                producer.produce("t", value, partition=0, on_delivery=delivered)
                producer.poll(0.001)
            sent += 300
            dead = cluster.node_leading("t")
            dead.kill()
            for value in values(300, start=sent):
                producer.produce("t", value, partition=0, on_delivery=delivered)
                producer.poll(0.001)
            sent += 300
            assert producer.flush(40) == 0
            dead.start()
            cluster.wait_isr("t", {1, 2, 3})
        found = cluster.consume("t", sent)
        assert found == acked
        assert [found[offset] for offset in sorted(found)] == values(sent)
        cluster.wait_same_logs("t")


def test_a_stopped_follower_leaves_the_isr_and_comes_back(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path, config={"broker.session.timeout.ms": "60000"}) as cluster:
        cluster.create("t", min_insync_replicas="2")
        acked = cluster.produce("t", values(100))
        slow, other = cluster.followers("t")
        with stopped(slow):
            acked |= cluster.produce("t", values(100, start=100))
            assert len(acked) == 200
            cluster.wait_isr("t", {cluster.leader("t"), other.broker_id})
            acked |= cluster.produce("t", values(100, start=200))
        cluster.wait_isr("t", {1, 2, 3})
        cluster.wait_same_logs("t")
        assert cluster.consume("t", 300) == acked


@pytest.mark.slow  # the test before is of one that stops
def test_a_dead_follower_leaves_the_isr_with_its_lease(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path, config={"replica.lag.time.max.ms": "60000"}) as cluster:
        cluster.create("t")
        dead, _ = cluster.followers("t")
        dead.kill()
        acked = cluster.produce("t", values(10))
        assert len(acked) == 10
        cluster.wait_isr("t", {1, 2, 3} - {dead.broker_id})
        dead.start()
        cluster.wait_isr("t", {1, 2, 3})
        cluster.wait_same_logs("t")


def test_too_few_replicas_in_sync_refuse_acks_all(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path) as cluster:
        cluster.create("t", min_insync_replicas="3")
        assert len(cluster.produce("t", values(10))) == 10
        leader = cluster.node_leading("t")
        dead, _ = cluster.followers("t")
        dead.kill()
        eventually(lambda: len(cluster.isr("t")) == 2, "the dead one has left the ISR")
        with WireClient(leader.port) as client:
            refused = client.produce("t", batch_of(b"no"), acks=-1)
            assert refused.error_code is ErrorCode.not_enough_replicas
            assert refused.base_offset == -1
            # Fewer promises can be kept, but nobody sees what is not committed (KIP-966).
            assert client.produce("t", batch_of(b"yes"), acks=1).base_offset == 10
            assert client.fetch("t", 10).high_watermark == 10
            assert not client.fetch("t", 10).records
        dead.start()
        cluster.wait_isr("t", {1, 2, 3})
        assert cluster.consume("t", 11)[10] == b"yes"


def test_records_on_the_leader_alone_are_not_read_and_time_out(tmp_path: Path) -> None:
    config = {"replica.lag.time.max.ms": "3000", "broker.session.timeout.ms": "60000"}
    with replicated_cluster(tmp_path, config=config) as cluster:
        cluster.create("t")
        assert len(cluster.produce("t", values(10))) == 10
        leader, followers = cluster.node_leading("t"), cluster.followers("t")
        with stopped(followers[0]), stopped(followers[1]), WireClient(leader.port) as client:
            late = client.produce("t", batch_of(b"late"), acks=-1)
            assert late.error_code is ErrorCode.request_timed_out
            assert late.base_offset == 10
            assert client.fetch("t", 10).high_watermark == 10
            assert not client.fetch("t", 10).records
            # The leader alone is in sync once both have lagged for too long.
            eventually(lambda: client.fetch("t", 10).high_watermark == 11, "it is committed")
            assert client.produce("t", batch_of(b"alone"), acks=-1).base_offset == 11
        cluster.wait_isr("t", {1, 2, 3})
        cluster.wait_same_logs("t")


@pytest.mark.slow  # tests/simulation does it in every schedule
def test_a_deposed_leader_drops_what_nobody_else_has(tmp_path: Path) -> None:
    """It comes back with a tail of its own; its log ends as the new leader's."""
    with replicated_cluster(tmp_path) as cluster:
        cluster.create("t")
        acked = cluster.produce("t", values(50))
        old = cluster.node_leading("t")
        others = cluster.followers("t")
        with stopped(others[0]), stopped(others[1]), WireClient(old.port) as client:
            # The first answers the fetches that are held, so it is on its way to the others.
            assert client.produce("t", batch_of(b"on its way"), acks=1).base_offset == 50
            assert client.produce("t", batch_of(b"lost 1", b"lost 2"), acks=1).base_offset == 51
            old.kill()
        cluster.wait_leader("t", other_than=old.broker_id)
        acked |= cluster.produce("t", values(50, start=50))
        old.start()
        cluster.wait_isr("t", {1, 2, 3})
        log = cluster.wait_same_logs("t")
        assert b"lost" not in log
        old.wait_logged("replica truncated")
        assert cluster.consume("t", 100).items() - {(50, b"on its way")} <= acked.items()
        assert len(acked) == 100


@pytest.mark.slow  # the next test loses a disk too
def test_a_node_that_lost_its_disk_follows_from_the_start(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path) as cluster:
        cluster.create("t", segment_bytes="20000", remote_storage_enable="false")
        acked = cluster.produce("t", values(500))
        lost, _ = cluster.followers("t")
        lost.kill()
        wipe(lost.data_dir)
        lost.start()
        cluster.wait_isr("t", {1, 2, 3})
        cluster.wait_same_logs("t")
        leader = cluster.node_leading("t")
        leader.kill()
        cluster.wait_leader("t", other_than=leader.broker_id)
        assert cluster.consume("t", 500) == acked


def test_an_empty_replica_takes_only_the_tail_from_the_leader(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path) as cluster:
        cluster.create("t", segment_bytes="20000")
        acked = cluster.produce("t", values(1_000))
        leader = cluster.node_leading("t")
        eventually(
            lambda: len(list((tmp_path / "objects").rglob("*.index"))) >= 4, "segments are tiered"
        )
        lost, other = cluster.followers("t")
        lost.kill()
        wipe(lost.data_dir)
        lost.start()
        cluster.wait_isr("t", {1, 2, 3})
        first = min(int(path.stem) for path in (lost.data_dir / "t-0").glob("*.log"))
        assert first > 0
        lost.wait_logged("begins where the tier ends")
        leader.kill()
        other.kill()
        eventually(lambda: cluster.leader("t") == lost.broker_id, "the new replica leads")
        assert cluster.consume("t", 1_000) == acked


def wipe(directory: Path) -> None:
    """Remove a directory in which a dying tier worker may still tidy up."""
    while directory.exists():
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.slow  # test_leading asks what decides it
def test_an_unclean_leader_has_at_least_what_the_tier_has(tmp_path: Path) -> None:
    """A replica far behind leads after all: what is tiered is kept, the rest is lost."""
    with replicated_cluster(tmp_path) as cluster:
        cluster.create("t", segment_bytes="20000", unclean_leader_election_enable="true")
        behind, other = cluster.followers("t")
        leader = cluster.node_leading("t")
        behind.kill()
        cluster.wait_isr("t", {leader.broker_id, other.broker_id})
        acked = cluster.produce("t", values(1_000))
        eventually(
            lambda: len(list((tmp_path / "objects").rglob("*.index"))) >= 4, "segments are tiered"
        )
        other.kill()
        leader.kill()
        behind.start()
        eventually(lambda: cluster.leader("t") == behind.broker_id, "the one behind leads")
        with WireClient(behind.port) as client:
            eventually(lambda: client.fetch("t", 0).high_watermark > 0, "it has started anew")
            end = client.fetch("t", 0).high_watermark
        found = cluster.consume("t", end)
        assert found == {offset: value for offset, value in acked.items() if offset < end}
        more = cluster.produce("t", values(10, start=5_000))
        assert min(more) == end
        leader.start()
        other.start()
        cluster.wait_isr("t", {1, 2, 3})
        assert cluster.consume("t", end + 10) == found | more


@pytest.mark.slow
def test_an_unclean_leader_begins_no_earlier_than_the_records_that_are_kept(
    tmp_path: Path,
) -> None:
    """A replica that missed what was deleted since gives none of those offsets again."""
    with replicated_cluster(tmp_path) as cluster:
        config = {"remote_storage_enable": "false", "unclean_leader_election_enable": "true"}
        cluster.create("t", **config)
        assert len(cluster.produce("t", values(10))) == 10
        behind, other = cluster.followers("t")
        leader = cluster.node_leading("t")
        with stopped(behind):
            cluster.wait_isr("t", {leader.broker_id, other.broker_id})
            assert len(cluster.produce("t", values(90, start=10))) == 90
            admin = AdminClient({"bootstrap.servers": leader.address})
            admin.delete_records([TopicPartition("t", 0, 60)])[TopicPartition("t", 0)].result(60)
            other.kill()
            leader.kill()
        eventually(lambda: cluster.leader("t") == behind.broker_id, "the one behind leads")
        more = cluster.produce("t", values(10, start=500))
        assert sorted(more) == list(range(60, 70))
        leader.start()
        other.start()
        cluster.wait_isr("t", {1, 2, 3})
        assert cluster.consume("t", 10, offset=60) == more


def test_consumers_read_from_the_replica_of_their_rack(tmp_path: Path) -> None:
    config = {"log.retention.check.interval.ms": "500"}
    with replicated_cluster(tmp_path, racks=True, config=config) as cluster:
        cluster.create("t", segment_bytes="20000", local_retention_bytes="1")
        acked = cluster.produce("t", values(1_000))
        near, _ = cluster.followers("t")
        directory = near.data_dir / "t-0"
        eventually(lambda: len(list(directory.glob("*.log"))) == 1, "the follower evicts")
        with WireClient(cluster.node_leading("t").port) as client:
            answer = client.call(fetch_with_rack("t", 995, f"rack{near.broker_id}"))
            assert answer.responses[0].partitions[0].preferred_read_replica == near.broker_id
        with WireClient(near.port) as client:
            eventually(lambda: client.fetch("t", 995).high_watermark == 1_000, "it knows so")
            assert acked[999] in client.fetch("t", 995).records
            assert acked[0] in client.fetch("t", 0, max_wait_ms=5_000).records  # from the tier
        rack = {"client.rack": f"rack{near.broker_id}"}
        assert cluster.consume("t", 1_000, **rack) == acked


def test_a_node_with_a_broken_log_leaves_it_to_the_others_and_fetches_it_again(
    tmp_path: Path,
) -> None:
    with replicated_cluster(tmp_path) as cluster:
        cluster.create("t", segment_bytes="20000", remote_storage_enable="false")
        acked = cluster.produce("t", values(1_000))
        cluster.wait_same_logs("t")
        broken = cluster.node_leading("t")
        directory = broken.data_dir / "t-0"
        eventually(
            lambda: recovery_point(directory) > 500,
            "most of the log is flushed",
        )
        for node in cluster.running:
            node.kill()
        first = min(directory.glob("*.log"))
        first.write_bytes(first.read_bytes()[:1_000])
        for node in cluster.nodes.values():
            node.start()
        cluster.wait_leader("t", other_than=broken.broker_id)
        assert cluster.consume("t", 1_000) == acked
        assert len(cluster.produce("t", values(10))) == 10
        cluster.wait_isr("t", {1, 2, 3})
        cluster.wait_same_logs("t")
        (aside,) = broken.data_dir.glob("t-0.*-stray")  # for a person to look at
        assert (aside / first.name).stat().st_size == 1_000
        assert broken.log.count("is damaged") + broken.log.count("but was sealed with") <= 3


def recovery_point(directory: Path) -> int:
    rows = read_checkpoint(directory / "recovery-point")
    return rows[0][0] if rows else 0


def fetch_with_rack(topic: str, offset: int, rack: str) -> Any:
    """Return a consumer's Fetch request."""
    partition = build(
        fetch_request.FetchPartition,
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=offset,
        log_start_offset=-1,
        partition_max_bytes=1_000_000,
    )
    return build(
        fetch_request.FetchRequest,
        replica_id=-1,
        min_bytes=1,
        max_bytes=1_000_000,
        session_epoch=-1,
        topics=(build(fetch_request.FetchTopic, topic=topic, partitions=(partition,)),),
        rack_id=rack,
    )
