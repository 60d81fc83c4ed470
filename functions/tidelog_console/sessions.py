"""Visitors: who they are, and their connections to the nodes.

A console that asks nobody to log in has one visitor. Otherwise each login makes a session: the
browser has a cookie ``<id>.<Unix time of its end>.<signature>``, and the console has the visitor's
connections, whose nodes know the visitor. A session ends after ``SESSION_SECONDS``, earlier without
requests for ``IDLE_SECONDS``, and with the console, whose secret is another one at every start.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field

from tidelog.admin import Admin
from tidelog.client_factory import ClientFactory
from tidelog.wire.sasl import Sasl
from tidelog_core.errors import TidelogError

from tidelog_console.guard import is_signed, sign
from tidelog_console.settings import ConsoleSettings

SESSION_SECONDS = 12 * 3600.0
IDLE_SECONDS = 3600.0
SESSIONS_MAX = 64
SESSIONS_PER_USER_MAX = 8
LOGINS_AT_ONCE_MAX = 4
LOGIN_SECONDS_MAX = 15.0
ADMIN_TIMEOUT_MS = 10_000
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
_PURPOSE = "session"


class TooManySessions(TidelogError):
    """No more visitors can log in just now."""

    hint = "log out elsewhere, or try again later"


@dataclass(slots=True, eq=False)
class Visitor:
    """A visitor and the connections that act for it."""

    name: str | None  # None: nobody has to log in
    factory: ClientFactory
    admin: Admin
    ends_at: float = float("inf")  # time.time
    used_at: float = 0.0  # time.monotonic
    stream_count: int = 0  # open streams of events
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def keep_alive(self) -> None:
        """Note that it is there."""
        self.used_at = time.monotonic()

    async def close(self) -> None:
        """End its streams and close its connections."""
        self.ended.set()
        await self.admin.close()


class Sessions:
    """The visitors of one console. Used from its event loop."""

    def __init__(self, settings: ConsoleSettings) -> None:
        """Raises ``InvalidConfig``."""
        self.secret = secrets.token_bytes(32)
        self._settings = settings
        self._tls = settings.node_tls()
        self._by_id: dict[str, Visitor] = {}
        self._logins = asyncio.Semaphore(LOGINS_AT_ONCE_MAX)
        self._anyone = None if settings.asks_to_log_in else self._visitor(None, None)

    def find(self, cookie: str | None) -> Visitor | None:
        """Return the visitor of a request; None if it has to log in."""
        if self._anyone is not None:
            return self._anyone
        session_id = self._valid_id(cookie or "")
        visitor = None if session_id is None else self._by_id.get(session_id)
        if visitor is None:
            return None
        if time.monotonic() - visitor.used_at > IDLE_SECONDS:
            return None
        visitor.keep_alive()
        return visitor

    async def log_in(self, user: str, password: str, mechanism: str) -> str:
        """Let a node decide who it is; return the cookie of a new session.

        Raises ``AuthenticationFailed``, ``InvalidConfig`` for a name or password that no user can
        have, ``ConnectionFailed`` and ``TooManySessions``.
        """
        await self._end_old()
        visitor = self._visitor(user, Sasl(mechanism, user, password))
        try:
            async with asyncio.timeout(LOGIN_SECONDS_MAX), self._logins:
                await visitor.admin.start()
            await self._make_room(user)
        except TimeoutError:
            await visitor.close()
            raise TooManySessions("too many logins at once") from None
        except BaseException:
            await visitor.close()
            raise
        visitor.ends_at = time.time() + SESSION_SECONDS
        return self._keep(visitor)

    async def log_out(self, cookie: str | None) -> None:
        """End the session of the cookie, if there is one."""
        session_id = self._valid_id(cookie or "")
        visitor = None if session_id is None else self._by_id.pop(session_id, None)
        if visitor is not None:
            await visitor.close()

    async def close(self) -> None:
        """Close everything."""
        visitors = list(self._by_id.values())
        if self._anyone is not None:
            visitors.append(self._anyone)
        self._by_id.clear()
        await asyncio.gather(*(visitor.close() for visitor in visitors))

    def _visitor(self, name: str | None, sasl: Sasl | None) -> Visitor:
        factory = self._settings.clients(self._tls, sasl)
        return Visitor(name, factory, factory.make(Admin, timeout_ms=ADMIN_TIMEOUT_MS))

    def _keep(self, visitor: Visitor) -> str:
        """Return the cookie of a new session."""
        session_id = secrets.token_urlsafe(32)
        visitor.keep_alive()
        self._by_id[session_id] = visitor
        signed = f"{session_id}.{int(visitor.ends_at)}"
        return f"{signed}.{sign(self.secret, _PURPOSE, signed)}"

    def _valid_id(self, cookie: str) -> str | None:
        signed, _, signature = cookie.rpartition(".")
        if not is_signed(self.secret, _PURPOSE, signed, signature):
            return None
        session_id, _, end = signed.rpartition(".")
        return session_id if end.isdecimal() and time.time() < int(end) else None

    async def _end_old(self) -> None:
        now, at = time.monotonic(), time.time()
        old = [
            session_id
            for session_id, visitor in self._by_id.items()
            if visitor.ends_at < at or now - visitor.used_at > IDLE_SECONDS
        ]
        await asyncio.gather(*(self._by_id.pop(session_id).close() for session_id in old))

    async def _make_room(self, user: str) -> None:
        """End the user's longest unused session. Raises ``TooManySessions`` for other users'."""
        own = [session_id for session_id, one in self._by_id.items() if one.name == user]
        if len(own) < SESSIONS_PER_USER_MAX and len(self._by_id) < SESSIONS_MAX:
            return
        if not own:
            raise TooManySessions(f"{SESSIONS_MAX} visitors are logged in already")
        oldest = min(own, key=lambda session_id: self._by_id[session_id].used_at)
        await self._by_id.pop(oldest).close()
