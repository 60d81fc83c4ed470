"""A connection that the node ends: between two requests, with every answer sent."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tidelog_node.answers import NO_ANSWER, Answer, ControlReply, PendingReply, Reply
from tidelog_node.connections.connection import Connection
from tidelog_node.connections.transport import Transport
from tidelog_node.requests.session import Session

from tests.node.connections.served_connections import REQUEST, connect
from tests.support.holding_transport import HoldingTransport
from tests.support.waiting import eventually_async

LARGE = bytes(8 << 20)


class Owing:
    """Owes every answer."""

    def __init__(self) -> None:
        self.pending: list[PendingReply] = []

    def __call__(self, _: memoryview, __: Session) -> Answer:
        self.pending.append(PendingReply())
        return self.pending[-1]


async def received(client: socket.socket) -> bytes:
    """Return all until the connection is closed."""
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    data = b""
    async with asyncio.timeout(60):
        while piece := await loop.sock_recv(client, 1 << 20):
            data += piece
    client.close()
    return data


async def test_an_idle_connection_ends_at_once() -> None:
    client, served = connect(lambda _, __: [b"answer"])
    client.sendall(REQUEST)
    assert await asyncio.to_thread(client.recv, 6) == b"answer"
    served.end()
    served.end()
    assert await received(client) == b""


async def test_pending_answers_are_sent_before_the_end_and_no_request_is_taken() -> None:
    handler = Owing()
    client, served = connect(handler)
    client.sendall(REQUEST * 2)
    await eventually_async(lambda: len(handler.pending) == 2)
    served.end()
    await asyncio.sleep(0)
    client.sendall(REQUEST)
    handler.pending[1].settle([b"second"])
    await asyncio.sleep(0)
    assert not is_closed(served)
    handler.pending[0].settle([b"first,"])
    await eventually_async(lambda: is_closed(served))
    assert len(handler.pending) == 2
    assert client.recv(100) == b"first,second"
    client.close()


async def test_an_answer_that_is_not_wanted_holds_up_no_end() -> None:
    handler = Owing()
    client, served = connect(handler)
    client.sendall(REQUEST)
    await eventually_async(lambda: len(handler.pending) == 1)
    served.end()
    await asyncio.sleep(0)
    handler.pending[0].settle(NO_ANSWER)
    assert await received(client) == b""


async def test_a_large_answer_arrives_whole_before_the_end() -> None:
    client, served = connect(lambda _, __: [LARGE])
    client.sendall(REQUEST)
    await eventually_async(lambda: served.unsent_bytes > 0)
    served.end()
    assert len(await received(client)) == len(LARGE)


async def test_a_control_request_under_way_is_answered_before_the_end() -> None:
    may_go_on = asyncio.Event()

    async def answer() -> Reply:
        await may_go_on.wait()
        return [b"answer"]

    client, served = connect(lambda _, __: ControlReply(answer))
    client.sendall(REQUEST)
    await eventually_async(lambda: not served.is_answered)
    served.end()
    await asyncio.sleep(0)
    may_go_on.set()
    assert await received(client) == b"answer"


@pytest.mark.parametrize("rest", [b"", REQUEST[:6]])
async def test_a_transport_may_end_it_while_it_receives(rest: bytes) -> None:
    """The request that came with it is answered; one that is not whole has no effect."""

    class Spent(HoldingTransport):
        def recv_into(self, buffer: memoryview) -> int:
            sessions[0].end()
            return super().recv_into(buffer)

    sessions: list[Session] = []

    def make(sock: socket.socket, session: Session) -> Transport:
        sessions.append(session)
        return Spent(sock, receive_bytes_max=1000, held_bytes_max=1000, send_bytes_max=3)

    client, _ = connect(lambda _, __: [b"answer"], make_transport=make)
    client.sendall(REQUEST + rest)
    assert await received(client) == b"answer"
    assert sessions[0].end_connection is None
    sessions[0].end()


def is_closed(served: Connection) -> bool:
    return served.session.end_connection is None
