"""Opens all connections from this node to other brokers.

What a connection between nodes needs beyond an address, such as certificates, is this class's.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tidelog.wire.connection import Address, Connection, open_connection
from tidelog_core.metadata.endpoints import BrokerEndpoint

from tidelog_node.dialing.leader_connection import LeaderConnection


@dataclass(frozen=True, slots=True)
class Dialer:
    """Opens connections in the name of a broker."""

    broker_id: int

    async def dial(self, endpoint: BrokerEndpoint, *, timeout_s: float) -> Connection:
        """Return a connection for requests whose versions are negotiated.

        Raises ``ConnectionFailed`` and ``RequestTimedOut``.
        """
        return await open_connection(
            Address(endpoint.host, endpoint.port),
            client_id=f"tidelog-node-{self.broker_id}",
            timeout_s=timeout_s,
        )

    async def dial_leader(self, endpoint: BrokerEndpoint, *, timeout_s: float) -> LeaderConnection:
        """Return a connection that takes encoded requests, as followers' fetches are.

        Raises ``OSError`` and ``TimeoutError``.
        """
        async with asyncio.timeout(timeout_s):
            return await LeaderConnection.connect(endpoint.host, endpoint.port)
