"""How the connections of one loop share its time, on real sockets in this process."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest
from tidelog_core.model import FileSlice, ReadableFile
from tidelog_node.answers import Answer, CloseConnection, PendingReply, Reply, TaskReply
from tidelog_node.connections import segment_sender
from tidelog_node.connections.connection import Connection
from tidelog_node.requests.session import Session

from tests.node.connections.served_connections import REQUEST, connect, unread_bytes
from tests.support.cold_files import write_cold
from tests.support.waiting import eventually_async

SLICE_BYTES = 300_000
TURN_BYTES = 65_536


async def test_a_large_answer_is_sent_in_turns_with_the_requests_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_sender, "SLICE_BYTES_PER_TURN", TURN_BYTES)
    data = os.urandom(SLICE_BYTES)
    (tmp_path / "log").write_bytes(data)

    async with asyncio.timeout(30):
        sent_before: list[int] = []

        def answer_large(_: memoryview, __: Session) -> Reply:
            return [FileSlice(ReadableFile(tmp_path / "log"), 0, SLICE_BYTES)]

        def answer_small(_: memoryview, __: Session) -> Reply:
            sent_before.append(unread_bytes(large))
            return [b"small"]

        large, first = connect(answer_large)
        small, second = connect(answer_small)
        large.sendall(REQUEST)
        small.sendall(REQUEST)
        while unread_bytes(small) == 0:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert sent_before[0] <= TURN_BYTES
        large.setblocking(False)
        received = b""
        while len(received) < SLICE_BYTES:
            received += await asyncio.get_running_loop().sock_recv(large, SLICE_BYTES)
        assert received == data
        for open_socket in (first, second, large, small):
            open_socket.close()


async def test_a_slice_that_is_on_the_disk_alone_is_read_by_another_thread(
    disk_folder: Path,
) -> None:
    data = os.urandom(2 * segment_sender.SLICE_BYTES_READ_IN + SLICE_BYTES)
    write_cold(disk_folder / "log", data)

    def answer(_: memoryview, __: Session) -> Reply:
        return [b"head", FileSlice(ReadableFile(disk_folder / "log"), 0, len(data)), b"tail"]

    async def received_by(client: socket.socket) -> bytes:
        client.setblocking(False)
        received = bytearray()
        while len(received) < len(data) + 8:
            received += await asyncio.get_running_loop().sock_recv(client, SLICE_BYTES)
        return bytes(received)

    async with asyncio.timeout(30):
        client, served = connect(answer)
        assert disk_threads(served) == 0
        client.sendall(REQUEST)
        assert await received_by(client) == b"head" + data + b"tail"
        assert disk_threads(served) > 0
        again, served_again = connect(answer)
        again.sendall(REQUEST)
        assert await received_by(again) == b"head" + data + b"tail"
        assert disk_threads(served_again) == 0  # It is in memory now.
        for open_socket in (client, served, again, served_again):
            open_socket.close()


async def test_a_connection_may_be_closed_while_its_slice_is_read(disk_folder: Path) -> None:
    data = os.urandom(segment_sender.SLICE_BYTES_READ_IN)
    write_cold(disk_folder / "log", data)

    async with asyncio.timeout(30):
        client, served = connect(
            lambda _, __: [FileSlice(ReadableFile(disk_folder / "log"), 0, len(data))]
        )
        client.sendall(REQUEST)
        while disk_threads(served) == 0:  # noqa: ASYNC110
            await asyncio.sleep(0)
        served.close()
        assert client.recv(1) == b""
        served._buffers.disk.shutdown(wait=True)
        await asyncio.sleep(0.01)  # What the thread calls when it has read does nothing.
        client.close()


def disk_threads(served: Connection) -> int:
    """Return how many threads have been started to read for the connection's loop."""
    return len(served._buffers.disk._threads)


async def test_pending_replies_leave_together_and_in_the_order_of_their_requests() -> None:
    async with asyncio.timeout(30):
        pending: list[PendingReply] = []

        def answer_later(_: memoryview, __: Session) -> PendingReply:
            pending.append(PendingReply())
            return pending[-1]

        client, served = connect(answer_later)
        client.sendall(REQUEST * 3)
        while len(pending) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        pending[2].settle([b"third"])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert unread_bytes(client) == 0
        pending[0].settle([b"first"])
        pending[1].settle([b"second"])
        assert unread_bytes(client) == 0  # Sending is left to the loop's next turn.
        while not served.is_answered:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert client.recv(100) == b"firstsecondthird"
        served.close()
        client.close()


async def test_an_pending_reply_that_fails_ends_the_connection() -> None:
    async with asyncio.timeout(30):
        pending: list[PendingReply] = []

        def answer_later(_: memoryview, __: Session) -> PendingReply:
            pending.append(PendingReply())
            return pending[-1]

        client, served = connect(answer_later)
        client.sendall(REQUEST * 2)
        while len(pending) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        pending[0].fail(CloseConnection("the disk is full"))
        while not served.is_answered:  # noqa: ASYNC110
            await asyncio.sleep(0)
        pending[1].settle([b"late"])
        await asyncio.sleep(0)
        assert client.recv(100) == b""
        client.close()


async def test_the_answer_of_a_task_leaves_in_the_turn_after_its_end() -> None:
    ended: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    tasks: list[asyncio.Task[Reply]] = []

    def answer_by_task(_: memoryview, __: Session) -> TaskReply:
        tasks.append(asyncio.create_task(asyncio.wait_for(ended, None)))
        return TaskReply(tasks[0])

    client, served = connect(answer_by_task)
    client.sendall(REQUEST)
    await eventually_async(lambda: bool(tasks))
    ended.set_result([b"answer"])
    while not tasks[0].done():  # noqa: ASYNC110
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert served.is_answered
    assert client.recv(100) == b"answer"
    served.close()
    client.close()


async def test_a_task_that_the_node_cancels_does_not_count_as_the_clients_fault() -> None:
    """As the reads from the tier that are under way when the node stops."""
    tasks: list[asyncio.Task[Reply]] = []

    async def read() -> Reply:
        await asyncio.Event().wait()
        return [b"never"]

    def answer_by_task(_: memoryview, __: Session) -> TaskReply:
        tasks.append(asyncio.create_task(read()))
        return TaskReply(tasks[0])

    client, served = connect(answer_by_task)
    client.sendall(REQUEST)
    await eventually_async(lambda: bool(tasks))
    tasks[0].cancel()
    await asyncio.wait(tasks)
    await asyncio.sleep(0)
    assert client.recv(1) == b""
    assert served.session.traffic.broken_count == 0
    client.close()


async def test_a_closed_connection_is_freed_without_a_collection() -> None:
    """Collections are seldom: what they alone would free grows with each client that leaves."""
    answers: list[Answer] = [[b"now"], PendingReply(), [b"behind"]]
    client, served = connect(lambda _, __: answers.pop(0))
    client.sendall(REQUEST * 3 + REQUEST[:2])
    await eventually_async(lambda: not answers and served.arrived_bytes == 2)
    served.close()
    await asyncio.sleep(0)
    assert sys.getrefcount(served) == 2  # ``served`` and the call
    client.close()
