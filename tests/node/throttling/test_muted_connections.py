"""Connections of clients over a quota: nothing of them is read for a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.support.batches import batch_of
from tests.support.client_quotas import alter_quotas, op
from tests.support.kafka_messages import API_KEYS
from tests.support.node_process import NodeProcess
from tests.support.peer import NO_ANSWER, Peer

QUOTA = 20_000
CONFIG = {"quota.window.num": "2", "connections.max.idle.ms": "1000"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node"), config=CONFIG) as node:
        with closing(Peer("admin", node.port)) as admin:
            admin.create_topic("topic")
        yield node


class Clients:
    """Opens connections, and closes them after the test."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def client(self, node: NodeProcess, name: str) -> Peer:
        """Return a client of this id."""
        peer = Peer(name, node.port, client_id=name.encode())
        return self._stack.enter_context(closing(peer))

    def limited(self, node: NodeProcess, name: str, bytes_per_s: float = QUOTA) -> Peer:
        """Return a client of this id that may produce so much."""
        with closing(Peer("admin", node.port)) as admin:
            alter_quotas(admin, ({"client-id": name}, [op("producer_byte_rate", bytes_per_s)]))
        return self.client(node, name)


@pytest.fixture
def clients() -> Iterator[Clients]:
    with ExitStack() as stack:
        yield Clients(stack)


def api_versions(peer: Peer) -> bytes:
    return peer.frame(API_KEYS["api_versions"], 0, b"", is_flexible=False)


def exceed(peer: Peer, *, quota: int = QUOTA, seconds: float) -> None:
    """Produce so much at once that the client must wait for so long."""
    batch = batch_of(b"x" * int(quota * (1 + seconds)))
    assert peer.produce("topic", batch)["error_code"] == "none"


def test_requests_sent_together_wait_one_behind_the_other(
    node: NodeProcess, clients: Clients
) -> None:
    """A client that does not wait by itself must not get a second request through."""
    peer = clients.limited(node, "together")
    began = time.monotonic()  # The node begins to count before its answer is here.
    exceed(peer, seconds=0.5)
    peer.send(api_versions(peer) + api_versions(peer))
    assert isinstance(peer.receive(), bytes)
    assert 0.4 < time.monotonic() - began < 60
    assert isinstance(peer.receive(), bytes)


def test_requests_read_together_begin_one_after_the_other(
    node: NodeProcess, clients: Clients
) -> None:
    """They are queued when the first one's answer is found to be over the limit."""
    with closing(Peer("admin", node.port)) as admin:
        limit = op("request_percentage", 0.0001)
        alter_quotas(admin, ({"client-id": "queued"}, [limit]))
    peer = clients.client(node, "queued")
    began = time.monotonic()
    peer.send(api_versions(peer) * 2)
    for _ in range(2):
        assert isinstance(peer.receive(), bytes)
    assert 0.9 < time.monotonic() - began < 60


def test_all_connections_of_a_client_share_its_quota(node: NodeProcess, clients: Clients) -> None:
    exceed(clients.limited(node, "shared"), seconds=40)
    second = clients.client(node, "shared")
    assert second.produce("topic", batch_of(b"x"))["error_code"] == "none"
    assert second.exchange(api_versions(second), timeout=0.5) == NO_ANSWER
    other = clients.client(node, "other")
    exceed(other, seconds=40)
    assert isinstance(other.exchange(api_versions(other), timeout=30), bytes)


def test_a_muted_client_is_not_closed_as_idle(node: NodeProcess, clients: Clients) -> None:
    """Its wait is longer than ``connections.max.idle.ms``: it may well say nothing."""
    peer = clients.limited(node, "patient")
    exceed(peer, seconds=2)
    time.sleep(1.8)
    assert isinstance(peer.exchange(api_versions(peer)), bytes)


def test_a_client_that_left_while_it_was_muted_is_forgotten(
    node: NodeProcess, clients: Clients
) -> None:
    """Otherwise clients that give up and connect again would take all descriptors of the node."""
    peer = clients.limited(node, "gone", 1_000)
    exceed(peer, quota=1_000, seconds=600)
    before = descriptor_count(node)
    peer.close()
    await_true(lambda: descriptor_count(node) < before)


def test_requests_of_a_client_that_left_are_carried_out_when_it_may(
    node: NodeProcess, clients: Clients
) -> None:
    """One that wants no answers hangs up once everything is sent."""
    peer = clients.limited(node, "hasty")
    before = end_offset(node)
    exceed(peer, seconds=1.2)
    for _ in range(2):
        peer.send_produce("topic", batch_of(b"last"), acks=0)
    peer.close()
    await_true(lambda: end_offset(node) == before + 3)


def test_a_changed_quota_counts_at_once(node: NodeProcess, clients: Clients) -> None:
    peer = clients.limited(node, "changed")
    exceed(peer, seconds=0.1)
    clients.limited(node, "changed", 1e9)
    for _ in range(5):
        exceed(peer, seconds=24)
    assert isinstance(peer.exchange(api_versions(peer), timeout=60), bytes)


def test_a_longest_wait_can_be_set(tmp_path: Path, clients: Clients) -> None:
    with NodeProcess(tmp_path, config=CONFIG | {"quota.throttle.max.ms": "300"}) as node:
        clients.client(node, "admin").create_topic("topic")
        peer = clients.limited(node, "bounded", 1_000)
        exceed(peer, quota=1_000, seconds=600)
        began = time.monotonic()
        assert isinstance(peer.exchange(api_versions(peer)), bytes)
        assert 0.2 < time.monotonic() - began < 60


def descriptor_count(node: NodeProcess) -> int:
    return len(list(Path(f"/proc/{node.process.pid}/fd").iterdir()))


def end_offset(node: NodeProcess) -> int:
    with closing(Peer("admin", node.port)) as admin:
        offset = admin.end_offset("topic")
    assert offset is not None
    return offset


def await_true(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert is_so()
