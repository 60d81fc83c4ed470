"""What clients do: one packet, one request, one connection too many."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
import time
from contextlib import ExitStack

from bench.group_joins import GROUP, Crowd, Member, join_all
from bench.group_joins import TOPIC as GROUP_TOPIC
from tests.attack.scene import ANSWER_SECONDS_MAX, AttackSucceeded, all_live
from tests.support import hostile_frames as frames
from tests.support.arena import Arena
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient, frame, produce_body

SILENCE_SECONDS = 3.0
FRAME_BYTES = 50_000_000
JOIN_RAMP_SECONDS = 20.0
JOIN_SECONDS_MAX = 120.0


def send_29_bytes(arena: Arena, _size: float) -> str:
    """Claim an array of 2^32 elements to each node."""
    for port in arena.ports:
        with WireClient(port) as client:
            client.send(frames.HUGE_ARRAY)
            if not client.is_closed_by_node():
                raise AttackSucceeded("it was answered")
    all_live(arena)
    return "closed, and the node lives"


def send_unknown_tags(arena: Arena, _size: float) -> str:
    """Send tagged fields that nobody knows."""
    requests = frames.with_unknown_tags()
    for name, request in requests.items():
        with WireClient(arena.ports[0]) as client:
            client.send(request)
            try:
                client.receive()
            except (EOFError, ConnectionResetError):
                raise AttackSucceeded(f"{name} closed the connection") from None
    return f"{len(requests)} kinds of requests answered"


def send_big_requests(arena: Arena, size: float) -> str:
    """Send one request of each kind whose answer takes seconds to make."""
    requests = {
        "Metadata": frames.metadata_of_unknown_topics(int(700_000 * size)),
        "OffsetFetch": frames.offset_fetch_of_partitions(int(1_900_000 * size)),
        "DescribeGroups": frames.describe_groups(int(500_000 * size)),
        "Produce": frames.produce_of_empty_partitions(int(1_000_000 * size)),
    }
    seen = []
    for name, request in requests.items():
        started = time.monotonic()
        answer = _send_and_wait(arena.ports[0], request)
        seen.append(f"{name} {answer} in {time.monotonic() - started:.1f} s")
    all_live(arena)
    return ", ".join(seen)


def _send_and_wait(port: int, request: bytes) -> str:
    """Return whether a request was answered or refused."""
    with WireClient(port) as client:
        client.socket.settimeout(ANSWER_SECONDS_MAX)
        try:
            client.send(request)
            return f"{len(client.receive()):,} bytes"
        except (EOFError, ConnectionResetError, BrokenPipeError):
            return "refused"


def leave_frames_unfinished(arena: Arena, size: float) -> str:
    """Send half of a large frame on each of many connections, and then nothing."""
    count = max(10, int(200 * size))
    half = memoryview(bytes(FRAME_BYTES // 2))
    head = struct.pack(">ihhi", FRAME_BYTES, 0, 8, 1)
    with ExitStack() as stack:
        clients = [stack.enter_context(WireClient(arena.ports[0])) for _ in range(count)]
        left = {}
        for client in clients:
            client.send(head)
            client.socket.setblocking(False)
            left[client.socket] = half
        taken_bytes = _push(left, seconds_silent=SILENCE_SECONDS)
        all_live(arena)
    return f"{count} connections, {taken_bytes / 1e9:.2f} GB of them were taken in"


def _push(left: dict[socket.socket, memoryview], *, seconds_silent: float) -> int:
    """Send what is left on each until nobody takes any for so long; return how much was taken."""
    sent_bytes, quiet_since = 0, time.monotonic()
    while left and time.monotonic() - quiet_since < seconds_silent:
        _, ready, _ = select.select([], list(left), [], 0.2)
        for client in ready:
            try:
                count = client.send(left[client][:1_048_576])
            except BlockingIOError:
                continue
            except OSError:  # closed by the node
                del left[client]
                continue
            sent_bytes += count
            quiet_since = time.monotonic()
            left[client] = left[client][count:]
            if not left[client]:
                del left[client]
    return sent_bytes


def send_batches_to_decode(arena: Arena, size: float) -> str:
    """Produce batches of a million tiny records to a compacted topic."""
    topic = f"compacted-{os.urandom(4).hex()}"
    arena.cluster.create(topic, cleanup_policy="compact", max_message_bytes="4000000")
    batch = frames.batch_of_small_records(int(1_200_000 * size))
    port = arena.cluster.node_leading(topic).port
    codes = []
    for _ in range(3):
        with WireClient(port) as client:
            client.socket.settimeout(ANSWER_SECONDS_MAX)
            client.send(frame(0, 8, 1, produce_body(topic, batch), tags=b""))
            answer = client.receive()
            # correlation id, topics, name, partitions, index: then the error code
            codes.append(struct.unpack_from(">h", answer, 4 + 4 + 2 + len(topic) + 4 + 4)[0])
    return f"batches of {len(batch):,} bytes, error codes {codes}"


def join_a_group(arena: Arena, size: float) -> str:
    """Have thousands of members of KIP-848 join one group within twenty seconds."""
    arena.cluster.create(GROUP_TOPIC, partitions=100)
    crowd = Crowd([Member(b"member-%08d" % number) for number in range(int(10_000 * size))])
    started = time.monotonic()
    port = _coordinator_port(arena)
    asyncio.run(join_all(port, crowd, JOIN_RAMP_SECONDS * size, JOIN_SECONDS_MAX))
    if len(crowd.joined_at) < len(crowd.members):
        raise AttackSucceeded(f"{len(crowd.joined_at)} of {len(crowd.members)} joined")
    return f"{len(crowd.members):,} members joined in {max(crowd.joined_at) - started:.1f} s"


def _coordinator_port(arena: Arena) -> int:
    """Return where the group's coordinator listens, once there is one."""
    name = GROUP.encode()
    request = frame(10, 0, 1, struct.pack(">h", len(name)) + name, tags=b"")
    deadline = time.monotonic() + JOIN_SECONDS_MAX
    while time.monotonic() < deadline:
        with WireClient(arena.ports[0]) as client:
            client.send(request)
            error, node_id = struct.unpack_from(">hi", client.receive(), 4)
        if error == 0:
            return arena.nodes[node_id].port
        time.sleep(0.2)
    raise AttackSucceeded("the group has no coordinator")


def make_many_topics(arena: Arena, size: float) -> str:
    """Create topics by the thousand, check more of them, and name some that are to be made."""
    prefix, port = os.urandom(3).hex(), arena.ports[0]
    requests = {
        "checked": frames.create_topics(int(100_000 * size), is_validation=True, prefix=prefix),
        "created": frames.create_topics(int(3_000 * size), is_validation=False, prefix=prefix),
        "named": frames.metadata_of_new_topics(int(2_000 * size), prefix=f"{prefix}-auto"),
    }
    seen = []
    for what, request in requests.items():
        started = time.monotonic()
        answer = _send_and_wait(port, request)
        seen.append(f"{what} in {time.monotonic() - started:.1f} s ({answer})")
    for last in (
        f"{prefix}{int(3_000 * size) - 1:06d}",
        f"{prefix}-auto{int(2_000 * size) - 1:06d}",
    ):
        eventually(lambda last=last: _has_leader(arena, last), f"{last} has a leader")
    return ", ".join(seen)


def _has_leader(arena: Arena, topic: str) -> bool:
    try:
        return arena.cluster.leader(topic) > 0
    except KeyError:  # nobody knows it yet
        return False
