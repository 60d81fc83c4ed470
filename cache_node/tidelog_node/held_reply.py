"""An answer before which its connection handles nothing further, until it is released."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidelog_node.owed_reply import Reply


class HeldReply(asyncio.Future[Reply]):
    """Made by a handler that has to see to a request before it sees the next of its client.

    The connection sets ``on_released``. An empty answer sends nothing.
    """

    on_released: Callable[[], None] | None = None

    def release(self) -> None:
        """Let the connection go on: what comes next may be handled before this is answered."""
        if self.on_released is not None:
            self.on_released()
            self.on_released = None
