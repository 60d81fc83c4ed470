"""Dimensions of clients: connections, client ids, groups, and the members of a group."""

from __future__ import annotations

import asyncio
import selectors
import socket
import struct
import threading
import time
from concurrent.futures import Future

from tidelog_core.batched import batched

from bench.group_joins import GROUP, Crowd, Member, converse
from bench.group_joins import TOPIC as GROUP_TOPIC
from bench.peers.frames import Frames
from bench.peers.topics import PRODUCE, await_partitions, check_produced
from bench.scaling.cluster import HOT, Cluster
from bench.scaling.workload import (
    FETCH,
    RECORD,
    await_committed,
    check_committed,
    commit_frame,
    is_coordinator_late,
)
from tests.support.batches import batch_of
from tests.support.wire_client import (
    WireClient,
    api_versions_request,
    fetch_body,
    frame,
    produce_body,
)

POLLED = "polled"
POLL_MS = 5_000
_AT_ONCE = 50
_COMMITTING_CONNECTIONS = 8
GROUP_PARTITIONS = 100
JOIN_SECONDS_MAX = 120.0


class Connections:
    """Connections that have only requested the API versions, as every client does."""

    def __init__(self) -> None:
        self._clients: list[WireClient] = []

    def grow(self, cluster: Cluster, count: int) -> None:
        """Open the missing connections."""
        while len(self._clients) < count:
            client = cluster.client()
            self._clients.append(client)
            client.call(api_versions_request())

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients:
            client.socket.close()


class LongPolls:
    """Connections that repeat a fetch at the end of one idle partition."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._sockets: list[socket.socket] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        body = fetch_body(POLLED, 0, max_wait_ms=POLL_MS)
        self._request = frame(*FETCH, 1, body, tags=b"")

    def grow(self, cluster: Cluster, count: int) -> None:
        """Open the missing connections, spread over the waiting time of a poll."""
        if not self._sockets:
            cluster.create_topics({POLLED: 1})
            await_partitions(cluster.nodes[0], POLLED, 1)
            self._thread.start()
        pause_seconds = POLL_MS / 1000 / (count - len(self._sockets))
        while len(self._sockets) < count:
            time.sleep(min(pause_seconds, 0.1))
            sock = cluster.client().socket
            self._sockets.append(sock)
            self._selector.register(sock, selectors.EVENT_READ, Frames(sock))
            sock.sendall(self._request)

    def close(self) -> None:
        """Close all connections."""
        self._is_over.set()
        if self._sockets:
            self._thread.join()
        self._selector.close()
        for sock in self._sockets:
            sock.close()

    def _go_on(self) -> None:
        while not self._is_over.is_set():
            for key, _ in self._selector.select(0.2):
                for _ in key.data.receive():
                    key.fileobj.sendall(self._request)  # type: ignore[union-attr]


class ClientIds:
    """Closed clients that each produced a record to the hot partition with an id of their own."""

    def __init__(self) -> None:
        self._count = 0

    def grow(self, cluster: Cluster, count: int) -> None:
        """Produce for the missing clients, over one connection."""
        body = produce_body(HOT, batch_of(RECORD))
        with cluster.client(cluster.await_record()) as client:
            for start in range(self._count, count, _AT_ONCE):
                numbers = range(start, min(start + _AT_ONCE, count))
                client.send(b"".join(_framed(f"client-{n:06}", body) for n in numbers))
                for _ in numbers:
                    check_produced(client.receive(), HOT)
        self._count = count

    def close(self) -> None:
        """Nothing to release."""


def _framed(client_id: str, body: bytes) -> bytes:
    """Return a Produce request of the client."""
    header = struct.pack(">hhih", *PRODUCE, 1, len(client_id)) + client_id.encode()
    return struct.pack(">i", len(header) + len(body)) + header + body


class Groups:
    """Groups without members that each have committed an offset of the hot partition."""

    def __init__(self) -> None:
        self._count = 0

    def grow(self, cluster: Cluster, count: int) -> None:
        """Commit for the missing groups, over several connections: each waits for its answer."""
        cluster.await_coordinator("group-0")
        names = [f"group-{number}" for number in range(self._count, count)]
        clients = [cluster.client() for _ in range(min(_COMMITTING_CONNECTIONS, len(names)))]
        for groups in batched(names, max(1, len(clients))):
            commits = list(zip(clients, groups, strict=False))
            for client, name in commits:
                client.send(commit_frame(name, HOT))
            for client, name in commits:
                answer = client.receive()
                if is_coordinator_late(answer, HOT):
                    await_committed(client, commit_frame(name, HOT), HOT)
                else:
                    check_committed(answer, HOT)
        for client in clients:
            client.socket.close()
        self._count = count

    def close(self) -> None:
        """Nothing to release."""


class Members:
    """Members of one group (KIP-848), each with a connection and its heartbeats."""

    def __init__(self) -> None:
        self._crowd = Crowd([])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._talks: list[Future[None]] = []

    def grow(self, cluster: Cluster, count: int) -> None:
        """Have the missing members join, and wait until all are in one epoch."""
        if not self._thread.is_alive():
            cluster.create_topics({GROUP_TOPIC: GROUP_PARTITIONS})
            cluster.await_coordinator(GROUP)
            self._thread.start()
        for number in range(len(self._crowd.members), count):
            member = Member(b"member-%08d" % number)
            self._crowd.members.append(member)
            talk = converse(cluster.port, self._crowd, [member], time.monotonic())
            self._talks.append(asyncio.run_coroutine_threadsafe(talk, self._loop))
        deadline = time.monotonic() + JOIN_SECONDS_MAX
        while len(self._crowd.joined_at) < count or not self._crowd.is_settled:
            for talk_done in self._talks:
                if talk_done.done():
                    talk_done.result()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{count} members did not settle within {JOIN_SECONDS_MAX} s")
            time.sleep(0.2)

    def close(self) -> None:
        """End the heartbeats and the connections."""
        for talk in self._talks:
            talk.cancel()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.call_later, 0.2, self._loop.stop)
            self._thread.join()
        self._loop.close()
