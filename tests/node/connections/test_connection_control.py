"""Control requests of one connection: their order, their memory, and what ends them."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

import pytest
from tidelog_node.answers import Answer, CloseConnection, ControlReply, PendingReply, Reply

from tests.node.connections.served_connections import (
    REQUEST,
    Owner,
    connect,
    loop_buffers,
)
from tests.support.waiting import eventually_async

MIB = 1 << 20
SECONDS_MAX = 30.0


class Handler:
    """Answers every second request at once or later, and the others by a call."""

    def __init__(self, first: Callable[[], Answer], *, answer: bytes = b"c") -> None:
        self.ran_count = 0
        self._first = first
        self._answer = answer
        self._seen_count = 0

    def __call__(self, _: memoryview, __: object) -> Answer:
        """Answer as the first of a pair, or with a call."""
        self._seen_count += 1
        return self._first() if self._seen_count % 2 else ControlReply(self._run)

    async def _run(self) -> Reply:
        self.ran_count += 1
        return [self._answer]


@pytest.mark.parametrize(
    "problem", [RuntimeError("a bug"), CloseConnection("malformed", is_expected=True)]
)
async def test_a_control_request_that_fails_gives_its_memory_back_and_ends_the_connection(
    problem: Exception,
) -> None:
    async def fail() -> Reply:
        raise problem

    owner, buffers = Owner(), loop_buffers()
    client, _ = connect(lambda _, __: ControlReply(fail), owner=owner, buffers=buffers)
    client.sendall(REQUEST * 3)
    await eventually_async(lambda: bool(owner.tasks) and all(task.done() for task in owner.tasks))
    assert client.recv(1) == b""
    assert buffers.memory.held_bytes == 0
    assert [task.exception() for task in owner.tasks] == [None]
    client.close()


async def test_a_control_request_that_is_cancelled_gives_its_memory_back() -> None:
    async def wait() -> Reply:
        await asyncio.Event().wait()
        return []

    owner, buffers = Owner(), loop_buffers()
    client, _ = connect(lambda _, __: ControlReply(wait), owner=owner, buffers=buffers)
    client.sendall(REQUEST * 3)
    await eventually_async(lambda: bool(owner.tasks))
    await asyncio.sleep(0)
    owner.tasks[0].cancel()
    await eventually_async(owner.tasks[0].done)
    assert client.recv(1) == b""
    assert buffers.memory.held_bytes == 0
    client.close()


async def turns() -> None:
    """Let everything happen that can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_control_request_runs_when_the_answers_before_it_are_out() -> None:
    pending: list[PendingReply] = []

    def owe() -> PendingReply:
        pending.append(PendingReply())
        return pending[-1]

    handler = Handler(owe)
    client, served = connect(handler)
    client.sendall(REQUEST * 4)
    await eventually_async(lambda: len(pending) == 2)
    await turns()
    assert handler.ran_count == 0
    pending[1].settle([b"B"])
    await turns()
    assert handler.ran_count == 0
    pending[0].settle([b"A"])
    await eventually_async(lambda: served.is_answered)
    assert handler.ran_count == 2
    assert client.recv(100) == b"AcBc"
    served.close()
    client.close()


async def test_control_requests_behind_an_answer_that_is_pending_run_when_the_client_leaves() -> (
    None
):
    handler = Handler(PendingReply)
    client, served = connect(handler)
    client.sendall(REQUEST * 6)
    await eventually_async(lambda: handler._seen_count == 6)
    await turns()
    assert handler.ran_count == 0
    client.close()
    await eventually_async(lambda: handler.ran_count == 3)
    assert served._buffers.memory.held_bytes == 0


async def test_a_control_request_runs_when_the_client_takes_the_answer_before() -> None:
    handler = Handler(lambda: [bytes(16 * MIB)])
    client, served = connect(handler)
    client.sendall(REQUEST * 2)
    await eventually_async(lambda: handler._seen_count == 2)
    await turns()
    assert handler.ran_count == 0
    await take(client, 16 * MIB + 1)
    assert handler.ran_count == 1
    assert served.is_answered
    served.close()
    client.close()


async def take(client: socket.socket, size_bytes: int) -> None:
    """Receive so many bytes."""
    client.setblocking(False)
    async with asyncio.timeout(SECONDS_MAX):
        while size_bytes:
            size_bytes -= len(await asyncio.get_running_loop().sock_recv(client, size_bytes))


async def test_answers_behind_one_that_is_pending_count_until_they_are_out() -> None:
    pending = PendingReply()
    answers: list[PendingReply | Reply] = [pending, *([bytes(100_000)] for _ in range(5))]
    client, served = connect(lambda _, __: answers.pop(0))
    memory = served._buffers.memory
    client.sendall(REQUEST * 6)
    await eventually_async(lambda: not answers)
    assert memory.held_bytes >= 400_000
    assert served.unsent_bytes == 500_000
    pending.settle([b"first"])
    await take(client, 500_005)
    await eventually_async(lambda: served.is_answered)
    assert memory.held_bytes == 0
    served.close()
    client.close()


async def test_replies_settled_behind_one_that_is_pending_count_until_they_are_out() -> None:
    pending = [PendingReply() for _ in range(4)]
    unseen = list(pending)
    client, served = connect(lambda _, __: unseen.pop(0))
    memory = served._buffers.memory
    client.sendall(REQUEST * 4)
    await eventually_async(lambda: not unseen)
    pending[2].settle([bytes(300_000)])
    await turns()
    assert memory.held_bytes >= 300_000
    served.close()
    assert memory.held_bytes == 0
    client.close()


async def test_a_client_that_takes_no_answers_is_not_read_beyond_some_bytes_of_them() -> None:
    seen_count = 0

    def answer(_: memoryview, __: object) -> Reply:
        nonlocal seen_count
        seen_count += 1
        return [bytes(MIB)]

    client, served = connect(answer)
    client.sendall(REQUEST * 10)
    await turns()
    client.sendall(REQUEST * 90)
    await turns()
    assert served.unsent_bytes < 20 * MIB
    await eventually_async(lambda: served._buffers.memory.held_bytes > MIB)
    await take(client, 100 * MIB)
    assert seen_count == 100
    await eventually_async(lambda: served._buffers.memory.held_bytes == 0)
    served.close()
    client.close()


def a_request(size_bytes: int, *, api_key: int = 20) -> bytes:
    """Return a request of this size, its size field apart."""
    return struct.pack(">ih", size_bytes, api_key) + bytes(size_bytes - 2)


async def test_control_requests_wait_for_memory_and_small_ones_pass() -> None:
    may_end = asyncio.Event()

    async def answer() -> Reply:
        await may_end.wait()
        return [b"c"]

    buffers = loop_buffers(request_bytes_max=MIB)
    memory = buffers.memory
    clients, served = [], []
    for _ in range(12):
        client, connection = connect(lambda _, __: ControlReply(answer), buffers=buffers)
        client.setblocking(False)
        clients.append(client)
        served.append(connection)
    loop = asyncio.get_running_loop()
    sending = [
        asyncio.create_task(loop.sock_sendall(client, a_request(400_000)))
        for client in clients[:10]
    ]
    await eventually_async(lambda: memory.waiting_count > 5)
    await turns()
    assert memory.held_bytes < 3 * MIB
    for client in clients[10:]:
        client.sendall(a_request(1000))
    await eventually_async(lambda: all(bool(each._answers.control_bytes) for each in served[10:]))
    may_end.set()
    for client in clients:
        await take(client, 1)
    await asyncio.gather(*sending)
    assert memory.held_bytes == 0
    for open_socket in (*clients, *served):
        open_socket.close()


async def test_bytes_that_come_into_an_idle_buffer_make_it_an_unfinished_frame() -> None:
    buffers = loop_buffers(request_bytes_max=MIB)
    memory = buffers.memory
    client, served = connect(lambda _, __: [b"c"], buffers=buffers)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, a_request(140_000, api_key=0))
    await take(client, 1)
    assert memory.held_bytes == 140_004  # kept for the next frame
    assert served in memory._usual.idle
    client.sendall(b"\0")
    await eventually_async(lambda: served.arrived_bytes == 1)
    assert served not in memory._usual.idle
    assert served in memory._usual.under_way
    client.sendall(a_request(140_000, api_key=0)[1:100])
    await eventually_async(lambda: served.arrived_bytes == 100)
    await loop.sock_sendall(client, a_request(140_000, api_key=0)[100:])
    await take(client, 1)
    served.close()
    client.close()


async def test_a_small_request_into_an_idle_buffer_is_answered_at_any_boundary() -> None:
    client, served = connect(lambda _, __: [b"c"], buffers=loop_buffers(request_bytes_max=MIB))
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    for boundary in range(1, 12):
        await loop.sock_sendall(client, a_request(140_000, api_key=0))
        await take(client, 1)
        client.sendall(REQUEST[:boundary])
        await eventually_async(lambda boundary=boundary: served.arrived_bytes == boundary)
        client.sendall(REQUEST[boundary:])
        await take(client, 1)
    served.close()
    client.close()
