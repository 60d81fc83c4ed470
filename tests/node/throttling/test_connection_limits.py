"""Limits of connections, as a node's listeners keep them. ``tests/kafka`` compares."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tidelog_core.setting_values.address_limits import parse_address_limits

from tests.support.client_quotas import alter_quotas, op
from tests.support.kafka_messages import API_KEYS
from tests.support.node_process import NodeProcess
from tests.support.peer import NO_ANSWER, Peer

Start = Callable[..., NodeProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def start_node(**config: str) -> NodeProcess:
            settings = {name.replace("_", "."): value for name, value in config.items()}
            return stack.enter_context(NodeProcess(tmp_path / "node", config=settings))

        yield start_node


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def client(stack: ExitStack, node: NodeProcess, address: str = "127.0.0.1") -> Peer:
    return stack.enter_context(closing(Peer("client", node.port, address=address)))


def ask(peer: Peer, *, timeout: float = 60) -> bytes | str:
    frame = peer.frame(API_KEYS["api_versions"], 0, b"", is_flexible=False)
    return peer.exchange(frame, timeout=timeout)


def test_a_connection_too_many_waits_until_one_is_closed(start: Start, stack: ExitStack) -> None:
    node = start(max_connections="2")
    first, second, third = (client(stack, node) for _ in range(3))
    assert isinstance(ask(first), bytes)
    assert isinstance(ask(second), bytes)
    third.send(third.frame(API_KEYS["api_versions"], 0, b"", is_flexible=False))
    third_socket = third._socket
    assert third_socket is not None
    third_socket.settimeout(0.5)
    with pytest.raises(TimeoutError):
        third_socket.recv(4)
    first.close()
    assert isinstance(third.receive(), bytes)


def test_connections_over_the_rate_are_accepted_later(start: Start, stack: ExitStack) -> None:
    node = start(max_connection_creation_rate="5", quota_window_num="2")
    began = time.monotonic()
    clients = [client(stack, node) for _ in range(9)]
    for one in clients:
        one.send(one.frame(API_KEYS["api_versions"], 0, b"", is_flexible=False))
    for one in clients:
        assert isinstance(one.receive(timeout=60), bytes)
    assert time.monotonic() - began > 0.5


def test_clients_that_come_too_fast_hold_few_descriptors(start: Start, stack: ExitStack) -> None:
    """Each is held unread for a time: an attacker must not take all descriptors so."""
    node = start()
    with closing(Peer("admin", node.port)) as admin:
        alter_quotas(admin, ({"ip": None}, [op("connection_creation_rate", 1)]))
    sockets = []
    for _ in range(1_300):
        sock = socket.create_connection(("127.0.0.1", node.port))
        stack.enter_context(sock)
        sockets.append(sock)
    held = len(list(Path(f"/proc/{node.process.pid}/fd").iterdir()))
    assert held < 1_150
    with closing(Peer("late", node.port, address="127.0.0.8")) as late:
        assert isinstance(ask(late), bytes)


def test_a_muted_client_counts_until_it_has_left(start: Start, stack: ExitStack) -> None:
    node = start(max_connections_per_ip="1")
    with closing(Peer("admin", node.port, address="127.0.0.9")) as admin:
        limit = op("request_percentage", 0.0001)
        alter_quotas(admin, ({"client-id": "busy"}, [limit]))
    busy = stack.enter_context(closing(Peer("busy", node.port, client_id=b"busy")))
    assert isinstance(ask(busy), bytes)
    assert ask(busy, timeout=0.3) == NO_ANSWER  # and it closes its connection
    deadline = time.monotonic() + 60
    while not isinstance(ask(one := client(stack, node)), bytes) and time.monotonic() < deadline:
        one.close()
    assert isinstance(ask(one), bytes)


def test_overrides_name_addresses() -> None:
    assert parse_address_limits("") == {}
    assert parse_address_limits("10.0.0.1:200, [::1]:50,0:0::2:5") == {
        "10.0.0.1": 200,
        "::1": 50,
        "::2": 5,
    }


@pytest.mark.parametrize("text", ["10.0.0.1", "host:5", "10.0.0.1:", "10.0.0.1:-5", ":5", "1:٣"])
def test_other_overrides_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be an address|not an address"):
        parse_address_limits(text)
