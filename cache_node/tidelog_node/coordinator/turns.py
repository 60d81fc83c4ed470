"""Lets many tasks that wait for the same event continue a few at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

AT_ONCE = 200  # of about 0.1 ms each: bounds the delay of the loop's other tasks


class Turns:
    """Tasks that wait until a resource may be used, in order of arrival.

    With ``asyncio.wait`` the end of a write would wake all of them: thousands in one turn of the
    loop, most of them only to wait for the next write, while no other task runs.
    """

    def __init__(self, may_go_on: Callable[[], bool]) -> None:
        self._may_go_on = may_go_on
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_going_on = False  # and ``_go_on`` will be called again

    async def wait(self) -> None:
        """Return when the caller may go on, until its next ``await``."""
        while not self._may_go_on():
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.go_on()  # Pass the turn on to the next one.
                raise

    def go_on(self) -> None:
        """Wake some tasks if they may go on, and the others after them."""
        if not self._is_going_on:
            self._go_on()

    def _go_on(self) -> None:
        self._is_going_on = bool(self._waiting) and self._may_go_on()
        if not self._is_going_on:
            return
        count = 0
        while self._waiting and count < AT_ONCE:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                count += 1
        # The woken tasks run before this call and may have made the resource unavailable.
        asyncio.get_running_loop().call_soon(self._go_on)
