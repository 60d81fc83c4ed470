"""A listening socket of one of the node's HTTP servers."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

logger = logging.getLogger(__name__)

BACKLOG = 1_024
ACCEPT_RETRY_SECONDS = 1.0  # after running out of descriptors


class HttpListener:
    """Accepts clients one after the other, so that a crowd takes no long turn of the loop."""

    def __init__(self, purpose: str, begin: Callable[[socket.socket], Awaitable[None]]) -> None:
        """``purpose`` names the server in messages. ``begin`` serves a client's socket.

        It may raise ``ConnectionError`` for a client that has left, and another ``OSError`` if the
        node lacks what a connection needs; the next client is accepted later then.
        """
        self._purpose = purpose
        self._begin = begin
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen at the address and return its port. Raises ``OSError``."""
        bound = await self.bind(host, port)
        self.listen()
        return bound

    async def bind(self, host: str, port: int) -> int:
        """Take the address and return its port. Until ``listen`` clients are refused at once.

        Raises ``OSError``.
        """
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )
            family, _, _, _, address = found[0]
            self._listener = _bound(family, address)
        except OSError as error:
            problem = f"cannot listen on {host!r} port {port} for {self._purpose}: {error.strerror}"
            raise OSError(error.errno, problem) from error
        bound: int = self._listener.getsockname()[1]
        return bound

    def listen(self) -> None:
        """Let clients in. Raises ``OSError`` if another program has begun to listen there."""
        assert self._listener is not None
        self._listener.listen(BACKLOG)
        self._accepting = asyncio.create_task(self._accept(self._listener))

    async def close(self) -> None:
        """Stop listening. Connections stay."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
                await self._begin(sock)
            except ConnectionError:
                continue  # The client has left already.
            except OSError as error:
                logger.warning(
                    "cannot accept http clients",
                    extra={"server": self._purpose, "reason": str(error)},
                )
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)


def _bound(family: int, address: Any) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # As ``socket.create_server`` does.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setblocking(False)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener
