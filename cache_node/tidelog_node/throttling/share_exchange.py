"""Carries the reports and parts of ``QuotaShares`` between nodes, once a second.

A request of an API of Tidelog's own, which ApiVersions does not show and only nodes may send:

    request   JSON: [[name of the quota, user, client id, demand, quota], …]
    answer    JSON: [part, …]

Both behind the usual headers, without tagged fields.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from tidelog_core.errors import TidelogError
from tidelog_core.quotas.quota_keys import QuotaKey

from tidelog_node.answers import Answer, CloseConnection
from tidelog_node.dialing.leader_connection import LeaderConnection
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import HotRoute, RequestContext
from tidelog_node.requests.session import NO_NODE
from tidelog_node.throttling.quota_shares import REPORTED_MAX, QuotaShares, Report
from tidelog_node.throttling.throttle import Throttle
from tidelog_node.wire.primitives import ELEMENTS_UNBOUNDED, MalformedRequest

logger = logging.getLogger(__name__)

QUOTA_SHARES_KEY = 20_001  # far from Kafka's
ROUND_SECONDS = 1.0
TIMEOUT_SECONDS = 1.0
_REQUEST_HEAD = struct.Struct(">ihhih")  # size, key, version, correlation id, no client id
_ANSWER_HEAD = struct.Struct(">ii")  # size, correlation id


class ReportedUsage(NamedTuple):
    """A parsed request."""

    reports: Sequence[Report]

    @property
    def element_count(self) -> int:
        """The number of reports."""
        return len(self.reports)


class ShareExchange:
    """Reports to the other nodes, and answers their reports."""

    def __init__(self, node: NodeContext, throttle: Throttle, shares: QuotaShares) -> None:
        self._node = node
        self._throttle = throttle
        self._shares = shares
        self._connections: dict[UUID, LeaderConnection] = {}  # by the process at the other end

    def hot_route(self) -> HotRoute:
        """Return the route for the other nodes' reports."""
        return HotRoute(
            api_key=QUOTA_SHARES_KEY,
            min_version=0,
            max_version=0,
            flexible_from=1,
            parse=parse_reports,
            handle=self.handle,
            advertised_min_version=0,
        )

    def handle(self, request: ReportedUsage, context: RequestContext) -> Answer:
        """Return the sender's parts."""
        node_id = context.session.node_id
        if node_id == NO_NODE:
            raise CloseConnection("a report of usage from a client that is no node")
        body = json.dumps(self._shares.assign(node_id, request.reports)).encode()
        return [_ANSWER_HEAD.pack(4 + len(body), context.correlation_id), body]

    async def run(self) -> None:
        """Report once a second, for ever, while there are quotas."""
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            if self._throttle.is_active:
                await self.report()

    async def report(self) -> None:
        """Report to every live node at the same time, and take the parts that they answer with."""
        by_owner = self._shares.reports()
        own = by_owner.pop(self._node.broker_id)
        self._shares.accept(own, self._shares.assign(self._node.broker_id, own))
        asked = [self._ask(broker_id, reports) for broker_id, reports in by_owner.items()]
        await asyncio.gather(*asked)
        self._shares.expire()

    async def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def _ask(self, broker_id: int, reports: Sequence[Report]) -> None:
        broker = self._node.view.image.brokers.get(broker_id)
        if broker is None:
            return
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                connection = self._connections.get(broker.incarnation)
                if connection is None:
                    connection = await self._node.dialer.dial_leader(
                        broker, timeout_s=TIMEOUT_SECONDS
                    )
                    self._connections[broker.incarnation] = connection
                answer = await connection.exchange(
                    encode_reports(reports), timeout_s=TIMEOUT_SECONDS
                )
                self._shares.accept(reports, json.loads(bytes(answer[4:])))
        except (OSError, TimeoutError, ValueError, TidelogError) as error:
            extra = {"broker_id": broker_id, "reason": repr(error)}
            logger.debug("a node does not answer about quotas", extra=extra)
            gone = self._connections.pop(broker.incarnation, None)
            if gone is not None:
                gone.close()


def encode_reports(reports: Iterable[Report]) -> bytes:
    """Return the request, with its size."""
    rows = [(key.value, *shared_by, demand, quota) for (key, shared_by), demand, quota in reports]
    body = json.dumps(rows).encode()
    return _REQUEST_HEAD.pack(10 + len(body), QUOTA_SHARES_KEY, 0, 0, -1) + body


def parse_reports(
    frame: memoryview, position: int, version: int, elements_max: int = ELEMENTS_UNBOUNDED
) -> ReportedUsage:
    """Return the request whose body begins at ``position``. Raises ``MalformedRequest``."""
    del version, elements_max
    try:
        rows = json.loads(bytes(frame[position:]))
        if len(rows) > REPORTED_MAX:
            raise ValueError(f"{len(rows)} reports, allowed are {REPORTED_MAX}")
        return ReportedUsage(
            [
                Report(
                    (QuotaKey(name), (str(user), str(client_id))),
                    _positive(demand, at_least=0.0),
                    _positive(quota, at_least=5e-324),
                )
                for name, user, client_id, demand, quota in rows
            ]
        )
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        problem = f"reports of usage: {error}"
    raise MalformedRequest(problem)


def _positive(value: object, *, at_least: float) -> float:
    if isinstance(value, int | float) and at_least <= value < float("inf"):
        return float(value)
    raise ValueError(f"{value!r} is no rate")
