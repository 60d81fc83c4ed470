"""Waits until the other brokers know this one, before the node says that it is ready.

Each broker reads registrations at its polls, so for ``metadata.poll.interval.ms`` some show this
one to clients and others do not. A client drops a broker that the newest Metadata response does not
show, and fails the requests that wait for its answers (librdkafka does: «Broker handle destroyed
without termination»). So whoever creates a topic as soon as a cluster says that it is ready must
find the same brokers in every response.

A broker refuses connections of nodes whose registration it has not read (``NodeTrust``). One that
it answers proves that it has. Brokers that have ended or do not answer are not waited for long.
"""

from __future__ import annotations

import asyncio
import logging

from tidelog.wire.host_addresses import PortRefused
from tidelog_core.errors import TidelogError
from tidelog_core.metadata.image.cluster_view import poll_seconds
from tidelog_core.metadata.records import Broker

from tidelog_node.dialing.dialer import Dialer
from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

POLLS = 3  # that a broker has time for
SECONDS_MIN = 1.0  # for connections, however short the polls are
SECONDS_MAX = 10.0  # one broker that hangs must not hold up a start, however long the polls are
PAUSE_SECONDS = 0.02  # between two attempts at one broker
AT_ONCE = 16  # brokers that are dialed; those that hang take turns with the others


async def introduce(node: NodeContext) -> None:
    """Return once all live brokers have read this one's registration, or some have taken too long.

    The registration is stored, and this node accepts connections: a broker that starts at the same
    time waits for it as it does for that broker.
    """
    image, interval_s = node.view.image, node.static_config.metadata_poll_interval_ms / 1000
    live = node.membership.live_brokers(image)
    others = [broker for broker_id, broker in live.items() if broker_id != node.broker_id]
    free = asyncio.Semaphore(AT_ONCE)
    unknown = {broker.broker_id for broker in others}

    async def meet(broker: Broker) -> None:
        while True:
            async with free:
                if await _has_met(node.dialer, broker):
                    break
            await asyncio.sleep(PAUSE_SECONDS)
        unknown.remove(broker.broker_id)

    try:
        async with (
            asyncio.timeout(_seconds_max(poll_seconds(image, interval_s))),
            asyncio.TaskGroup() as meetings,
        ):
            for broker in others:
                meetings.create_task(meet(broker))
    except TimeoutError:
        logger.warning("brokers may not know this one yet", extra={"brokers": sorted(unknown)})


def _seconds_max(poll_s: float) -> float:
    return min(max(SECONDS_MIN, POLLS * poll_s), SECONDS_MAX)


async def _has_met(dialer: Dialer, broker: Broker) -> bool:
    """Return whether the broker answers this node, or nothing listens at its address."""
    try:
        connection = await dialer.dial(broker, timeout_s=SECONDS_MIN)
    except TidelogError as error:
        return isinstance(error.__cause__, PortRefused)
    await connection.close()
    return True
