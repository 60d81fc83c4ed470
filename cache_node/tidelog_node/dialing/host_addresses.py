"""Connects to a host by whichever of its addresses takes the connection.

A name may have an address that leads nowhere, such as an IPv6 address where the network has no
route for it. One that has no route fails at once, one whose packets are lost does not fail at all.
So the addresses are tried beside each other: each begins when those before have failed, or after
``NEXT_SECONDS``. Source: RFC 8305, «Happy Eyeballs».

A host refuses if one of its addresses does, and none takes the connection.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Collection, Sequence
from typing import NamedTuple

ADDRESSES_MAX = 8  # of a host; others are not tried
NEXT_SECONDS = 0.2  # RFC 8305 recommends 0.25; a suspicion should not wait longer than need be


# As ``socket.getaddrinfo`` returns it, and a socket takes it.
SocketAddress = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]


class PortRefused(ConnectionRefusedError):
    """The host is there, and no process listens at the port."""


class HostAddress(NamedTuple):
    """One address of a host, with the port."""

    family: int
    address: SocketAddress


async def resolve(host: str, port: int) -> Sequence[HostAddress]:
    """Return the addresses of the host, each once. Raises ``OSError``."""
    try:  # An address in text needs no thread.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except OSError:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(HostAddress(family, at) for family, _, _, _, at in found))


async def connect(addresses: Sequence[HostAddress]) -> socket.socket:
    """Return a connected socket. Raises ``PortRefused`` and other ``OSError``.

    Once an address has refused, the others have ``NEXT_SECONDS`` each to take the connection.
    """
    loop = asyncio.get_running_loop()
    waiting = list(addresses[:ADDRESSES_MAX])
    attempts: dict[asyncio.Task[socket.socket], float] = {}  # with the times of their beginnings
    errors: list[OSError] = []
    try:
        while waiting or attempts:
            if waiting:
                attempts[loop.create_task(_attempt(waiting.pop(0)))] = loop.time()
            timeout_s = None
            if waiting or any(map(_is_refusal, errors)):
                timeout_s = max(attempts.values()) + NEXT_SECONDS - loop.time()
            done, _ = await asyncio.wait(
                attempts, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            for attempt in done:
                error = attempt.exception()
                if error is None:
                    del attempts[attempt]
                    return attempt.result()
                if not isinstance(error, OSError):
                    raise error
                del attempts[attempt]
                errors.append(error)
            if not done and not waiting:
                break  # One has refused, and the others lead nowhere.
    finally:
        await _end(attempts)
    refusals = [error for error in errors if _is_refusal(error)]
    if refusals:
        raise PortRefused(errno.ECONNREFUSED, refusals[0].strerror) from refusals[0]
    raise errors[0] if errors else OSError("the host has no address")


async def _attempt(to: HostAddress) -> socket.socket:
    sock = socket.socket(to.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, to.address)
    except BaseException:
        sock.close()
        raise
    return sock


async def _end(attempts: Collection[asyncio.Task[socket.socket]]) -> None:
    """Give up the attempts; one that has just succeeded is closed."""
    for attempt in attempts:
        attempt.cancel()
    for outcome in await asyncio.gather(*attempts, return_exceptions=True):
        if isinstance(outcome, socket.socket):
            outcome.close()


def _is_refusal(error: OSError) -> bool:
    return error.errno == errno.ECONNREFUSED
