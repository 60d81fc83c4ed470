"""Answers that are settled while their connection, or the event that settles them, is in trouble.

A follower's fetch settles the acks of many producers, and an append the fetches of many consumers.
What is wrong with one of their connections must not cost another its answer.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tidelog_core.model import FileSlice, ReadableFile
from tidelog_node.answers import (
    Answer,
    CloseConnection,
    ControlReply,
    PendingReply,
    Reply,
)
from tidelog_node.connections.connection import Connection
from tidelog_node.connections.frame_receiver import FrameHandler
from tidelog_node.requests.session import Session

from tests.node.connections.served_connections import (
    REQUEST,
    connect,
    loop_buffers,
    unread_bytes,
)
from tests.support.waiting import eventually_async

SECONDS_MAX = 60.0
LARGE = os.urandom(8 << 20)  # more than the sockets take
QUEUED_REQUESTS_MAX = 10  # of ``loop_buffers``


class Owing:
    """Owes every answer, except for ``first``."""

    def __init__(self, *, first: Reply | None = None) -> None:
        self.pending: list[PendingReply] = []
        self._first = first

    def __call__(self, _: memoryview, __: Session) -> Answer:
        first, self._first = self._first, None
        if first is not None:
            return first
        self.pending.append(PendingReply())
        return self.pending[-1]


@asynccontextmanager
async def served(*handlers: FrameHandler) -> AsyncIterator[list[tuple[socket.socket, Connection]]]:
    """Give a client and its connection for each handler, all of one loop."""
    buffers = loop_buffers()
    ends = [connect(handler, buffers=buffers) for handler in handlers]
    try:
        async with asyncio.timeout(SECONDS_MAX):
            yield ends
    finally:
        for client, connection in ends:
            connection.close()
            client.close()


async def received(client: socket.socket, size_bytes: int) -> bytes:
    """Return so many bytes, or fewer if the connection is closed before."""
    client.setblocking(False)
    found = bytearray()
    while len(found) < size_bytes:
        piece = await asyncio.get_running_loop().sock_recv(client, size_bytes - len(found))
        if not piece:
            break
        found += piece
    return bytes(found)


async def owed(owing: Owing, client: socket.socket, count: int) -> None:
    """Send so many requests at once, and return when all are owed an answer."""
    client.sendall(REQUEST * count)
    await eventually_async(lambda: len(owing.pending) == count)


async def test_a_reply_that_fails_in_the_event_of_another_ends_its_own_connection_alone() -> None:
    broken, whole = Owing(), Owing()

    def settle(_: memoryview, __: Session) -> Reply:
        broken.pending[0].fail(CloseConnection("the disk is full"))
        whole.pending[0].settle([b"whole"])
        return [b"settled"]

    async with served(broken, whole, settle) as ((first, _), (second, _), (third, _)):
        await owed(broken, first, 1)
        await owed(whole, second, 1)
        third.sendall(REQUEST)
        assert await received(third, 7) == b"settled"
        assert await received(second, 5) == b"whole"
        assert await received(first, 1) == b""


async def test_a_connection_that_is_closed_in_the_event_that_settles_its_reply_gets_nothing() -> (
    None
):
    leaving, staying = Owing(), Owing()
    connections: list[Connection] = []

    def settle(_: memoryview, __: Session) -> Reply:
        leaving.pending[0].settle([b"late"])
        staying.pending[0].settle([b"answer"])
        connections[0].close()
        return [b"settled"]

    async with served(leaving, staying, settle) as ends:
        (first, left), (second, _), (third, _) = ends
        connections.append(left)
        await owed(leaving, first, 1)
        await owed(staying, second, 1)
        third.sendall(REQUEST)
        assert await received(third, 7) == b"settled"
        assert await received(second, 6) == b"answer"
        assert await received(first, 1) == b""


async def test_replies_that_were_settled_are_sent_although_the_event_ends_with_an_error() -> None:
    owing, told = Owing(), list[dict[str, Any]]()

    def fail(_: memoryview, __: Session) -> Reply:
        owing.pending[0].settle([b"answer"])
        raise RuntimeError("a bug")

    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with served(owing, fail) as ((first, _), (second, _)):
        await owed(owing, first, 1)
        second.sendall(REQUEST)
        assert await received(first, 6) == b"answer"
        await eventually_async(lambda: bool(told))
    assert [repr(context["exception"]) for context in told] == ["RuntimeError('a bug')"]


async def test_replies_to_a_client_that_takes_nothing_keep_their_order() -> None:
    owing = Owing(first=[LARGE])

    def settle(_: memoryview, __: Session) -> Reply:
        for number in (2, 0, 1):
            owing.pending[number].settle([b"%d" % number])
        return [b"settled"]

    async with served(owing, settle) as ((first, connection), (second, _)):
        first.sendall(REQUEST * 4)
        await eventually_async(lambda: len(owing.pending) == 3)
        second.sendall(REQUEST)
        assert await received(second, 7) == b"settled"
        assert not connection.is_answered
        assert await received(first, len(LARGE) + 3) == LARGE + b"012"
        await eventually_async(lambda: connection.is_answered)


async def test_requests_that_waited_for_replies_are_handled_when_another_event_settles_them() -> (
    None
):
    owing = Owing()

    def settle(_: memoryview, __: Session) -> Reply:
        for reply in owing.pending:
            reply.settle([b"."])
        return [b"settled"]

    async with served(owing, settle) as ((first, connection), (second, _)):
        first.sendall(REQUEST * (QUEUED_REQUESTS_MAX + 3))
        await eventually_async(lambda: len(owing.pending) == QUEUED_REQUESTS_MAX)
        assert connection.is_held_up
        second.sendall(REQUEST)
        assert await received(first, QUEUED_REQUESTS_MAX) == b"." * QUEUED_REQUESTS_MAX
        await eventually_async(lambda: len(owing.pending) == QUEUED_REQUESTS_MAX + 3)
        assert not connection.is_held_up


async def test_requests_that_waited_may_settle_the_replies_of_others_in_their_turn() -> None:
    owing, other = Owing(), Owing()

    def owe_then_settle(frame: memoryview, session: Session) -> Answer:
        if len(owing.pending) < QUEUED_REQUESTS_MAX:
            return owing(frame, session)
        other.pending[0].settle([b"other"])
        return [b"last"]

    def settle(_: memoryview, __: Session) -> Reply:
        for reply in owing.pending:
            reply.settle([b"."])
        return [b"settled"]

    async with served(owe_then_settle, other, settle) as ((first, _), (second, _), (third, _)):
        await owed(other, second, 1)
        first.sendall(REQUEST * (QUEUED_REQUESTS_MAX + 1))
        await eventually_async(lambda: len(owing.pending) == QUEUED_REQUESTS_MAX)
        third.sendall(REQUEST)
        expected = b"." * QUEUED_REQUESTS_MAX + b"last"
        assert await received(first, len(expected)) == expected
        assert await received(second, 5) == b"other"


# -- replies that nothing else settles: polls --


async def test_a_poll_that_is_settled_after_its_client_has_left_sends_nothing() -> None:
    owing = Owing()
    async with served(owing) as ((client, connection),):
        await owed(owing, client, 2)
        connection.close()
        for poll in owing.pending:
            poll.settle([b"late"])
        assert await received(client, 1) == b""


async def test_a_connection_that_is_to_end_ends_with_the_answer_of_its_poll() -> None:
    owing = Owing()
    async with served(owing) as ((client, connection),):
        await owed(owing, client, 1)
        connection.end()
        await asyncio.sleep(0)
        owing.pending[0].settle([b"last"])
        assert await received(client, 5) == b"last"


async def test_a_muted_client_gets_the_answer_of_its_poll_and_is_not_read() -> None:
    owing = Owing()
    async with served(owing) as ((client, connection),):
        await owed(owing, client, 1)
        connection.mute(SECONDS_MAX)
        client.sendall(REQUEST)
        owing.pending[0].settle([b"answer"])
        assert await received(client, 6) == b"answer"
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(owing.pending) == 1


async def test_a_control_request_behind_a_poll_runs_when_that_is_answered() -> None:
    polls: list[PendingReply] = []
    ran: list[str] = []

    async def run() -> Reply:
        ran.append("control")
        return [b"control"]

    def answer(_: memoryview, __: Session) -> Answer:
        if polls:
            return ControlReply(run)
        polls.append(PendingReply())
        return polls[0]

    async with served(answer) as ((client, _),):
        client.sendall(REQUEST * 2)
        await eventually_async(lambda: bool(polls))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not ran
        polls[0].settle([b"poll"])
        assert await received(client, 11) == b"pollcontrol"


async def test_a_poll_whose_records_are_cut_off_ends_its_connection(tmp_path: Path) -> None:
    """The log was truncated between the read and the send."""
    path = tmp_path / "log"
    path.write_bytes(LARGE)
    owing, told = Owing(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with served(owing) as ((client, _),):
        await owed(owing, client, 1)
        records = FileSlice(ReadableFile(path), 0, len(LARGE))
        os.truncate(path, 1000)
        owing.pending[0].settle([b"head", records])
        assert await received(client, len(LARGE)) == b"head" + LARGE[:1000]
    assert not told


async def test_records_that_are_cut_off_while_they_are_sent_end_the_connection(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    path.write_bytes(LARGE)
    owing = Owing()
    async with served(owing) as ((client, connection),):
        await owed(owing, client, 2)
        records = FileSlice(ReadableFile(path), 0, len(LARGE))
        owing.pending[0].settle([records])
        owing.pending[1].settle([b"behind"])
        await eventually_async(lambda: unread_bytes(client) > 0)
        assert not connection.is_answered
        os.truncate(path, 1000)
        found = await received(client, len(LARGE) + 6)
        assert len(found) < len(LARGE)
