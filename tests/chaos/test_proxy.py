"""The byte-level proxy between a client and an echoing server."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.chaos.proxy import CLIENT, Behaviour, ByteProxy, owner_of
from tools.ports import free_port

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
WAIT_S = 5.0


@asynccontextmanager
async def proxied(**options: object) -> AsyncIterator[ByteProxy]:
    """A proxy before a server that sends back what it receives."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(30), ByteProxy(port, **options) as proxy:  # type: ignore[arg-type]
        yield proxy
    server.close()
    await server.wait_closed()


async def ask(streams: Streams, data: bytes) -> bytes:
    streams[1].write(data)
    async with asyncio.timeout(WAIT_S):
        return await streams[0].readexactly(len(data))


async def connect(proxy: ByteProxy) -> Streams:
    return await asyncio.open_connection("127.0.0.1", proxy.port)


async def expect_reset(streams: Streams) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            assert await streams[0].read() == b""
    except ConnectionResetError:
        pass
    streams[1].transport.abort()


async def test_bytes_pass_both_ways() -> None:
    async with proxied() as proxy:
        streams = await connect(proxy)
        payload = os.urandom(1 << 20)
        assert await ask(streams, payload) == payload
        streams[1].close()


async def test_a_delayed_link_answers_later() -> None:
    async with proxied() as proxy:
        proxy.behave(Behaviour(delay_s=0.1))
        streams = await connect(proxy)
        started = time.monotonic()
        await ask(streams, b"late")
        assert time.monotonic() - started >= 0.2
        streams[1].close()


async def test_a_throttled_link_takes_its_time() -> None:
    async with proxied() as proxy:
        proxy.behave(Behaviour(bytes_per_s=100_000))
        streams = await connect(proxy)
        started = time.monotonic()
        await ask(streams, bytes(20_000))
        assert time.monotonic() - started >= 0.3
        streams[1].close()


async def test_a_cut_link_resets_old_connections_and_new_ones_until_it_heals() -> None:
    async with proxied() as proxy:
        streams = await connect(proxy)
        await ask(streams, b"before")
        proxy.behave(Behaviour(is_cut=True))
        await expect_reset(streams)
        await expect_reset(await connect(proxy))
        proxy.heal()
        streams = await connect(proxy)
        assert await ask(streams, b"after") == b"after"
        streams[1].close()


@pytest.mark.parametrize("direction", ["holds_requests", "holds_answers"])
async def test_a_held_direction_keeps_its_bytes_until_it_heals(direction: str) -> None:
    async with proxied() as proxy:
        streams = await connect(proxy)
        await ask(streams, b"before")
        proxy.behave(Behaviour(**{direction: True}))
        streams[1].write(b"held")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await streams[0].readexactly(4)
        proxy.heal()
        async with asyncio.timeout(WAIT_S):
            assert await streams[0].readexactly(4) == b"held"
        streams[1].close()


async def test_a_reset_can_come_in_the_middle_of_what_is_sent() -> None:
    async with proxied() as proxy:
        streams = await connect(proxy)
        await ask(streams, b"before")
        proxy.reset(after_bytes=3)
        streams[1].write(b"abcdef")
        await expect_reset(streams)


async def test_links_are_distinguished_by_the_process_that_connects() -> None:
    async with proxied(pids=lambda: {os.getpid(): "node 7"}) as proxy:
        proxy.behave(Behaviour(is_cut=True), CLIENT)
        mine = await connect(proxy)
        assert await ask(mine, b"from a node") == b"from a node"
        proxy.behave(Behaviour(is_cut=True), "node 7")
        await expect_reset(mine)


def test_a_port_that_has_been_used_for_other_connections_does_not_hide_whose_it_is() -> None:
    """Those that are closed stay in the system's table, without an owner."""

    def connected(near_port: int, far_port: int) -> socket.socket:
        used = socket.socket()
        used.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        used.bind(("127.0.0.1", near_port))
        used.connect(("127.0.0.1", far_port))
        return used

    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(9)]
    near_port = free_port()
    for other in listeners[1:]:
        with connected(near_port, other.getsockname()[1]):
            accepted, _ = other.accept()
        accepted.close()
    far_port = listeners[0].getsockname()[1]
    with connected(near_port, far_port):
        assert owner_of(near_port, far_port, {os.getpid(): "node 7"}) == "node 7"
    for listener in listeners:
        listener.close()
