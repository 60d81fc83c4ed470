"""A gateway's connections to leaders: requests in order, without waiting for answers.

The first request of a connection is ApiVersions. A leader of an older version announces no
GatewayAppend, and closes connections on which it gets one with headers. It gets them without, and
reads the batches before it appends them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from uuid import UUID

from kio.schema.api_versions.v3 import request as api_versions
from tidelog.wire.requests import API_VERSIONS, decode_api_versions
from tidelog.wire.requests import encode_request as encode_message
from tidelog_core.errors import BrokerNotAvailable, TidelogError
from tidelog_core.wire_messages import build

from tidelog_node.dialing.pipelined_connection import PipelinedConnection
from tidelog_node.node_context import NodeContext
from tidelog_node.wire.gateway_append import (
    API_KEY,
    GatewayAppend,
    GatewayResult,
    encode_request,
    parse_answer,
)

CONNECT_SECONDS_MAX = 2.0
ANSWER_SECONDS_MAX = 45.0  # a leader gives up before
UNANNOUNCED = (0, 0)  # the versions of a leader that does not name the API


class NotSent(TidelogError):
    """The leader cannot be reached, and has not got the request."""


class _Sent:
    """A request, and the future of its results."""

    __slots__ = ("request", "results")

    def __init__(
        self, request: GatewayAppend, results: asyncio.Future[list[GatewayResult]]
    ) -> None:
        self.request = request
        self.results = results


class LeaderLink:
    """The connection to one process of a broker, opened when it is needed."""

    def __init__(self, dial: Callable[[], Awaitable[PipelinedConnection]]) -> None:
        """``dial`` raises ``TidelogError``, ``OSError`` and ``TimeoutError``."""
        self._dial = dial
        self._connection: PipelinedConnection | None = None
        self._version_max: int | None = None  # of the process; None: not asked yet
        self._unsent: deque[_Sent] = deque()
        self._connecting: asyncio.Task[None] | None = None
        self._next_id = 0
        self._is_closed = False

    def send(self, request: GatewayAppend) -> asyncio.Future[list[GatewayResult]]:
        """Send the request behind all earlier ones; return its results.

        The future raises ``NotSent``; ``OSError``, ``TimeoutError`` or ``ValueError`` if the leader
        may have acted on it.
        """
        results: asyncio.Future[list[GatewayResult]] = asyncio.get_running_loop().create_future()
        sent = _Sent(request, results)
        connection = self._connection
        if self._is_closed:
            results.set_exception(NotSent("this node is stopping"))
        elif connection is not None and connection.is_open:
            self._send(connection, sent)
        else:
            self._unsent.append(sent)
            if self._connecting is None:
                self._connecting = asyncio.create_task(self._connect())
        return results

    def close(self) -> None:
        """Close the connection; sent requests may have been carried out."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.close()
        self._refuse(NotSent("this node is stopping"))

    async def _connect(self) -> None:
        try:
            connection = await self._dial()
            if self._version_max is None:
                await self._ask_version(connection)
        except (TidelogError, OSError, TimeoutError) as error:
            self._refuse(NotSent(f"the leader cannot be reached: {error!r}"))
        else:
            self._connection = connection
            unsent, self._unsent = self._unsent, deque()
            for sent in unsent:
                self._send(connection, sent)
        finally:
            self._connecting = None

    async def _ask_version(self, connection: PipelinedConnection) -> None:
        """Find out the newest version of GatewayAppend that the leader takes.

        Else closes the connection, and raises ``OSError``, ``TimeoutError`` or ``TidelogError``.
        """
        correlation_id = self._take_id()
        frame = encode_message(
            API_VERSIONS,
            0,
            correlation_id=correlation_id,
            client_id=b"",
            message=build(
                api_versions.ApiVersionsRequest,
                client_software_name="tidelog-node",
                client_software_version="1",
            ),
        )
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                answer = await connection.send(frame, correlation_id)
            versions = decode_api_versions(0, correlation_id.to_bytes(4, "big") + answer)
        except BaseException:
            connection.close()
            raise
        self._version_max = versions.ranges.get(API_KEY, UNANNOUNCED)[1]

    def _refuse(self, error: NotSent) -> None:
        unsent, self._unsent = self._unsent, deque()
        for sent in unsent:
            if not sent.results.done():
                sent.results.set_exception(error)

    def _take_id(self) -> int:
        correlation_id, self._next_id = self._next_id, (self._next_id + 1) & 0x7FFFFFFF
        return correlation_id

    def _send(self, connection: PipelinedConnection, sent: _Sent) -> None:
        assert self._version_max is not None
        correlation_id = self._take_id()
        frame = encode_request(sent.request, correlation_id, version_max=self._version_max)
        answer = connection.send(frame, correlation_id)
        # A late answer would keep all that follow back: the connection has failed.
        timer = asyncio.get_running_loop().call_later(ANSWER_SECONDS_MAX, connection.close)

        def on_answer(done: asyncio.Future[bytes]) -> None:
            timer.cancel()
            if sent.results.done():
                return
            error = None if done.cancelled() else done.exception()
            if done.cancelled() or error is not None:
                sent.results.set_exception(error or ConnectionAbortedError("cancelled"))
                return
            try:
                results = parse_answer(memoryview(done.result()), len(sent.request.slices))
            except ValueError as problem:
                sent.results.set_exception(problem)
            else:
                sent.results.set_result(results)

        answer.add_done_callback(on_answer)


class LeaderLinks:
    """The links of a gateway, one to each leader's process. For the node's event loop."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._links: dict[UUID, LeaderLink] = {}
        self._is_closed = False

    def send(self, broker_id: int, request: GatewayAppend) -> asyncio.Future[list[GatewayResult]]:
        """Send the request to the broker; as ``LeaderLink.send``."""
        brokers = self._node.view.image.brokers
        broker = brokers.get(broker_id)
        if broker is None or self._is_closed:
            results: asyncio.Future[list[GatewayResult]]
            results = asyncio.get_running_loop().create_future()
            results.set_exception(NotSent(f"broker {broker_id} is not registered"))
            return results
        link = self._links.get(broker.incarnation)
        if link is None:
            known = {one.incarnation for one in brokers.values()}
            for gone in self._links.keys() - known:
                self._links.pop(gone).close()
            link = self._links[broker.incarnation] = LeaderLink(partial(self._dial, broker_id))
        return link.send(request)

    async def _dial(self, broker_id: int) -> PipelinedConnection:
        broker = self._node.view.image.brokers.get(broker_id)
        if broker is None:
            raise BrokerNotAvailable(f"broker {broker_id} is not registered")
        return await self._node.dialer.dial_pipelined(broker, timeout_s=CONNECT_SECONDS_MAX)

    def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        for link in self._links.values():
            link.close()
        self._links.clear()
