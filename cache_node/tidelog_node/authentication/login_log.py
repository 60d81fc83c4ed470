"""The log of clients that are let in or refused: bounded, so that no client can fill a disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from tidelog_node.requests.session import Session

logger = logging.getLogger(__name__)

SILENT_SECONDS = 60.0  # after a line about a refused client's host
HOSTS_MAX = 1000  # remembered at a time


class LoginRecorder(Protocol):
    """Records who was let in and who was not; ``AuditLog``."""

    def note_login(self, session: Session, method: str) -> None:
        """Record that a client has proved who it is."""

    def note_refused(self, session: Session, reason: str) -> None:
        """Record that a client was refused."""


class LoginLog:
    """Logs one refusal for each listener, client host and minute. For the node's event loop.

    Many clients retry at once and for ever. While more than ``HOSTS_MAX`` hosts are
    refused within a minute, the others are only counted, and the count is in the next line.
    """

    def __init__(
        self, recorder: LoginRecorder | None = None, *, now: Callable[[], float] = monotonic
    ) -> None:
        self._recorder = recorder
        self._now = now
        self._logged: dict[tuple[str, str], float] = {}  # oldest first
        self._unlogged_count = 0

    def accepted(self, client: Session, method: str) -> None:
        """Log that the client has proved who it is, by this mechanism of SASL or a certificate."""
        client.traffic.login_count += 1
        if self._recorder is not None:
            self._recorder.note_login(client, method)
        if not logger.isEnabledFor(logging.DEBUG):  # The fields cost more than the call.
            return
        logger.debug(
            "client authenticated",
            extra={
                "client": f"{client.client_host}:{client.client_port}",
                "principal": str(client.principal),
                "mechanism": method,
            },
        )

    def refused(self, client: Session, reason: str, *, hint: str = "") -> None:
        """Log that the client was refused, unless its host had a line within the last minute.

        ``hint`` is the operator's next step.
        """
        client.traffic.login_refused_count += 1
        if self._recorder is not None:
            self._recorder.note_refused(client, reason)
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
