"""Names and lists of servers whose first address drops packets: the others are tried in time.

An attempt at one of them would take its whole timeout, here ten minutes.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tidelog import Admin, Producer
from tidelog.blocking_dial import dial
from tidelog.connections import Connections, Lane
from tidelog.errors import ConnectionFailed, RequestTimedOut
from tidelog.options import ClientOptions
from tidelog.registry_http import RegistryHttp
from tidelog.tokens.client_credentials import ClientCredentials
from tidelog.wire import opening
from tidelog.wire.connection import Address
from tidelog.wire.frame_buffers import FrameBuffers
from tidelog.wire.host_addresses import HostAddress
from tidelog.wire.requests import METADATA

from tests.sdk.scripted_node import HOST, NODE_ID, TOPIC, ScriptedNode
from tests.support.addresses import listening, named, silent
from tests.support.certificates import Authority

NAME = "localhost"  # Certificates have it.
TEN_MINUTES: Any = {"request_timeout_ms": 600_000}
OF_PRODUCERS = {**TEN_MINUTES, "delivery_timeout_ms": 700_000}
SECONDS_MAX = 30.0


@pytest.fixture
def lost() -> Iterator[HostAddress]:
    with silent() as address:
        yield address


def server_context(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.node_pem())
    return context


@pytest.mark.parametrize("has_tls", [False, True])
async def test_a_bootstrap_name_whose_first_address_is_dead_is_reached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lost: HostAddress, has_tls: bool
) -> None:
    authority = Authority(tmp_path)
    async with ScriptedNode(server_context(authority) if has_tls else None) as node:
        named(monkeypatch, NAME, [lost, node.port])
        node.set(METADATA, lambda _: node.metadata({NODE_ID: (NAME, node.port)}))
        context = authority.client_context() if has_tls else None
        async with (
            asyncio.timeout(SECONDS_MAX),
            Producer(f"{NAME}:{node.port}", ssl=context, **OF_PRODUCERS) as producer,
        ):
            await producer.send_and_wait(TOPIC, b"v")


async def test_a_brokers_name_whose_first_address_is_dead_is_reached(
    monkeypatch: pytest.MonkeyPatch, lost: HostAddress
) -> None:
    async with ScriptedNode() as node:
        named(monkeypatch, NAME, [lost, node.port])
        node.set(METADATA, lambda _: node.metadata({NODE_ID: (NAME, node.port)}))
        async with (
            asyncio.timeout(SECONDS_MAX),
            Producer(node.address, **OF_PRODUCERS) as producer,
        ):
            await producer.send_and_wait(TOPIC, b"v")


async def test_programs_without_a_loop_reach_it_too(
    monkeypatch: pytest.MonkeyPatch, lost: HostAddress
) -> None:
    async with ScriptedNode() as node:
        named(monkeypatch, NAME, [lost, node.port])

        def topics() -> list[str]:
            with Admin(f"{NAME}:{node.port}", **TEN_MINUTES).sync() as admin:
                return [topic.name for topic in admin.list_topics()]

        assert await asyncio.wait_for(asyncio.to_thread(topics), SECONDS_MAX) == [TOPIC]


async def test_bootstrap_servers_behind_dead_ones_are_reached(lost: HostAddress) -> None:
    """The first alone took the time that a client has to start."""
    with silent() as second:
        async with ScriptedNode() as node:
            dead = [f"{HOST}:{one.address[1]!s}" for one in (lost, lost, second)]
            async with asyncio.timeout(SECONDS_MAX), Admin([*dead, node.address], **TEN_MINUTES):
                pass


async def test_a_bootstrap_server_behind_one_that_never_answers_is_reached() -> None:
    with listening() as mute:
        async with ScriptedNode() as node:
            servers = [f"{HOST}:{mute.address[1]!s}", node.address]
            async with asyncio.timeout(SECONDS_MAX), Admin(servers, **TEN_MINUTES):
                pass


@pytest.mark.parametrize("mute_count", [1, 3])
async def test_an_address_that_takes_connections_and_never_answers_is_left_for_another(
    monkeypatch: pytest.MonkeyPatch, mute_count: int
) -> None:
    monkeypatch.setattr(opening, "ANSWER_SECONDS", 0.05)
    with ExitStack() as stack:
        mute = [stack.enter_context(listening()) for _ in range(mute_count)]
        async with ScriptedNode() as node:
            named(monkeypatch, NAME, [*mute, node.port])
            node.set(METADATA, lambda _: node.metadata({NODE_ID: (NAME, node.port)}))
            producer = Producer(f"{NAME}:{node.port}", **OF_PRODUCERS)
            async with asyncio.timeout(SECONDS_MAX), producer:
                await producer.send_and_wait(TOPIC, b"v")


async def test_a_node_that_takes_connections_and_never_answers_is_given_up_soon() -> None:
    """Its partitions may have another leader by then."""
    with listening() as mute:
        async with ScriptedNode() as node:
            brokers = {1: (HOST, int(mute.address[1])), NODE_ID: (HOST, node.port)}
            leaders = iter([1])
            node.set(
                METADATA,
                lambda _: node.metadata(brokers, partitions={0: next(leaders, NODE_ID)}),
            )
            producer = Producer(
                node.address, socket_connection_setup_timeout_ms=200, **OF_PRODUCERS
            )
            async with asyncio.timeout(SECONDS_MAX), producer:
                await producer.send_and_wait(TOPIC, b"v")


async def test_the_setup_of_a_connection_has_more_time_after_each_failure() -> None:
    with listening() as mute:
        address = Address(HOST, int(mute.address[1]))
        options = ClientOptions(
            (address,),
            reconnect_backoff_ms=1,
            socket_connection_setup_timeout_ms=10,
            socket_connection_setup_timeout_max_ms=30,
        )
        connections = Connections(options, FrameBuffers())
        for seconds in (0.01, 0.02, 0.03, 0.03):
            with pytest.raises(RequestTimedOut, match=f"within {seconds} s$"):
                await connections.to(address, Lane.SHARED)


async def test_a_wait_before_a_reconnection_may_have_fractions() -> None:
    with listening() as refused:
        pass
    address = f"{HOST}:{refused.address[1]!s}"
    admin = Admin(address, request_timeout_ms=50, reconnect_backoff_ms=0.5, retry_backoff_ms=0.5)
    with pytest.raises(ConnectionFailed, match="no node answers"):
        await admin.start()


async def test_the_setup_of_a_connection_has_no_more_time_than_a_request() -> None:
    with listening() as mute:
        address = Address(HOST, int(mute.address[1]))
        connections = Connections(ClientOptions((address,), request_timeout_ms=10), FrameBuffers())
        with pytest.raises(RequestTimedOut, match=r"within 0\.01 s$"):
            await connections.to(address, Lane.SHARED)


# -- calls that block --


class Answering(BaseHTTPRequestHandler):
    """Answers every request with a token, which a registry's client does not look at."""

    def answer(self) -> None:
        """Answer."""
        body = b'{"access_token": "a.b.c"}'
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, *_: Any) -> None:
        """Be quiet."""


@pytest.fixture
def http_port() -> Iterator[int]:
    with HTTPServer((HOST, 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_a_registry_whose_first_address_is_dead_is_reached(
    monkeypatch: pytest.MonkeyPatch, lost: HostAddress, http_port: int
) -> None:
    named(monkeypatch, NAME, [lost, http_port])
    registry = RegistryHttp(f"http://{NAME}:1", seconds_max=SECONDS_MAX, answer_bytes_max=1_000)
    assert registry.call("GET", "/subjects").status == 200


def test_an_issuer_whose_first_addresses_are_dead_is_reached(
    monkeypatch: pytest.MonkeyPatch, lost: HostAddress, http_port: int
) -> None:
    named(monkeypatch, NAME, [lost, lost, http_port])
    client = ClientCredentials(endpoint=f"http://{NAME}:1/token", client_id="a", client_secret="b")
    assert client.fetch().text == "a.b.c"


def test_a_call_that_blocks_raises_the_last_address_error(
    monkeypatch: pytest.MonkeyPatch, lost: HostAddress
) -> None:
    with listening() as refused:
        pass
    named(monkeypatch, NAME, [refused, refused])
    with pytest.raises(ConnectionRefusedError):
        dial(NAME, 1, timeout_s=SECONDS_MAX)
    named(monkeypatch, NAME, [lost] * 10)
    with pytest.raises(TimeoutError):
        dial(NAME, 1, timeout_s=0.1)
    named(monkeypatch, NAME, [])
    with pytest.raises(OSError, match="no address"):
        dial(NAME, 1, timeout_s=0.1)
