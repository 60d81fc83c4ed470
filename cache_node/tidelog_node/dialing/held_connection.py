"""A connection on which nothing is sent: if it ends, the other process may have ended.

The kernel closes a process's connections in the moment in which it is killed, and from then on its
port refuses others. A host that goes down does neither.
"""

from __future__ import annotations

import asyncio


class HeldConnection(asyncio.Protocol):
    """Made by ``Dialer.hold``. For one task."""

    def __init__(self) -> None:
        self._transport: asyncio.BaseTransport | None = None
        self._lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Note the end."""
        self._lost.set()

    def data_received(self, data: bytes) -> None:  # noqa: ARG002
        """Close: the other node answers nothing, since nothing was asked."""
        self._close()

    async def end(self) -> None:
        """Return once the connection is lost; closes it when cancelled."""
        try:
            await self._lost.wait()
        finally:
            self._close()

    def _close(self) -> None:
        if isinstance(self._transport, asyncio.Transport):
            self._transport.abort()
