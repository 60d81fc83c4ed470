"""The kernel is told how many bytes of an answer are missing, where it makes room for them."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator

import pytest
from tidelog.wire.wake_size import WAKE_BYTES_MAX, WakeSize


class Closing(asyncio.Protocol):
    def __init__(self) -> None:
        self.closed = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)


@pytest.fixture
async def transport() -> AsyncIterator[asyncio.Transport]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        peer, _ = listening.accept()
    with peer:
        loop = asyncio.get_running_loop()
        made, protocol = await loop.create_connection(Closing, sock=client)
        yield made
        made.close()
        await protocol.closed


def size_of(transport: asyncio.Transport) -> int:
    plain: socket.socket = transport.get_extra_info("socket")
    return plain.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux is told")
async def test_the_missing_bytes_wake_the_loop_and_then_any_byte(
    transport: asyncio.Transport,
) -> None:
    wake_size = WakeSize(transport)
    wake_size.expect(10 * WAKE_BYTES_MAX)
    assert 100_000 < size_of(transport) <= WAKE_BYTES_MAX, "Linux takes half of its largest buffer"
    for missing, expected in ((1_000, 1_000), (0, 1)):
        wake_size.expect(missing)
        assert size_of(transport) == expected


async def test_other_systems_wake_for_any_byte(transport: asyncio.Transport) -> None:
    """There, the buffer may be full with fewer bytes: the rest of the answer would never come."""
    WakeSize(transport, platform="darwin").expect(1_000)
    assert size_of(transport) == 1
