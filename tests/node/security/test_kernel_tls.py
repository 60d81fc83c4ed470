"""Listeners with ``ssl.ktls.enable``: who gets in, what is logged, and real clients.

``make test-ktls`` runs these tests on a kernel that has TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from tidelog_core.config import ListenerConfig
from tidelog_node.answers import Answer
from tidelog_node.connections.read_watch import ReadWatch
from tidelog_node.requests.session import Session
from tidelog_node.security.kernel_tls import listeners_with_kernel_tls, obstacle_to_kernel_tls
from tidelog_node.security.listeners import Listener, SecurityProtocol

from tests.node.security.tls_server import ask, tls_server
from tests.support.certificates import Authority
from tests.support.key_updating_client import KeyUpdatingClient
from tests.support.node_process import NodeProcess
from tools.ports import free_port

HAS_KERNEL_TLS = not obstacle_to_kernel_tls()
KERNEL_COUNTS = Path("/proc/net/tls_stat")
SECONDS_MAX = 120.0
RECORDS = 100
SPENT_BYTES, REQUEST_BYTES, ANSWER_BYTES = 250_000, 100_000, 5_000
REQUESTS = 20
VALUES = [struct.pack(">i", number) * 5_000 for number in range(RECORDS)]


@pytest.fixture
def watch() -> Iterator[ReadWatch]:
    with contextlib.closing(ReadWatch()) as watch:
        yield watch


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_clients_are_known_by_their_certificates(
    version: ssl.TLSVersion, tmp_path: Path, watch: ReadWatch
) -> None:
    authority = Authority(tmp_path / "authority")
    config = ListenerConfig(
        ssl_keystore_location=str(authority.node_pem()),
        ssl_truststore_location=str(authority.trusted),
        ssl_client_auth="required",
        ssl_principal_mapping_rules="RULE:^CN=([a-z]+),OU=team.*$/$1/",
        ssl_ktls_enable=True,
    )
    known = authority.client_context(authority.client_pem("alice"))
    known.maximum_version = version
    nobody = authority.client_context()
    nobody.maximum_version = version
    async with tls_server(config, watch=watch) as (_, port), asyncio.timeout(SECONDS_MAX):
        assert await ask(port, known) == "User:alice"
        with pytest.raises(ConnectionError):
            await ask(port, nobody)
        assert await ask(port, known) == "User:alice"


def listener(name: str, *, is_on: bool, protocol: SecurityProtocol) -> Listener:
    return Listener(name=name, protocol=protocol, config=ListenerConfig(ssl_ktls_enable=is_on))


def test_one_line_says_whether_the_kernel_has_tls(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    asked = [
        listener("A", is_on=True, protocol=SecurityProtocol.SSL),
        listener("B", is_on=True, protocol=SecurityProtocol.SASL_SSL),
        listener("C", is_on=False, protocol=SecurityProtocol.SSL),
        listener("D", is_on=True, protocol=SecurityProtocol.PLAINTEXT),
    ]
    assert listeners_with_kernel_tls(asked) == ({"A", "B"} if HAS_KERNEL_TLS else set())
    [record] = caplog.records
    assert record.__dict__["listeners"] == "A, B"
    assert record.levelname == ("INFO" if HAS_KERNEL_TLS else "WARNING")
    if not HAS_KERNEL_TLS:
        assert record.__dict__["reason"] == obstacle_to_kernel_tls()


def test_nothing_is_asked_or_logged_unless_it_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert not listeners_with_kernel_tls(
        [
            listener("A", is_on=False, protocol=SecurityProtocol.SSL),
            listener("B", is_on=True, protocol=SecurityProtocol.PLAINTEXT),
        ]
    )
    assert not caplog.records


async def test_a_spent_connection_ends_between_two_requests(
    tmp_path: Path, watch: ReadWatch
) -> None:
    """So a client that would want new keys after twice as much never comes to that."""
    authority = Authority(tmp_path / "authority")
    config = ListenerConfig(ssl_keystore_location=str(authority.node_pem()), ssl_ktls_enable=True)
    sessions: list[Session] = []

    def answer(frame: memoryview, session: Session) -> Answer:
        if session not in sessions:
            sessions.append(session)
        return [answer_to(frame)]

    async with (
        tls_server(config, answer, watch=watch, spent_bytes=SPENT_BYTES) as (_, port),
        asyncio.timeout(SECONDS_MAX),
    ):
        await asyncio.to_thread(ask_often, port, authority, tmp_path)
    requests_each = math.ceil(SPENT_BYTES / REQUEST_BYTES)
    assert len(sessions) == (math.ceil(REQUESTS / requests_each) if HAS_KERNEL_TLS else 1)


def ask_often(port: int, authority: Authority, tmp_path: Path) -> None:
    """Ask until several keys are spent, and connect again when the node closes the connection.

    The client wants a new key of the node after ``2 * SPENT_BYTES``, which would end a connection
    with kernel TLS.
    """
    client, sent_bytes = key_updating_client(port, authority, tmp_path / "keys"), 0
    for number in range(REQUESTS):
        request = bytes([number]) * REQUEST_BYTES
        answer = b""
        while not answer:
            if sent_bytes >= 2 * SPENT_BYTES:
                client.socket.sendall(client.key_updates(1, are_requests=True))
                sent_bytes = 0
            with contextlib.suppress(ConnectionError):
                client.socket.sendall(client.records(struct.pack(">i", REQUEST_BYTES) + request))
                sent_bytes += REQUEST_BYTES
                answer = client.receive(ANSWER_BYTES)
            if not answer:
                client.socket.close()
                key_log = tmp_path / f"keys{number}"
                client, sent_bytes = key_updating_client(port, authority, key_log), 0
        assert answer == answer_to(memoryview(request))
    client.socket.close()


def key_updating_client(port: int, authority: Authority, key_log: Path) -> KeyUpdatingClient:
    sock = socket.create_connection(("127.0.0.1", port), SECONDS_MAX)
    client = KeyUpdatingClient(sock, authority.client_context(), key_log)
    while not client.go_on():
        pass
    return client


def answer_to(frame: memoryview) -> bytes:
    return struct.pack(">i", ANSWER_BYTES - 4) + bytes([frame[0]]) * (ANSWER_BYTES - 4)


def test_real_clients_get_what_they_have_sent(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    ports = {"OLD": free_port(), "NEW": free_port()}
    config = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "listener.security.protocol.map": "OLD:SSL,NEW:SSL",
        "listener.name.old.ssl.enabled.protocols": "TLSv1.2",
        "listener.name.new.ssl.enabled.protocols": "TLSv1.3",
        "ssl.keystore.location": str(authority.node_pem()),
        "ssl.ktls.enable": "true",
    }
    before = kernel_count("TlsTxSw")
    with NodeProcess(tmp_path / "node", port=ports["OLD"], config=config) as node:
        for name, port in ports.items():
            settings = {
                "bootstrap.servers": f"127.0.0.1:{port}",
                "security.protocol": "SSL",
                "ssl.ca.location": str(authority.trusted),
            }
            produce(settings, topic=name)
            connections = kernel_count("TlsTxSw")
            assert consumed(settings, topic=name) == VALUES
            assert (kernel_count("TlsTxSw") > connections > before) == HAS_KERNEL_TLS
        log = node.log
    assert log.count("kernel TLS") == 1


def produce(settings: dict[str, str], topic: str) -> None:
    producer = confluent_kafka.Producer({**settings, "linger.ms": 20})
    for value in VALUES:
        producer.produce(topic, value, partition=0)
    assert producer.flush(SECONDS_MAX) == 0


def consumed(settings: dict[str, str], topic: str) -> list[bytes | None]:
    consumer = confluent_kafka.Consumer(
        {**settings, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    while len(values) < RECORDS:
        values += (message.value() for message in consumer.consume(RECORDS, timeout=SECONDS_MAX))
    consumer.close()
    return values


def kernel_count(name: str) -> int:
    """Return how many connections the kernel has taken keys of, 0 if it has no TLS."""
    if not KERNEL_COUNTS.exists():
        return 0
    counts = dict(line.split() for line in KERNEL_COUNTS.read_text().splitlines())
    return int(counts[name])
