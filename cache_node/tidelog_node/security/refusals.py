"""The log of clients that a listener refuses: bounded, so that no client can fill a disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import Protocol

logger = logging.getLogger(__name__)

SILENT_SECONDS = 60.0  # after a line about a client's host
HOSTS_MAX = 1000  # remembered at a time


class RefusedClient(Protocol):
    """A client's session."""

    @property
    def client_host(self) -> str:
        """The client's address."""

    @property
    def client_port(self) -> int:
        """The client's port."""

    @property
    def listener(self) -> str:
        """The name of the listener that it connected to."""


class RefusalLog:
    """Logs one line for each listener, client host and minute. For the node's event loop.

    Many clients retry at once and for ever. While more than ``HOSTS_MAX`` hosts are
    refused within a minute, the others are only counted, and the count is in the next line.
    """

    def __init__(self, *, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._logged: dict[tuple[str, str], float] = {}  # oldest first
        self._unlogged_count = 0

    def note(self, client: RefusedClient, reason: str, *, hint: str = "") -> None:
        """Log that the client was refused, unless its host had a line within the last minute.

        ``hint`` is the operator's next step.
        """
        now, place = self._now(), (client.listener, client.client_host)
        for known, logged_at in list(self._logged.items()):
            if now - logged_at < SILENT_SECONDS:
                break
            del self._logged[known]
        if place in self._logged or len(self._logged) >= HOSTS_MAX:
            self._unlogged_count += 1
            return
        self._logged[place] = now
        extra: dict[str, object] = {
            "client": f"{client.client_host}:{client.client_port}",
            "listener": client.listener,
            "reason": reason,
        }
        if hint:
            extra["hint"] = hint
        if self._unlogged_count:
            extra["unlogged_count"] = self._unlogged_count
            self._unlogged_count = 0
        logger.warning("client refused", extra=extra)
