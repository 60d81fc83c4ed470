"""How a host with several addresses is reached."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from tidelog_node.dialing.host_addresses import HostAddress, PortRefused, connect, resolve

NOWHERE = HostAddress(socket.AF_INET, ("255.255.255.255", 9))  # TCP has no route to all hosts


@pytest.fixture
def closed() -> HostAddress:
    """Return an address of this machine at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return HostAddress(socket.AF_INET, server.getsockname())


@contextmanager
def listening() -> Iterator[HostAddress]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield HostAddress(socket.AF_INET, server.getsockname())


@contextmanager
def silent() -> Iterator[HostAddress]:
    """Give an address whose packets are lost: the queue of the port is full."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield HostAddress(socket.AF_INET, server.getsockname())


@pytest.mark.parametrize("order", [1, -1])
async def test_a_host_refuses_if_one_address_does_and_the_others_have_no_route(
    closed: HostAddress, order: int
) -> None:
    with pytest.raises(PortRefused, match="Connect call failed"):
        await connect([NOWHERE, closed][::order])


@pytest.mark.parametrize("order", [1, -1])
async def test_a_host_refuses_if_one_address_does_and_packets_to_the_others_are_lost(
    closed: HostAddress, order: int
) -> None:
    with silent() as lost:
        async with asyncio.timeout(30):  # A connection is given up after two minutes.
            with pytest.raises(PortRefused):
                await connect([lost, closed][::order])


@pytest.mark.parametrize("order", [1, -1])
async def test_a_host_is_reached_by_the_address_that_takes_the_connection(
    closed: HostAddress, order: int
) -> None:
    with listening() as open_one, silent() as lost:
        for other in (closed, NOWHERE, lost):
            async with asyncio.timeout(30):
                sock = await connect([other, open_one][::order])
            with sock:
                assert sock.getpeername() == open_one.address


async def test_a_host_without_a_route_does_not_refuse() -> None:
    with pytest.raises(OSError, match=r"Errno") as found:
        await connect([NOWHERE, NOWHERE])
    assert not isinstance(found.value, PortRefused)


async def test_a_caller_that_gives_up_leaves_no_socket_open() -> None:
    with silent() as lost:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await connect([lost, lost])
        await asyncio.sleep(0)


async def test_an_address_in_text_is_resolved_without_a_thread() -> None:
    loop = asyncio.get_running_loop()
    assert await resolve("127.0.0.1", 9) == (HostAddress(socket.AF_INET, ("127.0.0.1", 9)),)
    assert loop._default_executor is None  # type: ignore[attr-defined]
    assert HostAddress(socket.AF_INET, ("127.0.0.1", 9)) in await resolve("localhost", 9)
