"""An answer that comes later: whoever owes it settles it, once.

Cheaper than a future: completing it does not schedule a callback. However many of one
connection's are settled in a turn of the loop, one call sends them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Any

from tidelog_core.model import FileSlice

Segment = bytes | bytearray | memoryview | FileSlice
Reply = Sequence[Segment]


class OwedReply:
    """Made by a handler, which returns it; the connection sets ``on_settled``."""

    __slots__ = ("on_settled", "problem", "reply")

    def __init__(self) -> None:
        self.reply: Reply | None = None  # None: not settled yet, or failed
        self.problem: Exception | None = None  # ends the connection
        self.on_settled: Callable[[], None] | None = None

    @property
    def is_settled(self) -> bool:
        """Whether there is an answer, or never will be."""
        return self.reply is not None or self.problem is not None

    def settle(self, reply: Reply) -> None:
        """Hand the answer over; nothing is sent before this returns."""
        assert not self.is_settled
        self.reply = reply
        if self.on_settled is not None:
            self.on_settled()

    def fail(self, problem: Exception) -> None:
        """End the connection instead of answering."""
        assert not self.is_settled
        self.problem = problem
        if self.on_settled is not None:
            self.on_settled()

    def give_up(self) -> None:
        """Take it that nobody waits any more: the connection is closed."""

    def __await__(self) -> Generator[Any, None, Reply]:
        """Wait for the answer where it is not a connection that does. Raises the problem."""
        return self._settled().__await__()

    async def _settled(self) -> Reply:
        if not self.is_settled:
            settled = asyncio.Event()
            self.on_settled = settled.set
            try:
                await settled.wait()
            except asyncio.CancelledError:
                self.give_up()
                raise
        if self.problem is not None:
            raise self.problem
        assert self.reply is not None
        return self.reply
