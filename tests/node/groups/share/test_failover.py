"""A share group over three real nodes, of which leaders are killed with ``kill -9``."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from kio.schema.errors import ErrorCode

from tests.support.replicated_cluster import ReplicatedCluster, replicated_cluster, stopped
from tests.support.share_member import (
    ACCEPT,
    RELEASE,
    ShareMember,
    acquired,
    make_group,
    partition_of,
    values,
)
from tests.support.waiting import eventually

TOPIC, GROUP = "t", "g"
MEMBERS = 3
SETTLE_SECONDS = 60.0


class Readers:
    """Members in threads that accept what they get, or release it, and keep book."""

    def __init__(self, cluster: ReplicatedCluster) -> None:
        self.cluster = cluster
        self.lock = threading.Lock()
        self.accepted: set[int] = set()  # and told so
        self.unclear: set[int] = set()  # accepted, and no answer came
        self.problems: list[str] = []
        self.delivery_count = 0
        self.stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(f"m{index}",)) for index in range(MEMBERS)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _run(self, name: str) -> None:
        choices = random.Random(name)
        while not self.stopping.is_set():
            try:
                leader = self.cluster.leader(TOPIC)
                node = self.cluster.nodes.get(leader)
                if node is None or node.process is None:
                    raise ConnectionError("nobody leads")
                with ShareMember(node.port, GROUP, name, TOPIC) as member:
                    while not self.stopping.is_set() and self._turn(member, choices):
                        pass
                    member.close_session()
            except Exception:  # whatever a kill does to a request
                time.sleep(0.2)

    def _turn(self, member: ShareMember, choices: random.Random) -> bool:
        """Fetch and acknowledge once; return whether to go on with this leader."""
        answer = member.fetch(max_wait_ms=300, max_records=20)
        if answer.error_code is not ErrorCode.none:
            return False
        partition = partition_of(answer)
        if partition is not None and partition.error_code is not ErrorCode.none:
            return False
        got = values(answer)
        with self.lock:
            again = sorted(got.keys() & self.accepted)
            if again:
                self.problems.append(f"delivered again although accepted: {again}")
            self.delivery_count += len(got)
        for first, last, count in acquired(answer):
            is_kept = count > 2 or choices.random() < 0.8
            offsets = set(range(first, last + 1))
            if is_kept:
                with self.lock:
                    self.unclear |= offsets
            code = member.acknowledge((first, last, [ACCEPT if is_kept else RELEASE]))
            if code is not ErrorCode.none:
                return False
            if is_kept:
                with self.lock:
                    self.accepted |= offsets
        return True


def begin_at_the_start(cluster: ReplicatedCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.addresses})
    entry = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.GROUP, GROUP, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(60)


def read_through_kills(folder: Path, *, kills: int, rounds: int) -> None:
    with replicated_cluster(folder, config={"offsets.topic.num.partitions": "4"}) as cluster:
        cluster.create(TOPIC)
        begin_at_the_start(cluster)
        make_group(cluster.running[0].port, GROUP, TOPIC)
        readers = Readers(cluster)
        produced: set[int] = set()
        try:
            for kill in range(kills + 1):
                for number in range(rounds):
                    batch = [b"%d-%d-%d" % (kill, number, index) for index in range(40)]
                    produced |= cluster.produce(TOPIC, batch).keys()
                if kill == kills:
                    break
                leader = cluster.leader(TOPIC)
                cluster.nodes[leader].kill()
                cluster.wait_leader(TOPIC, other_than=leader)
                if kill + 1 < kills:
                    cluster.nodes[leader].start()
                    cluster.wait_isr(TOPIC, {1, 2, 3})
            deadline = time.monotonic() + SETTLE_SECONDS
            while produced - readers.accepted - readers.unclear and not readers.problems:
                assert time.monotonic() < deadline, (
                    f"never delivered: {sorted(produced - readers.accepted)[:20]}"
                )
                time.sleep(0.1)
        finally:
            readers.stop()
        assert not readers.problems
        assert readers.delivery_count >= len(produced) - len(readers.unclear)
        # What an answer was lost for may have been accepted: that is all that may be missing.
        assert len(readers.unclear - readers.accepted) <= 20 * MEMBERS * kills


def test_accepted_records_are_never_delivered_again_after_the_leader_was_killed(
    tmp_path: Path,
) -> None:
    read_through_kills(tmp_path, kills=1, rounds=5)


@pytest.mark.slow
def test_accepted_records_are_never_delivered_again_however_often_leaders_are_killed(
    tmp_path: Path,
) -> None:
    read_through_kills(tmp_path, kills=4, rounds=15)


@pytest.mark.slow
def test_a_leader_that_was_away_for_too_long_acknowledges_nothing(tmp_path: Path) -> None:
    with replicated_cluster(tmp_path, config={"offsets.topic.num.partitions": "4"}) as cluster:
        cluster.create(TOPIC)
        begin_at_the_start(cluster)
        make_group(cluster.running[0].port, GROUP, TOPIC)
        cluster.produce(TOPIC, [b"%d" % n for n in range(10)])
        old = cluster.node_leading(TOPIC)
        follower = cluster.followers(TOPIC)[0]
        with ShareMember(follower.port, GROUP, "a", TOPIC) as lost:
            answer = lost.fetch()
            told = partition_of(answer)
            assert told.error_code is ErrorCode.not_leader_or_follower
            assert told.current_leader.leader_id == old.broker_id
            assert [endpoint.port for endpoint in answer.node_endpoints] == [old.port]
        with ShareMember(old.port, GROUP, "a", TOPIC) as one:
            got = {n for first, last, _ in one.records() for n in range(first, last + 1)}
            with ThreadPoolExecutor(1) as pool, stopped(old):
                late = pool.submit(one.acknowledge, (min(got), max(got), [ACCEPT]))
                address = follower.address
                admin = AdminClient({"bootstrap.servers": address})

                def leader() -> int:
                    found = admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions[0]
                    return int(found.leader)

                eventually(lambda: leader() not in (-1, old.broker_id), "another node leads")
                new = cluster.nodes[leader()]
                with ShareMember(new.port, GROUP, "b", TOPIC) as other:
                    again = {
                        n
                        for first, last, _ in other.records(max_wait_ms=9000)
                        for n in range(first, last + 1)
                    }
                    assert again == got
                    assert other.acknowledge((min(got), max(got), [ACCEPT])) is ErrorCode.none
            assert late.result(30) is not ErrorCode.none


@pytest.mark.slow
def test_fresh_groups_skip_no_partitions_whichever_node_their_settings_were_told(
    tmp_path: Path,
) -> None:
    """The leaders are asked for records at once, and hear of settings only by and by."""
    with replicated_cluster(tmp_path) as cluster:
        cluster.create(TOPIC, partitions=3)
        producer = cluster.producer()
        for index in range(3):
            producer.produce(TOPIC, b"v", partition=index)
        assert producer.flush(60) == 0
        for number in range(12):
            group = f"{GROUP}-{number}"
            make_group(cluster.nodes[1].port, group, TOPIC)
            leaders = [cluster.nodes[cluster.leader(TOPIC, index)] for index in range(3)]
            members = [ShareMember(leader.port, group, "m", TOPIC) for leader in leaders]
            told = cluster.nodes[1 + number % 3]
            setting = ConfigEntry(
                "share.auto.offset.reset",
                "earliest",
                incremental_operation=AlterConfigOpType.SET,
            )
            resource = ConfigResource(
                ConfigResource.Type.GROUP, group, incremental_configs=[setting]
            )
            admin = AdminClient({"bootstrap.servers": told.address})
            admin.incremental_alter_configs([resource])[resource].result(60)
            for index, member in enumerate(members):
                with member:
                    assert acquired(member.fetch(partitions=(index,)), index) == [(0, 0, 1)]
