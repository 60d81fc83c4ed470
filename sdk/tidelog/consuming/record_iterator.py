"""Yields a consumer's records one by one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

from tidelog.consuming.records import ConsumerRecord


class Iteration:
    """One generator's run. The generator notes its end: asking it would take longer."""

    __slots__ = ("has_ended",)

    def __init__(self) -> None:
        self.has_ended = False


class RecordIterator:
    """Iterates over a generator of records, and over the next one once an exception has ended it.

    A generator ends when a wait for its next record is cancelled: ``asyncio.timeout`` around
    ``anext`` would end the reading.
    """

    __slots__ = ("_begin", "_is_closed", "_iteration", "_records")

    def __init__(self, begin: Callable[[Iteration], AsyncGenerator[ConsumerRecord, None]]) -> None:
        self._begin = begin
        self._is_closed = False
        self._iteration = Iteration()
        self._records = begin(self._iteration)

    def __aiter__(self) -> RecordIterator:
        """Return this iterator."""
        return self

    def __anext__(self) -> Awaitable[ConsumerRecord]:
        """Return what waits for the next record."""
        if self._iteration.has_ended and not self._is_closed:
            self._iteration = Iteration()
            self._records = self._begin(self._iteration)
        return self._records.__anext__()

    async def aclose(self) -> None:
        """End the iteration."""
        self._is_closed = True
        await self._records.aclose()
