"""Real faults of real nodes make the alerts fire in a real Prometheus, and end with the fault."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sqlite3
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.monitoring.prometheus import Prometheus, prometheus
from tests.support.arena import TOPIC, Arena
from tests.support.command import called
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tools import dashboard
from tools.places import ToolAbsent
from tools.server_process import children_running

SECONDS_MAX = 90.0
CONFIG = {
    "queued.max.request.bytes": str(64 * 2**20),
    "metrics.group.lag.interval.ms": "200",
    "log.scrub.bytes.per.second": str(2**30),
    "cost.ledger.interval.ms": "1000",
    # A coordinator that does not end transactions in time leaves them hanging.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "3600000",
    "log.cleaner.backoff.ms": "200",
}
LATE_SECONDS = 1_300.0  # more than transaction.max.timeout.ms and five minutes
SMALL_DISK = "48m"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with Arena(tmp_path_factory.mktemp("alerts") / "arena", config=CONFIG, has_http=True) as arena:
        yield arena


@pytest.fixture(scope="module")
def watch(arena: Arena, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    targets = [node.http_address for node in arena.nodes.values()]
    try:
        with prometheus(tmp_path_factory.mktemp("prometheus") / "p", targets) as found:
            eventually(lambda: len(found.query("up == 1")) == 3, "all nodes are scraped")
            yield found
    except ToolAbsent as absent:
        pytest.skip(str(absent))


@pytest.fixture(autouse=True)
def _quiet(watch: Prometheus) -> None:
    """Begin each test without an alert, but one on what other programs write to this disk."""

    def others() -> set[str]:
        return watch.firing() - {"TidelogDiskFillsUp"}

    eventually(lambda: not others(), lambda: f"{others()} end", SECONDS_MAX)


def await_alerts(watch: Prometheus, *wanted: str) -> None:
    """Wait until each of the alerts has fired; not all need to fire at one time."""
    seen: set[str] = set()

    def have_fired() -> bool:
        seen.update(watch.firing())
        return seen >= {f"Tidelog{name}" for name in wanted}

    eventually(have_fired, lambda: f"{wanted} fire, these did: {seen}", SECONDS_MAX)


def test_a_node_that_is_stopped(arena: Arena, watch: Prometheus) -> None:
    arena.cluster.create("alone", partitions=3, replicas=1)
    arena.cluster.create("strict", partitions=3, min_insync_replicas="3")
    node = arena.nodes[3]
    os.kill(node.pid, signal.SIGSTOP)
    try:
        await_alerts(watch, "NodeDown")
        await_alerts(watch, "PartitionsUnavailable", "UnderReplicated", "UnderMinIsr")
        producer = Producer({"bootstrap.servers": arena.nodes[1].address})
        producer.produce("strict", b"value")  # and again, until it is taken
        producer.poll(0)
        await_alerts(watch, "ProduceRefused")
    finally:
        os.kill(node.pid, signal.SIGCONT)


def test_an_object_store_that_fails(arena: Arena, watch: Prometheus) -> None:
    arena.cluster.create("tiered", segment_bytes="16384")
    with _failing_everywhere(arena, errno.EIO, arena.objects_dir):
        _fill(arena, "tiered")
        await_alerts(watch, "TierFails", "ObjectStoreFails", "TierBacklog")


def test_a_tier_worker_that_ends_again_and_again(arena: Arena, watch: Prometheus) -> None:
    node = arena.nodes[1]
    killed: set[int] = set()
    while len(killed) < 4:
        for pid in set(children_running(node.pid, "tidelog_node.tier.worker")) - killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    await_alerts(watch, "TierWorkerEnds")


def test_a_full_disk(arena: Arena, watch: Prometheus) -> None:
    node = arena.nodes[2]
    with arena.faults[2].failing(errno.ENOSPC, ("write",), node.data_dir):
        await_alerts(watch, "DiskFull")


def test_a_disk_that_fails(arena: Arena, watch: Prometheus) -> None:
    node = arena.nodes[2]
    with arena.faults[2].failing(errno.EIO, ("write", "fsync", "read"), node.data_dir):
        await_alerts(watch, "DiskFailed", "NodeNotReady")


def test_a_metadata_store_that_is_locked(arena: Arena, watch: Prometheus) -> None:
    with closing(sqlite3.connect(arena.metadata_path, isolation_level=None)) as store:
        store.execute("BEGIN EXCLUSIVE")
        try:
            await_alerts(watch, "LeaseRenewalsFail", "MetadataStoreFails")
        finally:
            store.execute("ROLLBACK")


def test_a_group_that_is_behind(arena: Arena, watch: Prometheus) -> None:
    settings = {"bootstrap.servers": arena.cluster.addresses, "group.id": "behind"}
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 0)], asynchronous=False)
    await_alerts(watch, "ConsumerGroupBehind")
    end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0))[1]
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, end + 1_000_000)], asynchronous=False)
    consumer.close()


def test_a_damaged_segment(arena: Arena, watch: Prometheus) -> None:
    """A sealed one, which is read again when it is tiered."""
    arena.cluster.create("damaged", segment_bytes="16384", remote_storage_enable="false")
    _fill(arena, "damaged")
    node = arena.cluster.node_leading("damaged")
    path = sorted((node.data_dir / "damaged-0").glob("*.log"))[1]
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    arena.cluster.alter("damaged", remote_storage_enable="true")
    await_alerts(watch, "DamagedSegments")


def test_a_compaction_that_fails(arena: Arena, watch: Prometheus) -> None:
    """Where it writes, the disk does not; the log itself can be written."""
    node = arena.nodes[1]
    name = "compacted"
    with arena.faults[1].failing(errno.EIO, ("write",), node.data_dir / f"{name}-0" / "cleaned"):
        arena.cluster.create(
            name, cleanup_policy="compact", segment_bytes="16384", min_cleanable_dirty_ratio="0"
        )
        _fill(arena, name, keys=3)
        await_alerts(watch, "CompactionFails")


def test_a_replica_whose_log_cannot_be_used(arena: Arena, watch: Prometheus) -> None:
    """One file of a disk is gone bad, and the rest of it works."""
    arena.cluster.create("bad")
    node = arena.cluster.node_leading("bad")
    with arena.faults[node.broker_id].failing(
        errno.EIO, ("write", "fsync", "read"), node.data_dir / "bad-0"
    ):
        producer = Producer({"bootstrap.servers": arena.cluster.addresses})
        producer.produce("bad", b"value")  # and again, until another node takes it
        await_alerts(watch, "OfflineReplicas")
        assert producer.flush(60) == 0


def test_a_transaction_that_its_coordinator_forgets(arena: Arena, watch: Prometheus) -> None:
    """The clocks of all nodes go on by twenty minutes, in which nothing was written."""
    arena.cluster.create("transacted")
    settings = {"bootstrap.servers": arena.cluster.addresses, "transactional.id": "forgotten"}
    producer = Producer(settings)
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("transacted", b"value")
    assert producer.flush(60) == 0
    for clock in arena.clocks.values():
        clock.set_off(LATE_SECONDS)
    try:
        await_alerts(watch, "HangingTransactions")
    finally:
        for clock in arena.clocks.values():
            clock.set_off(0)
    producer.abort_transaction(60)


class SmallNode(NodeProcess):
    """A node with a small disk of its own, which only it sees."""

    def command(self) -> list[str]:
        mount = f"mount -t tmpfs -o size={SMALL_DISK} tmpfs {self.data_dir}"
        return ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh", *super().command()]


def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    """By what a producer sends; in a Prometheus of its own."""
    (tmp_path / "node").mkdir()
    mount = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path / "node")]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs a mount namespace of its own")
    node = SmallNode(
        tmp_path / "node",
        object_store=f"file://{tmp_path}/objects",
        arguments=("--http-port", "0"),
    )
    with node, prometheus(tmp_path / "p", [node.http_address]) as watch:
        producer = Producer({"bootstrap.servers": node.address, "linger.ms": 0})
        seen: set[str] = set()

        def fills_up() -> bool:
            producer.produce("t", os.urandom(100_000))
            producer.poll(0.2)
            seen.update(watch.firing())
            return "TidelogDiskFillsUp" in seen

        eventually(fills_up, lambda: f"it fires, these did: {seen}", SECONDS_MAX)
        assert "TidelogDiskFull" not in seen, "it fires before the disk is full"
        producer.purge()


def _fill(arena: Arena, topic: str, *, keys: int = 0) -> None:
    """Produce a few segments; with ``keys``, records of so many keys."""
    producer = Producer({"bootstrap.servers": arena.cluster.addresses})
    for number in range(40):
        key = f"{number % keys}" if keys else None
        producer.produce(topic, os.urandom(4_000), key=key)
        producer.flush(60)


def test_requests_that_fill_the_memory(arena: Arena, watch: Prometheus) -> None:
    with ExitStack() as stack:
        for _ in range(6):
            connection = stack.enter_context(
                socket.create_connection(("127.0.0.1", arena.nodes[1].port))
            )
            connection.settimeout(2)
            stack.callback(connection.close)
            _announce(connection)
        await_alerts(watch, "RequestMemoryFull")


def _announce(connection: socket.socket) -> None:
    """Announce a Produce request of 40 MB, and send of it what the node takes."""
    try:
        connection.sendall(struct.pack(">ihhih", 40 * 2**20, 0, 9, 1, -1) + bytes(20 * 2**20))
    except OSError:
        return


@contextmanager
def _failing_everywhere(arena: Arena, number: int, path: Path) -> Iterator[None]:
    calls = ("write", "fsync")
    with ExitStack() as stack:
        for faults in arena.faults.values():
            stack.enter_context(faults.failing(number, calls, path))
        yield


def test_a_partition_that_is_given_away_unclean(arena: Arena, watch: Prometheus) -> None:
    arena.cluster.create("unclean", partitions=1, unclean_leader_election_enable="true")
    _unclean(arena)
    await_alerts(watch, "UncleanElection")


def _unclean(arena: Arena) -> None:
    """Leave a partition with one replica in sync, stop that one, and let another lead."""
    leader = arena.cluster.leader("unclean")
    others = [node for node_id, node in arena.nodes.items() if node_id != leader]
    for node in others:
        node.kill()
    eventually(lambda: arena.cluster.isr("unclean") == {leader}, "the leader is alone in sync")
    arena.nodes[leader].kill()
    for node in others:
        node.start()
    eventually(lambda: arena.cluster.leader("unclean") not in (leader, -1, None), "another leads")
    arena.nodes[leader].start()


def test_a_budget_that_is_passed(arena: Arena, watch: Prometheus) -> None:
    """More was spent than a cent of a cent; then the budget is raised, and stays."""
    arena.cluster.create("spends", segment_bytes="16384")
    _fill(arena, "spends")
    set_budget(arena, "0.0001")
    await_alerts(watch, "BudgetPassed")
    set_budget(arena, "1000000")


def set_budget(arena: Arena, dollars: str) -> None:
    called(
        *("config", "set", "nodes", f"cost.budget.month.dollars={dollars}"),
        bootstrap=arena.cluster.addresses,
    )


@pytest.mark.parametrize("expression", dashboard.expressions())
def test_each_panel_of_the_dashboard_shows_something(watch: Prometheus, expression: str) -> None:
    """Errors, groups and requests of every kind are from the tests before."""
    asked = expression.replace("$__rate_interval", "10m").replace("$node", ".*")
    assert watch.query(asked)
