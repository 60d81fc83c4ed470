"""``Connections``: a client's connections to nodes, one for each address and lane.

They are opened on demand. A node answers each connection in order, so slow requests (fetches,
joining a group) have a lane of their own. After a failure the next attempt waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from tidelog.errors import ClientClosed, ConnectionFailed, TidelogError
from tidelog.options import ClientOptions
from tidelog.wire.backoff import Backoff
from tidelog.wire.connection import Address, Connection
from tidelog.wire.frame_buffers import FrameBuffers
from tidelog.wire.host_addresses import Host
from tidelog.wire.opening import open_connection
from tidelog.wire.sasl import log_in
from tidelog.wire.staggered import AllFailed, first_success

# That a node has to answer before another one is tried beside it, and the most of the timeout.
NEXT_NODE_SECONDS = 1.0
_NEXT_NODE_SHARE = 0.1


class Lane(Enum):
    """Selects one of the connections to a node."""

    SHARED = "shared"
    TAIL = "tail"  # fetches that wait for records
    CATCH_UP = "catch-up"  # fetches of records that exist already
    GROUP = "group"
    TRANSACTION = "transaction"  # must not wait behind produce requests of the same producer


@dataclass(slots=True)
class Line:
    """The connection to one address in one lane, and its retry state."""

    backoff: Backoff
    host: Host
    retry_at: float = 0.0  # loop time before which no connection is tried
    connection: Connection | None = None
    opening: asyncio.Task[Connection] | None = field(default=None)


class Connections:
    """The connections of one client. Used from one event loop only."""

    def __init__(self, options: ClientOptions, buffers: FrameBuffers) -> None:
        self._options = options
        self._buffers = buffers
        self._timeout_s = options.request_timeout_ms / 1000
        self._is_closed = False
        self.lines: dict[tuple[Address, Lane], Line] = {}

    def refuse(self) -> None:
        """Open no connection any more: the client is closed."""
        self._is_closed = True

    async def close_all(self) -> None:
        """Close every connection, and give up those that are being opened.

        If it is cancelled they are closed too, but have not ended yet.
        """
        lines = list(self.lines.values())
        self.lines.clear()
        openings = [line.opening for line in lines if line.opening is not None]
        for opening in openings:
            opening.cancel()
        open_ones = [line.connection for line in lines if line.connection is not None]
        for connection in open_ones:
            connection.abort()
        await asyncio.gather(*openings, return_exceptions=True)
        for connection in open_ones:
            await connection.close()

    def close_others(self, current: Collection[Address]) -> None:
        """Close connections to all other addresses."""
        for key in [key for key in self.lines if key[0] not in current]:
            if (connection := self.lines[key].connection) is not None and connection.is_open:
                connection.abort()
            if self.lines[key].opening is None:
                del self.lines[key]

    def open_one(self, address: Address, lane: Lane) -> Connection | None:
        """Return the connection if it is open now."""
        line = self.lines.get((address, lane))
        connection = line.connection if line is not None else None
        return connection if connection is not None and connection.is_open else None

    def any_open(self) -> Connection | None:
        """Return any connection that is open, but for those that slow requests have."""
        for (_, lane), line in self.lines.items():
            if lane is Lane.SHARED and line.connection is not None and line.connection.is_open:
                return line.connection
        return None

    async def first_of(self, addresses: Iterable[Address]) -> Connection:
        """Return a connection to the first of the addresses that answers, tried in this order.

        One that does not answer soon costs little: the next one is tried beside it.
        """
        try:
            return await first_success(
                [partial(self.to, address, Lane.SHARED) for address in addresses],
                next_after_s=min(NEXT_NODE_SECONDS, self._timeout_s * _NEXT_NODE_SHARE),
            )
        except AllFailed as failed:
            errors = failed.errors
        raise errors[-1] if errors else ConnectionFailed("no node is known")

    async def to(self, address: Address, lane: Lane) -> Connection:
        """Return an open connection to the address. Raises ``ConnectionFailed`` and others."""
        if self._is_closed:
            raise ClientClosed("the client is closed")
        line = self.lines.get((address, lane))
        if line is None:
            options = self._options
            backoff = Backoff(options.reconnect_backoff_ms, options.reconnect_backoff_max_ms)
            line = self.lines.setdefault((address, lane), Line(backoff, Host(*address)))
        if line.connection is not None and line.connection.is_open:
            return line.connection
        if line.opening is None:
            line.opening = asyncio.get_running_loop().create_task(self._open(address, line))
            line.opening.add_done_callback(_retrieve)
        opening = line.opening
        try:
            # Shielded: others may wait for the same connection.
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if opening.cancelled() and task is not None and not task.cancelling():
                raise ClientClosed("the client was closed during the call") from None
            raise

    async def _open(self, address: Address, line: Line) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            if (wait_s := line.retry_at - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            if line.connection is not None:
                # Later requests of a producer must not overtake those in flight.
                await line.connection.wait_retired()
            connection = await open_connection(
                address,
                client_id=self._options.client_id,
                timeout_s=self._setup_s(line),
                ssl=self._options.ssl,
                host=line.host,
                buffers=self._buffers,
            )
            await self._log_in(connection)
        except TidelogError:
            line.host.note_useless()
            line.retry_at = loop.time() + line.backoff.next_s()
            raise
        else:
            line.backoff.reset()
            line.connection = connection
            return connection
        finally:
            line.opening = None

    def _setup_s(self, line: Line) -> float:
        """Return the time that the connection and its first answer may take."""
        options = self._options
        setup_ms = line.backoff.doubled_ms(
            options.socket_connection_setup_timeout_ms,
            max_ms=options.socket_connection_setup_timeout_max_ms,
        )
        return min(setup_ms / 1000, self._timeout_s)

    async def _log_in(self, connection: Connection) -> None:
        """Log in if the options have a login; the connection is closed if that fails."""
        if self._options.sasl is None:
            return
        try:
            await log_in(connection, self._options.sasl, timeout_s=self._timeout_s)
        except BaseException:
            connection.abort()
            raise


def _retrieve(task: asyncio.Task[Connection]) -> None:
    """Retrieve the task's exception, in case no caller awaits the task any more."""
    if not task.cancelled():
        task.exception()
