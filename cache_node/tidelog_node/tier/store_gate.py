"""Keeps the calls of a worker's connection back until its object store is recognized.

``StoreIdentity`` says how a store is recognized. The client makes one gate for each connection and
runs it as long as the connection lasts.

What may interleave:

- *Calls before the result.* They wait for the one check, and share its result. A caller that is
  cancelled does not end it.
- *The worker ends during the check.* Waiting calls fail with ``WorkerAway``. The next connection
  has a gate of its own. An answer of the earlier worker cannot open that one.
- *The store is wrong, or cannot be asked.* Calls fail at once with the last failure. The check is
  repeated, also if nobody calls, so that the fault is over soon after its cause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tidelog_core.errors import (
    StoreUnavailable,
    TidelogError,
    TierUnavailable,
    WrongObjectStore,
)

from tidelog_node.node_health import NodeHealth
from tidelog_node.tier.worker_store import WorkerAway

logger = logging.getLogger(__name__)

CHECK_PAUSE_S = 1.0  # after a failed check
WRONG_STORE = "wrong-object-store"  # a fault


class StoreGate:
    """The gate of one connection. For the tasks of one event loop."""

    def __init__(
        self, check: Callable[[], Awaitable[None]], *, health: NodeHealth, worker: str
    ) -> None:
        """``check`` raises unless the store is recognized. ``worker`` is its name, for people."""
        self._check = check
        self._health = health
        self._worker = worker
        self._has_result = asyncio.Event()
        self._failure: TidelogError = WorkerAway("the tier worker ended before its first call")
        self.is_open = False

    async def run(self) -> None:
        """Check the store until it is recognized."""
        try:
            while not self.is_open:
                await self._try()
                self._has_result.set()
                if not self.is_open:
                    await asyncio.sleep(CHECK_PAUSE_S)
        finally:
            self._has_result.set()

    async def opened(self) -> None:
        """Wait for the result of a check.

        Raises ``WrongObjectStore``, ``StoreUnavailable``, ``TierUnavailable``, ``WorkerAway``.
        """
        await self._has_result.wait()
        if not self.is_open:
            raise self._failure.with_traceback(None)

    async def _try(self) -> None:
        try:
            await self._check()
        except WrongObjectStore as error:
            self._failure = error
            self._report(error)
        except (StoreUnavailable, TierUnavailable) as error:
            self._failure = error
        except TidelogError as error:
            self._failure = StoreUnavailable(f"the object store is not recognized: {error}")
        except Exception as error:  # A fault of ours must not keep the worker away unsaid.
            logger.exception("object store check failed unexpectedly")
            self._failure = StoreUnavailable(f"the object store is not recognized: {error!r}")
        else:
            self.is_open = True
            if self._health.clear(WRONG_STORE, subject=self._worker):
                logger.warning("object store recognized again", extra={"worker": self._worker})

    def _report(self, error: WrongObjectStore) -> None:
        detail = f"{error}; {error.hint}"
        if self._health.report(WRONG_STORE, detail, subject=self._worker):
            logger.error(
                "object store is not the cluster's, nothing is written to it",
                extra={"worker": self._worker, "reason": str(error), "hint": error.hint},
            )
