"""Checks that the object store can have chains, before a diskless topic is created.

A topic that no node can lead is worse than an error when it is created. The store is asked once; if
it does not answer in time, the topic is created, and its leaders ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from tidelog_core.admin.settings.diskless_topics import ENABLE
from tidelog_core.admin.topics.topic_plans import NewTopic
from tidelog_core.config import NodeConfig
from tidelog_core.errors import InvalidConfig, TidelogError

SECONDS_MAX = 10.0


class ChainStoreCheck:
    """Asks ``check`` once it is set. For the node's event loop only."""

    def __init__(self) -> None:
        # Raises ``InvalidConfig`` if there can be no chains. ``None``: this node does not know yet.
        self.check: Callable[[], Awaitable[object]] | None = None
        self._asking: asyncio.Task[InvalidConfig | None] | None = None

    async def refused(
        self, topics: Iterable[NewTopic], config: NodeConfig, *, seconds_max: float
    ) -> dict[str, TidelogError]:
        """Return the topics that would be diskless in a store that cannot have such topics."""
        default = "true" if config.log_diskless_enable else "false"
        diskless = [new.name for new in topics if new.configs.get(ENABLE, default) == "true"]
        refusal = await self.refusal(seconds_max=seconds_max) if diskless else None
        return {} if refusal is None else dict.fromkeys(diskless, refusal)

    async def refusal(self, *, seconds_max: float = SECONDS_MAX) -> InvalidConfig | None:
        """Return why the store can have no chains, ``None`` if it can or gives no answer."""
        if self.check is None:
            return None
        if self._asking is None or self._asking.done():
            # The question goes on if this request gives up: an object of the probe is removed then.
            self._asking = asyncio.create_task(_ask(self.check))
        await asyncio.wait([self._asking], timeout=min(seconds_max, SECONDS_MAX))
        return self._asking.result() if self._asking.done() else None


async def _ask(check: Callable[[], Awaitable[object]]) -> InvalidConfig | None:
    try:
        await check()
    except InvalidConfig as error:
        return error
    except TidelogError:
        return None  # The store is away: nothing is known.
    return None
