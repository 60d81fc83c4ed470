"""Has Produce requests for diskless partitions wait while the chain has too much pending.

While the object store takes nothing, records that the chain has not committed pile up in the local
logs. At ``diskless.buffer.max.bytes`` no more are appended: a request waits unread in its
connection, and nothing more is read from its client. So what waits is bounded by
``queued.max.request.bytes``. Once the chain has room, requests are carried out in the order in
which they came, one a turn of the loop, until it is full again. A request that has waited for half
of its own time is refused with REQUEST_TIMED_OUT before its client gives up; nothing of it was
appended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from tidelog_node.fairness.partition_pace import NotYet
from tidelog_node.requests.session import Session

WAIT_SECONDS_MAX = 30.0
TIME_SHARE = 0.5  # of the request's own time


class _Wait:
    """A request at the head of its connection."""

    __slots__ = ("deadline", "is_late", "timer", "try_again")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline  # the loop's time
        self.is_late = False
        self.timer: asyncio.TimerHandle | None = None
        self.try_again: Callable[[], None] | None = None


class DisklessAdmission:
    """The line of requests that wait for room in the chain. For the node's event loop only."""

    def __init__(self) -> None:
        self.is_active = False  # the chain is full, or requests wait: ask ``admit``
        self._loop = asyncio.get_running_loop()
        self._is_full = False
        self._is_calling = False  # the next request's turn is scheduled
        self._line: dict[Session, _Wait] = {}  # in order
        self._called: dict[Session, _Wait] = {}  # whose turn has come, or whose time is up

    def set_full(self, is_full: bool) -> None:
        """Note that the chain has become full, or has room again."""
        self._is_full = is_full
        self._note_active()
        self._call_next()

    def admit(self, session: Session, timeout_ms: int) -> bool:
        """Return whether the session's next request may be carried out; false if its time is up.

        Raises ``NotYet`` if it must wait.
        """
        wait = self._line.get(session) or self._called.get(session)
        if wait is None:
            if not self._is_full:
                return True
            seconds = min(max(timeout_ms, 0) / 1000 * TIME_SHARE, WAIT_SECONDS_MAX)
            wait = self._line[session] = _Wait(self._loop.time() + seconds)
            session.on_close(self._forget)
        elif not self._is_full:
            self._forget(session)
            return True
        elif wait.is_late:
            self._forget(session)
            return False
        elif session in self._called:
            # It was full again before this request's turn: it keeps its place.
            del self._called[session]
            self._line = {session: wait, **self._line}
        raise NotYet(partial(self._wait, session, wait))

    def _wait(self, session: Session, wait: _Wait, try_again: Callable[[], None]) -> None:
        wait.try_again = try_again
        if wait.timer is None:
            wait.timer = self._loop.call_at(wait.deadline, self._expire, session, wait)
        self._note_active()

    def _call_next(self) -> None:
        if self._line and not self._is_full and not self._is_calling:
            self._is_calling = True
            self._loop.call_soon(self._on_turn)

    def _on_turn(self) -> None:
        self._is_calling = False
        if self._line and not self._is_full:
            self._call(next(iter(self._line)))
        self._call_next()

    def _expire(self, session: Session, wait: _Wait) -> None:
        wait.is_late = True
        self._call(session)

    def _call(self, session: Session) -> None:
        """Have the connection repeat its request. If it is paused, it does so later."""
        wait = self._line.pop(session, None)
        if wait is None:
            return
        self._called[session] = wait
        if wait.try_again is not None:
            wait.try_again()

    def _forget(self, session: Session) -> None:
        wait = self._line.pop(session, None) or self._called.pop(session, None)
        if wait is not None and wait.timer is not None:
            wait.timer.cancel()
        self._note_active()

    def _note_active(self) -> None:
        self.is_active = self._is_full or bool(self._line) or bool(self._called)
