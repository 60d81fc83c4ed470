"""Opens all connections from this node to other brokers.

What connections between nodes need besides an address, such as certificates, belongs here.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tidelog.wire.connection import Address, Connection, open_connection
from tidelog_core.metadata.endpoints import BrokerEndpoint

from tidelog_node.dialing.leader_connection import LeaderConnection


@dataclass(frozen=True, slots=True)
class Dialer:
    """Opens connections on behalf of one broker."""

    broker_id: int

    async def dial(self, endpoint: BrokerEndpoint, *, timeout_s: float) -> Connection:
        """Return a connection that negotiates the versions of its requests.

        Raises ``ConnectionFailed`` and ``RequestTimedOut``.
        """
        return await open_connection(
            Address(endpoint.host, endpoint.port),
            client_id=f"tidelog-node-{self.broker_id}",
            timeout_s=timeout_s,
        )

    async def dial_leader(self, endpoint: BrokerEndpoint, *, timeout_s: float) -> LeaderConnection:
        """Return a connection for encoded requests, such as followers' fetches.

        Raises ``OSError`` and ``TimeoutError``.
        """
        async with asyncio.timeout(timeout_s):
            return await LeaderConnection.connect(endpoint.host, endpoint.port)
