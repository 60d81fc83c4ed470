"""Connects to a host by whichever of its addresses takes the connection.

A name may have an address that leads nowhere, such as an IPv6 address where the network has no
route for it. One that has no route fails at once, one whose packets are lost does not fail at all.
So the addresses are tried beside each other (``staggered``), and names may have several by intent:
Kafka's clients try them all too (``client.dns.lookup=use_all_dns_ips``).
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Collection, Sequence
from functools import partial
from typing import NamedTuple

from tidelog.wire.staggered import AllFailed, first_success

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


async def connect(
    addresses: Sequence[HostAddress], *, believes_refusals: bool = True
) -> socket.socket:
    """Return a connected socket. Raises ``PortRefused`` and other ``OSError``.

    A host refuses if one of its addresses does, and none takes the connection. With
    ``believes_refusals`` the others have ``NEXT_SECONDS`` each then; else they have as long as the
    caller waits, for they may be far away.
    """
    try:
        return await first_success(
            [partial(_connected, address) for address in addresses],
            next_after_s=NEXT_SECONDS,
            discard=socket.socket.close,
            is_decisive=_is_refusal if believes_refusals else _is_nothing,
        )
    except AllFailed as failed:
        raise _error_of(failed.errors) from None


class Host:
    """A host that is connected to again and again.

    An address that takes connections on which nothing is answered is tried after the others, until
    there are none. Source: Kafka's ``ClusterConnectionStates``, which takes the next address.
    """

    def __init__(self, name: str, port: int) -> None:
        self._name, self._port = name, port
        self._useless: set[object] = set()
        self._last: object = None  # the address that answered last

    async def addresses(self) -> list[HostAddress]:
        """Return the addresses, those of no use last.

        Raises ``OSError``, ``ValueError``, ``OverflowError``.
        """
        found = await resolve(self._name, self._port)
        self._useless.intersection_update(one.address for one in found)
        if len(self._useless) == len(found):
            self._useless.clear()
        return sorted(found, key=lambda one: one.address in self._useless)

    def note_connected(self, address: object) -> None:
        """Note that the address has taken a connection: it is of no use until it answers."""
        self._useless.add(address)

    def note_answered(self, address: object) -> None:
        """Note that a node answers at the address."""
        self._useless.discard(address)
        self._last = address

    def note_useless(self) -> None:
        """Note that the address that answered last is of no use."""
        if self._last is not None:
            self._useless.add(self._last)


async def _connected(to: HostAddress) -> socket.socket:
    sock = socket.socket(to.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        # asyncio sets it only for sockets that it makes itself.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, to.address)
    except BaseException:
        sock.close()
        raise
    return sock


def _error_of(errors: Collection[Exception]) -> Exception:
    for error in errors:
        if not isinstance(error, OSError):
            return error
    for error in errors:
        if isinstance(error, OSError) and _is_refusal(error):
            return PortRefused(errno.ECONNREFUSED, error.strerror)
    return next(iter(errors), OSError("the host has no address"))


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ECONNREFUSED


def _is_nothing(_: Exception) -> bool:
    return False
