"""How a follower's connection receives: one call for much of a large answer."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tidelog_node.dialing.leader_connection import BYTES_PER_WAKE_MAX, LeaderConnection

PIECE_BYTES = 16_384
LARGE_BYTES = 4_000_000


class CountingConnection(LeaderConnection):
    """Counts the receives."""

    def __init__(self) -> None:
        super().__init__()
        self.receive_count = 0

    def buffer_updated(self, nbytes: int) -> None:
        self.receive_count += 1
        super().buffer_updated(nbytes)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[CountingConnection, socket.socket]]:
    """Give a connection and its other end."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        _, connection = await loop.create_connection(CountingConnection, "127.0.0.1", port)
        other, _ = server.accept()
    with other:
        other.setblocking(False)
        other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection, other
        connection.close()
        await asyncio.sleep(0)


async def answer(other: socket.socket, body: bytes) -> None:
    """Send an answer piece by piece; the receiver may take each before the next comes."""
    loop = asyncio.get_running_loop()
    frame = struct.pack(">i", len(body)) + body
    for start in range(0, len(frame), PIECE_BYTES):
        await loop.sock_sendall(other, frame[start : start + PIECE_BYTES])
        for _ in range(3):
            await asyncio.sleep(0)


async def exchange(connection: CountingConnection, other: socket.socket, body: bytes) -> bytes:
    """Return the answer as it was received."""
    sending = asyncio.create_task(answer(other, body))
    received = bytes(await connection.exchange(b"request", timeout_s=60))
    await sending
    return received


async def test_a_large_answer_does_not_wake_the_follower_for_every_piece() -> None:
    body = bytes(range(250)) * (LARGE_BYTES // 250)
    async with connected() as (connection, other):
        assert await exchange(connection, other, body) == body
        assert connection.receive_count <= 2 + 2 * LARGE_BYTES // BYTES_PER_WAKE_MAX


@pytest.mark.parametrize("size_bytes", [0, 1, 100, PIECE_BYTES - 4, PIECE_BYTES - 3, 40_000])
async def test_an_answer_of_any_size_is_received_after_a_large_one(size_bytes: int) -> None:
    async with connected() as (connection, other):
        for length in (LARGE_BYTES, size_bytes, LARGE_BYTES + 1, size_bytes):
            assert await exchange(connection, other, bytes(length)) == bytes(length)


async def test_a_connection_that_ends_inside_a_large_answer_is_noticed() -> None:
    async with connected() as (connection, other):
        asking = asyncio.create_task(connection.exchange(b"request", timeout_s=60))
        await answer(other, b"")  # The first request's answer is empty.
        await asking
        asking = asyncio.create_task(connection.exchange(b"request", timeout_s=60))
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(other, struct.pack(">i", LARGE_BYTES) + bytes(PIECE_BYTES))
        for _ in range(5):
            await asyncio.sleep(0)
        other.close()
        with pytest.raises(ConnectionResetError):
            await asking
