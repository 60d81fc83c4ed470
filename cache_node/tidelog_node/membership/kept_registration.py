"""Keeps this process registered until another one replaces it.

The others take a broker out of the cluster that has been gone for long (``departed_brokers``). If
it only slept, it registers again once it may serve: a registered broker has held its lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from uuid import UUID

from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView

from tidelog_node.membership.membership import Membership
from tidelog_node.membership.registration import BrokerIdTaken

logger = logging.getLogger(__name__)


async def keep_registered(
    view: ClusterView,
    membership: Membership,
    incarnation: UUID,
    *,
    register: Callable[[], Awaitable[None]],
) -> None:
    """Raise ``BrokerIdTaken`` when another process has registered under the id.

    ``register`` returns once the view shows the registration.
    """
    broker_id = membership.broker_id

    def is_mine(image: ClusterImage) -> bool:
        registered = image.brokers.get(broker_id)
        return registered is not None and registered.incarnation == incarnation

    while True:
        image = await view.wait_for(lambda image: not is_mine(image), timeout=None)
        other = image.brokers.get(broker_id)
        if other is not None:
            raise BrokerIdTaken(f"broker {broker_id} was started again, at {other.endpoint}")
        await _wait_until_serving(membership)
        if broker_id not in view.image.brokers:
            logger.warning("this broker was taken out of the cluster, it registers again")
            await register()


async def _wait_until_serving(membership: Membership) -> None:
    may_have_changed = asyncio.Event()
    unsubscribe = membership.subscribe(may_have_changed.set)
    try:
        while not membership.can_serve():
            await may_have_changed.wait()
            may_have_changed.clear()
    finally:
        unsubscribe()
