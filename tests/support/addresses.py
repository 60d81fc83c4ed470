"""Addresses of this machine that take connections, or lose all packets, and names for them."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from tidelog.wire.host_addresses import HostAddress


@contextmanager
def listening() -> Iterator[HostAddress]:
    """Give an address that takes connections, and never answers."""
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


def named(
    monkeypatch: pytest.MonkeyPatch, name: str, addresses: Sequence[HostAddress | int]
) -> None:
    """Have the system's name service say that a host has these addresses, or ports of this one."""
    real = socket.getaddrinfo
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", one))
        if isinstance(one, int)
        else (one.family, socket.SOCK_STREAM, 6, "", one.address)
        for one in addresses
    ]

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        return found if host == name else real(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
