"""What one client can cost a node, and what of its requests counts when it is gone."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.index import load_request_schema

from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient, api_versions_request, frame

REQUEST_BYTES_MAX = 20_000_000
WIDE_TOPIC_PARTITIONS = 2000
ALL_TOPICS = frame(3, 1, 1, struct.pack(">i", -1), tags=b"")  # a Metadata request


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    config = {
        "socket.request.max.bytes": str(REQUEST_BYTES_MAX),
        "connections.max.idle.ms": "3000",
    }
    with NodeProcess(tmp_path_factory.mktemp("limits") / "node", config=config) as process:
        admin = AdminClient({"bootstrap.servers": process.address})
        admin.create_topics([NewTopic("wide", WIDE_TOPIC_PARTITIONS, 1)])["wide"].result(30)
        yield process


def join_body(group: str, member_id: str = "") -> bytes:
    """Return the body of a JoinGroup request of version 1, with a session of 6 s."""
    return (
        string(group)
        + struct.pack(">ii", 6000, 60_000)
        + string(member_id)
        + string("consumer")
        + struct.pack(">i", 1)
        + string("range")
        + struct.pack(">i", 6)
        + b"\x00\x00\x00\x00\x00\x00"
    )


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def commit_body(group: str, member_id: str, offset: int) -> bytes:
    """Return the body of an OffsetCommit request of version 2, in generation 1."""
    return (
        string(group)
        + struct.pack(">i", 1)
        + string(member_id)
        + struct.pack(">qi", -1, 1)
        + string("wide")
        + struct.pack(">iiq", 1, 0, offset)
        + string("")
    )


def join(client: WireClient, group: str) -> str:
    """Make the client the group's only member, coordinator and all, and return its id."""
    coordinator_schema: Any = load_request_schema(10, 0)
    eventually(lambda: client.call(coordinator_schema(key=group)).error_code.value == 0)
    client.send(frame(11, 1, 1, join_body(group), tags=b""))
    answer = client.receive()
    code, generation, protocol_length = struct.unpack_from(">hih", answer, 4)
    assert (code, generation) == (0, 1)
    position = 12 + protocol_length
    (leader_length,) = struct.unpack_from(">h", answer, position)
    return answer[position + 2 : position + 2 + leader_length].decode()


def test_requests_sent_before_hanging_up_are_carried_out(node: NodeProcess) -> None:
    with WireClient(node.port) as client:
        member_id = join(client, "hasty")
        sync = string("hasty") + struct.pack(">i", 1) + string(member_id) + struct.pack(">i", 0)
        client.send(frame(14, 0, 1, sync, tags=b""))
        client.receive()
        requests = [
            frame(8, 2, 1, commit_body("hasty", member_id, offset), tags=b"")
            for offset in range(1, 6)
        ]
        requests.append(frame(13, 0, 1, string("hasty") + string(member_id), tags=b""))
        client.send(b"".join(requests))
    with WireClient(node.port) as client:
        describe: Any = load_request_schema(15, 0)
        eventually(
            lambda: client.call(describe(groups=("hasty",))).groups[0].group_state == "Empty"
        )
        fetch = string("hasty") + struct.pack(">i", 1) + string("wide") + struct.pack(">ii", 1, 0)
        client.send(frame(9, 1, 1, fetch, tags=b""))
        assert struct.pack(">iq", 0, 5) in client.receive()


def test_sizes_alone_cost_next_to_nothing(node: NodeProcess) -> None:
    with WireClient(node.port) as client, contextlib.ExitStack() as stack:
        client.call(api_versions_request())
        before = node.rss_bytes()
        for _ in range(300):
            other = stack.enter_context(WireClient(node.port))
            other.send(struct.pack(">i", REQUEST_BYTES_MAX - 1) + b"\x00")
        client.call(api_versions_request())
        assert node.rss_bytes() - before < 20_000_000


def test_only_records_may_come_in_large_requests(node: NodeProcess) -> None:
    def delete_topics(count: int) -> bytes:
        names = struct.pack(">i", count) + string("nope") * count
        return frame(20, 1, 1, names + struct.pack(">i", 1), tags=b"")

    with WireClient(node.port) as client:
        client.send(delete_topics(100_000))
        assert client.receive()
        before = node.rss_bytes()
        with contextlib.suppress(ConnectionError):  # closed before all of it is sent
            client.send(delete_topics(3_000_000))
        assert client.is_closed_by_node()
        assert node.rss_bytes() - before < 40_000_000
    node.wait_logged("a request of API 20 of 18000022 bytes, allowed are 8388608")


def test_answers_that_nobody_takes_are_not_made(node: NodeProcess) -> None:
    with WireClient(node.port) as slow, WireClient(node.port) as other:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        slow.send(ALL_TOPICS)
        size_bytes = len(slow.receive())
        assert size_bytes > 50_000
        before = node.rss_bytes()
        slow.send(ALL_TOPICS * 400)
        time.sleep(1)
        assert other.call(api_versions_request()).api_keys
        assert node.rss_bytes() - before < 10_000_000
        for _ in range(400):
            assert len(slow.receive()) == size_bytes


def test_requests_behind_one_that_waits_are_not_read_without_end(node: NodeProcess) -> None:
    with WireClient(node.port) as first, WireClient(node.port) as second:
        join(first, "slow")
        before = node.rss_bytes()
        # Waits for the first member, which does not come back.
        second.send(frame(11, 1, 1, join_body("slow"), tags=b""))
        names = struct.pack(">i", 200_000) + b"\x00\x00" * 200_000
        second.socket.setblocking(False)
        deadline = time.monotonic() + 2
        waiting = frame(20, 1, 1, names + struct.pack(">i", 1), tags=b"") * 100
        while time.monotonic() < deadline and waiting:
            try:
                waiting = waiting[second.socket.send(waiting) :]
            except BlockingIOError:
                time.sleep(0.01)
        assert waiting
        assert node.rss_bytes() - before < 40_000_000


def test_a_client_that_takes_no_answers_is_closed_when_it_is_idle(node: NodeProcess) -> None:
    with WireClient(node.port) as slow:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        slow.send(ALL_TOPICS * 400)
        client_port = slow.socket.getsockname()[1]
        eventually(lambda: not is_established(node.port, client_port), "the node has closed it")
        with pytest.raises((EOFError, ConnectionError)):
            [slow.receive() for _ in range(400)]


def is_established(port: int, client_port: int) -> bool:
    """Return whether the server at the port still holds its end of the client's connection."""
    ends = (line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return any(
        (int(local[-4:], 16), int(remote[-4:], 16), state) == (port, client_port, "01")
        for local, remote, state in ends
    )
