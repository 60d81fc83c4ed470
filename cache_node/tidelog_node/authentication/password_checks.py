"""Checks the passwords of PLAIN in a thread, with bounds.

A check takes several milliseconds of CPU (PBKDF2). So only one runs at a time, and hosts take
turns: a client with many connections delays only itself. If too many checks wait, the connection
is closed without an answer. Clients retry after such a network error, while a refusal would be
final for many of them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor

from tidelog_core.security.plain import KnownPasswords, PlainLogin, check_password
from tidelog_core.security.scram import ScramCredentials

from tidelog_node.answers import CloseConnection
from tidelog_node.fairness.host_lock import HostLock

CHECKS_WAITING_MAX = 1_000  # they take 5 to 10 seconds
CHECKS_OF_HOST_MAX = 100


class PasswordChecks:
    """The checks that run and wait. For the node's event loop."""

    def __init__(
        self,
        users: Callable[[], ScramCredentials],
        executor: Executor,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``users`` returns the newest credentials, and ``now`` is steady, in seconds."""
        self._users = users
        self._executor = executor
        self._known = KnownPasswords(now)
        self._lane = HostLock()
        self._waiting: Counter[str] = Counter()  # by host, with the running one
        self._waiting_count = 0

    async def check(self, host: str, login: PlainLogin) -> None:
        """Return if the password is right.

        Raises ``AuthenticationFailed``, and ``CloseConnection`` if too many checks wait.
        """
        if self._known.has(login, self._users()):
            return
        if self._waiting_count >= CHECKS_WAITING_MAX or self._waiting[host] >= CHECKS_OF_HOST_MAX:
            raise CloseConnection("too many passwords wait to be checked")
        self._waiting[host] += 1
        self._waiting_count += 1
        try:
            async with self._lane.turn(host):
                # Clients that connect together often have the same password.
                if not self._known.has(login, self._users()):
                    await self._run(login)
        finally:
            self._waiting_count -= 1
            self._waiting[host] -= 1
            if not self._waiting[host]:
                del self._waiting[host]

    async def _run(self, login: PlainLogin) -> None:
        users = self._users()
        loop = asyncio.get_running_loop()
        checking = loop.run_in_executor(self._executor, check_password, login, users)
        try:
            await asyncio.shield(checking)
        except asyncio.CancelledError:
            # The thread continues, and no other check may begin before its end.
            await asyncio.wait([checking])
            raise
        self._known.add(login, users)
