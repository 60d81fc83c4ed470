"""How a node reaches other brokers."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tidelog.errors import ConnectionFailed, RequestTimedOut
from tidelog_core.metadata.endpoints import BrokerEndpoint
from tidelog_node.dialing.dialer import Dialer


async def test_a_broker_that_does_not_listen_is_a_connection_that_failed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = BrokerEndpoint("NODE", *server.getsockname())
    with pytest.raises(ConnectionFailed):
        await Dialer(1).dial(endpoint, timeout_s=5)
    with pytest.raises(OSError, match="failed"):
        await Dialer(1).dial_leader(endpoint, timeout_s=5)


async def test_a_broker_that_answers_nothing_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = BrokerEndpoint("NODE", *server.getsockname())
        with pytest.raises(RequestTimedOut):
            await Dialer(1).dial(endpoint, timeout_s=0.1)
        # A leader's connection is asked only by its first request.
        connection = await Dialer(1).dial_leader(endpoint, timeout_s=5)
        connection.close()
        await asyncio.sleep(0)
