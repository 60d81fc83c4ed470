"""A node under clients that never log in, while others do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from tidelog import Admin, Sasl
from tidelog_core.software_version import tidelog_version

from tests.support.sasl_node import PASSWORD, TOPIC, USER, SaslNode
from tests.support.waiting import eventually

SOCKETS = 1000
MIB = 1 << 20


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslNode]:
    with SaslNode(tmp_path_factory.mktemp("sasl") / "node") as node:
        node.prepare()
        produce(node)  # what a login loads is loaded
        yield node


def produce(node: SaslNode) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": node.sasl_address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }
    )
    producer.produce(TOPIC, b"v", partition=0)
    assert producer.flush(60) == 0


@pytest.mark.parametrize("sent_bytes", [0, 9, 8_000, 200_000])
def test_half_open_sockets_take_little_memory_and_others_log_in(
    node: SaslNode, sent_bytes: int
) -> None:
    """CVE-2022-34917. Each announces the largest frame and sends a part of it."""
    before = node.rss_bytes()
    data = struct.pack(">i", 524_288) + bytes(sent_bytes)
    with contextlib.ExitStack() as stack:
        for _ in range(SOCKETS):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", node.sasl_port)))
            with contextlib.suppress(ConnectionError):  # closed, as one too many
                client.sendall(data)
        produce(node)
        grown = node.rss_bytes() - before
        assert grown < 64 * MIB, f"{grown / MIB:.0f} MiB"
    assert "Traceback" not in node.log


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def of_api(api_key: int, version: int, body: bytes, *, tags: bytes = b"") -> bytes:
    return framed(struct.pack(">hhih", api_key, version, 1, -1) + tags + body)


def test_strangers_are_not_told_the_version_and_who_logs_in_is(node: SaslNode) -> None:
    request = of_api(18, 3, b"\x02a\x02b\0", tags=b"\0")
    with socket.create_connection(("127.0.0.1", node.sasl_port), timeout=60) as stranger:
        stranger.sendall(request)
        size = int.from_bytes(stranger.recv(4, socket.MSG_WAITALL), "big")
        answer = stranger.recv(size, socket.MSG_WAITALL)
    assert b"transaction.version" in answer
    assert b"tidelog.version" not in answer

    async def versions() -> set[str | None]:
        async with Admin(node.sasl_address, sasl=Sasl("PLAIN", USER, PASSWORD)) as admin:
            return set((await admin.describe_versions()).values())

    assert asyncio.run(versions()) == {tidelog_version()}


HUGE = b"\xff\xff\xff\xff\x0f"  # 2^32 - 1, the largest of compact lengths
LARGEST = struct.pack(">i", 2**31 - 1)
CLAIMS = {
    "a frame of 2^31 bytes": LARGEST,
    "a software name of 2^32 bytes": of_api(18, 3, HUGE + b"name", tags=b"\0"),
    "2^32 tagged fields": of_api(18, 3, b"\x02a\x02b" + HUGE, tags=b"\0"),
    "2^32 tagged fields in the header": of_api(18, 3, b"", tags=HUGE),
    "a tagged field of 2^32 bytes": of_api(18, 3, b"\x02a\x02b\x01\x00" + HUGE, tags=b"\0"),
    "a mechanism of 2^15 bytes": of_api(17, 1, b"\x7f\xffPLAIN"),
    "a token of 2^31 bytes": of_api(17, 1, b"\0\x05PLAIN") + of_api(36, 1, LARGEST + b"token"),
    "a compact token of 2^32 bytes": of_api(17, 1, b"\0\x05PLAIN")
    + of_api(36, 2, HUGE + b"token", tags=b"\0"),
    "2^31 topics": of_api(3, 1, LARGEST),
    "a raw token of 2^31 bytes": of_api(17, 0, b"\0\x05PLAIN") + LARGEST,
}


@pytest.mark.parametrize(
    "claims",
    [list(CLAIMS), *(pytest.param([name], marks=pytest.mark.slow) for name in CLAIMS)],
    ids=lambda claims: "all" if len(claims) > 1 else claims[0],
)
def test_what_strangers_announce_costs_no_memory(node: SaslNode, claims: list[str]) -> None:
    """CVE-2022-34917: brokers allocated what a size said. None of the sockets sends more."""
    before = node.rss_bytes()
    with contextlib.ExitStack() as stack:
        for number in range(SOCKETS):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", node.sasl_port)))
            with contextlib.suppress(ConnectionError):
                client.sendall(CLAIMS[claims[number % len(claims)]])
        produce(node)
        grown = node.rss_bytes() - before
        assert grown < 64 * MIB, f"{grown / MIB:.0f} MiB"
    assert "Traceback" not in node.log


def test_a_thousand_rounds_end_after_a_few(node: SaslNode) -> None:
    """ApiVersions of an unknown version may be repeated in Kafka without end."""
    frame = struct.pack(">ihhih", 11, 18, 99, 7, -1) + b"\0"
    with socket.create_connection(("127.0.0.1", node.sasl_port)) as client:
        client.settimeout(60)
        with contextlib.suppress(ConnectionError):
            client.sendall(frame * 1000)
        received = 0
        with contextlib.suppress(ConnectionError):
            while data := client.recv(65_536):
                received += len(data)
    assert received < 20 * 50
    produce(node)


def test_a_stopping_node_does_not_wait_for_strangers(tmp_path: Path) -> None:
    with SaslNode(tmp_path / "node") as node, contextlib.ExitStack() as stack:
        for _ in range(5):
            client = socket.create_connection(("127.0.0.1", node.sasl_port))
            stack.enter_context(client).sendall(b"\0")
        eventually(lambda: len(node.open_files()) > 5)
        assert node.stop() == 0
        assert "Traceback" not in node.log
        node.start()
