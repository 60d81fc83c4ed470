"""The time for which nothing is read from a connection, because its client is over a quota."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidelog_node.requests.session import Again


class Mute:
    """Counts such a time, or the longest of several, and calls back at its end."""

    __slots__ = ("_again", "_loop", "_on_end", "_timer", "_until")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_end: Callable[[], None]) -> None:
        """``on_end`` is called at the end, unless ``cancel`` was."""
        self._loop = loop
        self._on_end = on_end
        self._until = 0.0  # the loop's time
        self._again: Again | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_on(self) -> bool:
        """Whether the time is not up."""
        return self._timer is not None

    def extend(self, seconds: float, again: Again | None) -> bool:
        """Last for this time from now on; return false if it lasts longer already.

        ``again`` returns, at the end of that time, for how many seconds more.
        """
        until = self._loop.time() + seconds
        if until <= self._until:
            return False
        self.cancel()
        self._until = until
        self._again = again
        self._timer = self._loop.call_at(until, self._end)
        return True

    def cancel(self) -> None:
        """End without the call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        seconds = 0.0 if self._again is None else self._again()
        if seconds <= 0 or not self.extend(seconds, self._again):
            self._on_end()
