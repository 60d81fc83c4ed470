"""An answer before which its connection handles nothing further, until it is released."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidelog_node.owed_reply import Reply

logger = logging.getLogger(__name__)


class HeldReply(asyncio.Future[Reply]):
    """Made by a handler that has to see to a request before it sees the next of its client.

    The connection sets ``on_released``, and is closed where this fails or is cancelled: a
    handler that fails does not release it before, so that nothing further is handled. An empty
    answer sends nothing.
    """

    on_released: Callable[[], None] | None = None

    def release(self) -> None:
        """Let the connection go on: what comes next may be handled before this is answered."""
        if self.on_released is not None:
            self.on_released()
            self.on_released = None

    def take_from(self, work: asyncio.Task[Reply]) -> None:
        """Be answered, failed or cancelled as the work was, unless the client has left."""
        if work.cancelled():
            self.cancel()
            return
        problem = work.exception()
        if problem is None:
            if not self.done():
                self.set_result(work.result())
        elif self.done():
            reason = repr(problem)
            logger.warning("request of a client that has left failed", extra={"reason": reason})
        else:
            self.set_exception(problem)
