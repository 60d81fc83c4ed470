"""Sends requests of this node to other brokers.

Connections are opened on demand and kept until they break. A broker answers the requests of one
connection in order, so requests that run at the same time use several connections. Requests that
must not wait for slow ones use another ``Peers``.
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from tidelog.wire.connection import Connection
from tidelog.wire.requests import Api
from tidelog_core.errors import CoordinatorNotAvailable
from tidelog_core.metadata.image.cluster_view import ClusterView

from tidelog_node.dialing.dialer import Dialer

CONNECT_SECONDS_MAX = 5.0
CONNECTIONS_MAX = 8


class Peers:
    """Connections to the other brokers. For the tasks of one event loop."""

    def __init__(
        self, view: ClusterView, dialer: Dialer, *, connections_max: int = CONNECTIONS_MAX
    ) -> None:
        """``connections_max`` is per broker."""
        self._view = view
        self._dialer = dialer
        self._connections_max = connections_max
        self._connections: dict[int, list[Connection]] = {}
        self._incarnations: dict[int, UUID] = {}
        self._locks: dict[int, asyncio.Lock] = {}

    async def request(self, broker_id: int, api: Api, message: object, *, timeout_s: float) -> Any:
        """Return the broker's answer as the API's newest class.

        Raises ``TidelogError`` if it does not answer; it may have acted on the request.
        """
        connection = await self._connection(broker_id)
        return await connection.request(api, message, timeout_s=timeout_s)

    async def close(self) -> None:
        """Close every connection."""
        for connections in self._connections.values():
            for connection in connections:
                await connection.close()
        self._connections.clear()

    async def _connection(self, broker_id: int) -> Connection:
        """Return an idle connection, a new one, or at the maximum the least busy one."""
        async with self._locks.setdefault(broker_id, asyncio.Lock()):
            broker = self._view.image.brokers.get(broker_id)
            if broker is None:
                raise CoordinatorNotAvailable(f"broker {broker_id} is not registered")
            known = self._connections.get(broker_id, [])
            if self._incarnations.get(broker_id) != broker.incarnation:
                # Another process has taken the broker id; its address may be another.
                for connection in known:
                    connection.abort()
                self._incarnations[broker_id] = broker.incarnation
            known = [connection for connection in known if connection.is_open]
            self._connections[broker_id] = known
            idlest = min(known, key=lambda each: each.in_flight_count, default=None)
            is_full = len(known) >= self._connections_max
            if idlest is not None and (is_full or idlest.in_flight_count == 0):
                return idlest
            connection = await self._dialer.dial(broker, timeout_s=CONNECT_SECONDS_MAX)
            known.append(connection)
            return connection
