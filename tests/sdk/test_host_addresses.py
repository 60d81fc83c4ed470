"""How a host with several addresses is reached."""

from __future__ import annotations

import asyncio
import gc
import socket
from contextlib import suppress

import pytest
from tidelog.wire import host_addresses
from tidelog.wire.host_addresses import (
    NEXT_SECONDS,
    Host,
    HostAddress,
    PortRefused,
    connect,
    resolve,
)
from tidelog.wire.staggered import AT_ONCE_MAX

from tests.support.addresses import listening, named, silent

NOWHERE = HostAddress(socket.AF_INET, ("255.255.255.255", 9))  # TCP has no route to all hosts


@pytest.fixture
def closed() -> HostAddress:
    """Return an address of this machine at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return HostAddress(socket.AF_INET, server.getsockname())


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


async def test_addresses_that_are_far_away_are_waited_for_beside_one_that_refuses(
    closed: HostAddress,
) -> None:
    """A link over a continent takes longer than a neighbour's refusal is believed."""
    with silent() as lost, pytest.raises(TimeoutError):
        async with asyncio.timeout(2 * NEXT_SECONDS):
            await connect([closed, lost], believes_refusals=False)
    with pytest.raises(PortRefused):
        await connect([closed, NOWHERE], believes_refusals=False)


async def test_a_name_with_many_dead_addresses_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs its time, and only so many are tried at once."""
    monkeypatch.setattr(host_addresses, "NEXT_SECONDS", 0.05)
    with listening() as open_one, silent() as lost:
        async with asyncio.timeout(30):
            sock = await connect([lost] * (AT_ONCE_MAX + 2) + [open_one])
        with sock:
            assert sock.getpeername() == open_one.address


async def test_an_address_of_no_use_is_tried_after_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with listening() as first, listening() as second:
        named(monkeypatch, "many.test", [first, second])
        host = Host("many.test", 9092)

        async def order() -> list[object]:
            return [one.address for one in await host.addresses()]

        assert await order() == [first.address, second.address]
        host.note_connected(first.address)
        assert await order() == [second.address, first.address]
        host.note_answered(first.address)
        assert await order() == [first.address, second.address]
        host.note_useless()  # It refuses the login, or never answers it.
        assert await order() == [second.address, first.address]
        host.note_connected(second.address)
        assert await order() == [first.address, second.address]


async def test_a_request_does_not_wait_for_the_acknowledgement_of_the_one_before() -> None:
    """As it would by Nagle's algorithm, over a network for as long as 40 ms."""
    with listening() as open_one:
        loop = asyncio.get_running_loop()
        sock = await connect([open_one])
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=sock)
        assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        transport.abort()
        await asyncio.sleep(0)


async def test_an_address_in_text_is_resolved_without_a_thread() -> None:
    loop = asyncio.get_running_loop()
    assert await resolve("127.0.0.1", 9) == (HostAddress(socket.AF_INET, ("127.0.0.1", 9)),)
    assert loop._default_executor is None  # type: ignore[attr-defined]
    assert HostAddress(socket.AF_INET, ("127.0.0.1", 9)) in await resolve("localhost", 9)


async def test_a_caller_that_is_cancelled_at_the_moment_of_success_leaves_no_socket_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever was connected by then is closed: an open socket is a warning, which is an error."""
    monkeypatch.setattr(host_addresses, "NEXT_SECONDS", 0.05)
    with listening() as open_one, silent() as lost:
        for turns in range(7):
            task = asyncio.create_task(connect([lost, open_one, open_one]))
            await asyncio.sleep(host_addresses.NEXT_SECONDS)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                (await task).close()
        await asyncio.sleep(0)
        gc.collect()
