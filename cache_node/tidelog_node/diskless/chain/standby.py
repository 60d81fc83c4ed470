"""Makes a node ready to take diskless partitions over before it has to.

The first chain of a node costs the start of its WAL worker and a probe of the store: seconds in
which a dead leader's producers would wait. So they come with the first diskless topic of the
cluster. A cluster without such topics does without.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from tidelog_core.errors import InvalidConfig, TidelogError
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.replication.placement.heirs import wants_diskless
from tidelog_core.waiting import wait_and_clear

from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

RETRY_SECONDS = 5.0


async def stand_by(node: NodeContext, prepare: Callable[[], Awaitable[object]]) -> None:
    """Call ``prepare`` once there is a diskless topic, until it succeeds; then wait for ever.

    ``prepare`` raises retriable errors, and ``InvalidConfig`` if there is no use in trying again.
    """
    found = asyncio.Event()

    def look(image: ClusterImage, names: Iterable[str]) -> None:
        topics = (image.topic(name) for name in names)
        if any(topic is not None and wants_diskless(topic) for topic in topics):
            found.set()

    unsubscribe = node.view.subscribe(look)
    try:
        look(node.view.image, node.view.image.topics)
        await found.wait()
    finally:
        unsubscribe()
    never = asyncio.Event()
    while True:
        try:
            await prepare()
        except InvalidConfig:
            break  # Leading such a partition logs the same error.
        except TidelogError as error:
            logger.info(
                "preparing for diskless partitions failed, will retry", extra={"reason": str(error)}
            )
            await wait_and_clear(never, RETRY_SECONDS)
        else:
            break
    await never.wait()
