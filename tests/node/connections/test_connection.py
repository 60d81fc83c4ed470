"""Framing, order, limits and bad input, over real sockets against one node process."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.wire_client import (
    WireClient,
    api_versions_request,
    encode,
    fetch_body,
    frame,
    produce_body,
)

REQUEST_BYTES_MAX = 2_000_000
SEED = 20_240_607


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for all tests here, with small limits."""
    config = {
        "socket.request.max.bytes": str(REQUEST_BYTES_MAX),
        "queued.max.requests": "10",
        "connections.max.idle.ms": "3000",
        "message.max.bytes": str(REQUEST_BYTES_MAX),
    }
    with NodeProcess(tmp_path_factory.mktemp("connection") / "node", config=config) as process:
        admin = AdminClient({"bootstrap.servers": process.address})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
        yield process


def is_alive(node: NodeProcess) -> bool:
    with WireClient(node.port) as client:
        return bool(client.call(api_versions_request()).api_keys)


def end_offset(client: WireClient) -> int:
    high_watermark: int = client.fetch("t", 0, partition_max_bytes=1).high_watermark
    return high_watermark


def test_pipelined_requests_are_answered_in_order(node: NodeProcess) -> None:
    with WireClient(node.port) as client:
        start = end_offset(client)
        requests = b""
        for number in range(0, 300, 3):
            requests += frame(0, 8, number, produce_body("t", batch_of(b"x")), tags=b"")
            # A long poll, which must hold back what comes after it, and a control request.
            body = fetch_body("t", start, max_wait_ms=5)
            requests += frame(1, 11, number + 1, body, tags=b"")
            body = encode(type(api_versions_request()), api_versions_request())
            requests += frame(18, 0, number + 2, body, tags=b"")
        client.send(requests)
        correlation_ids = [struct.unpack_from(">i", client.receive())[0] for _ in range(300)]
        assert correlation_ids == list(range(300))
        assert end_offset(client) == start + 100


def test_a_long_poll_is_answered_by_an_append_from_another_connection(node: NodeProcess) -> None:
    with WireClient(node.port) as reader, WireClient(node.port) as writer:
        start = end_offset(reader)
        reader.send(frame(1, 11, 99, fetch_body("t", start, max_wait_ms=120_000), tags=b""))
        time.sleep(0.1)
        began = time.monotonic()
        writer.produce("t", batch_of(b"news"))
        assert b"news" in reader.receive()
        assert time.monotonic() - began < 60


def test_a_long_poll_ends_when_its_time_is_up(node: NodeProcess) -> None:
    with WireClient(node.port) as client:
        start = end_offset(client)
        began = time.monotonic()
        assert client.fetch("t", start, max_wait_ms=300).records in (None, b"")
        assert 0.25 < time.monotonic() - began < 60


def test_a_long_poll_waits_for_its_minimum_of_bytes(node: NodeProcess) -> None:
    with WireClient(node.port) as reader, WireClient(node.port) as writer:
        start = end_offset(reader)
        size = len(batch_of(b"x" * 100))
        body = fetch_body("t", start, max_wait_ms=120_000, min_bytes=2 * size)
        reader.send(frame(1, 11, 1, body, tags=b""))
        writer.produce("t", batch_of(b"x" * 100))
        reader.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            reader.socket.recv(1)
        reader.socket.settimeout(60)
        writer.produce("t", batch_of(b"y" * 100))
        answer = reader.receive()
        assert b"x" * 100 in answer
        assert b"y" * 100 in answer


def test_a_request_may_come_byte_by_byte(node: NodeProcess) -> None:
    with WireClient(node.port) as client:
        start = end_offset(client)
        request = frame(0, 8, 5, produce_body("t", batch_of(b"slow")), tags=b"")
        for index in range(len(request)):
            client.send(request[index : index + 1])
        assert struct.unpack_from(">i", client.receive()) == (5,)
        assert end_offset(client) == start + 1


@pytest.mark.parametrize("size", [60_000, 131_068, 131_072, 200_000, 1_900_000])
def test_large_and_small_requests_mix_at_any_boundary(node: NodeProcess, size: int) -> None:
    with WireClient(node.port) as client:
        start = end_offset(client)
        small = frame(0, 8, 1, produce_body("t", batch_of(b"small")), tags=b"")
        large = frame(0, 8, 2, produce_body("t", batch_of(b"L" * size)), tags=b"")
        stream = (small + large + large + small) * 2
        step = 70_001
        for index in range(0, len(stream), step):
            client.send(stream[index : index + step])
        answers = [struct.unpack_from(">i", client.receive())[0] for _ in range(8)]
        assert answers == [1, 2, 2, 1] * 2
        assert end_offset(client) == start + 8
        # What was stored is what was sent.
        records = client.fetch("t", start + 1, partition_max_bytes=1).records
        assert records is not None
        assert b"L" * size in bytes(records)


@pytest.mark.parametrize("size", [REQUEST_BYTES_MAX + 1, 2**31 - 1, 7, 0, -1])
def test_a_request_of_a_wrong_size_closes_the_connection(node: NodeProcess, size: int) -> None:
    with WireClient(node.port) as client:
        client.send(struct.pack(">i", size) + b"\x00" * 100)
        assert client.is_closed_by_node()
    node.wait_logged(f"a request of {size} bytes, allowed are 8 to {REQUEST_BYTES_MAX}")
    assert is_alive(node)


def test_a_size_alone_costs_no_memory(node: NodeProcess) -> None:
    with WireClient(node.port) as client:
        client.call(api_versions_request())
        before = node.rss_bytes()
        clients = [WireClient(node.port) for _ in range(50)]
        for other in clients:
            other.send(struct.pack(">i", REQUEST_BYTES_MAX - 1) + b"\x00")
        client.call(api_versions_request())
        assert node.rss_bytes() - before < 150_000_000
        for other in clients:
            other.socket.close()


@pytest.mark.parametrize(
    ("api_key", "version"), [(999, 0), (-1, 0), (0, 99), (0, 2), (1, 3), (3, 99), (18_000, 1)]
)
def test_an_unknown_api_or_version_closes_the_connection(
    node: NodeProcess, api_key: int, version: int
) -> None:
    with WireClient(node.port) as client:
        client.send(frame(api_key, version, 1, b"\x00" * 50, tags=b""))
        assert client.is_closed_by_node()
    node.wait_logged(f"version {version} of API {api_key} is not supported")


def test_an_unsupported_version_of_api_versions_is_answered_with_its_own_versions(
    node: NodeProcess,
) -> None:
    """Source: KIP-511."""
    with WireClient(node.port) as client:
        client.send(frame(18, 99, 7, b"\x00" * 20, tags=b"\x00"))
        answer = client.receive()
        assert struct.unpack(">ihihhh", answer) == (7, 35, 1, 18, 0, 4)
        assert client.call(api_versions_request(3)).api_keys


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lists_what_clients_look_for(node: NodeProcess, version: int) -> None:
    with WireClient(node.port) as client:
        response = client.call(api_versions_request(version))
    ranges = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    assert ranges[0] == (0, 13)
    assert ranges[1] == (4, 18)
    assert ranges[2][1] == 11
    assert ranges[18] == (0, 4)


def test_garbage_never_harms_the_node(node: NodeProcess) -> None:
    random.seed(SEED)
    for _ in range(150):
        with WireClient(node.port) as client:
            api_key, version = random.randrange(-1, 80), random.randrange(-1, 20)
            body = random.randbytes(random.randrange(400))
            try:
                for data in (frame(api_key, version, 1, body, tags=b""), random.randbytes(64)):
                    client.send(data)
                client.socket.settimeout(0.05)
                client.socket.recv(100)
            except (ConnectionError, TimeoutError):
                pass
    assert is_alive(node)
    assert "Traceback" not in node.log


def test_mutated_requests_never_harm_the_node(node: NodeProcess) -> None:
    """Requests that are nearly right reach deeper than noise does."""
    random.seed(SEED)
    with WireClient(node.port) as client:
        start = end_offset(client)
    requests = [
        frame(0, 8, 1, produce_body("t", batch_of(b"value", b"other")), tags=b""),
        frame(1, 11, 1, fetch_body("t", start), tags=b""),
    ]
    for round_index in range(200):
        data = bytearray(requests[round_index % 2])
        for _ in range(random.randrange(1, 4)):
            data[random.randrange(4, len(data))] = random.randrange(256)
        with WireClient(node.port) as client:
            client.send(bytes(data))
            client.socket.settimeout(0.05)
            with contextlib.suppress(ConnectionError, TimeoutError):
                client.socket.recv(1000)
    assert is_alive(node)
    assert "Traceback" not in node.log


def test_a_reader_that_does_not_read_stops_being_served(node: NodeProcess) -> None:
    with WireClient(node.port) as client:
        for _ in range(8):
            client.produce("t", batch_of(b"D" * 900_000))
        start = end_offset(client) - 8
    with WireClient(node.port) as slow, WireClient(node.port) as other:
        before = node.rss_bytes()
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        request = frame(1, 11, 1, fetch_body("t", start, partition_max_bytes=60_000), tags=b"")
        request += frame(1, 11, 1, fetch_body("t", start, partition_max_bytes=900_100), tags=b"")
        slow.socket.setblocking(False)
        sent = 0
        for _ in range(2000):
            try:
                sent += slow.socket.send(request)
            except BlockingIOError:
                time.sleep(0.001)
        assert other.call(api_versions_request()).api_keys
        assert node.rss_bytes() - before < 60_000_000
        # Once it reads again it gets every answer that it is pending.
        slow.socket.settimeout(60)
        for _ in range(min(sent // len(request), 100)):
            assert len(slow.receive()) > 60_000


def test_a_silent_connection_is_closed(node: NodeProcess) -> None:
    with WireClient(node.port) as client:
        client.call(api_versions_request())
        assert client.is_closed_by_node()


def test_a_client_that_leaves_during_a_long_poll_leaves_nothing_behind(node: NodeProcess) -> None:
    for _ in range(20):
        client = WireClient(node.port)
        client.send(frame(1, 11, 1, fetch_body("t", 10**6, max_wait_ms=10_000), tags=b""))
        client.send(
            frame(1, 11, 1, fetch_body("t", end_offset_of(node), max_wait_ms=10**4), tags=b"")
        )
        client.socket.close()
    assert is_alive(node)
    assert "Traceback" not in node.log


def end_offset_of(node: NodeProcess) -> int:
    with WireClient(node.port) as client:
        return end_offset(client)
