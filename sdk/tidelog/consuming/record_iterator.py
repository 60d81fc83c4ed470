"""Yields a consumer's records one by one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from tidelog.consuming.records import ConsumerRecord


class RecordIterator:
    """Iterates over runs of records, one after the other; an exception does not end it.

    It is no generator: that ends when a wait for its next record is cancelled, as by
    ``asyncio.timeout`` around ``anext``.
    """

    __slots__ = ("_is_closed", "_next_run", "_run")

    def __init__(self, next_run: Callable[[], Awaitable[Iterator[ConsumerRecord]]]) -> None:
        """``next_run`` waits for records, and returns those of one batch."""
        self._next_run = next_run
        self._run: Iterator[ConsumerRecord] = iter(())
        self._is_closed = False

    def __aiter__(self) -> RecordIterator:
        """Return this iterator."""
        return self

    async def __anext__(self) -> ConsumerRecord:
        """Return the next record, once there is one."""
        while not self._is_closed:
            for record in self._run:
                return record
            self._run = await self._next_run()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the iteration."""
        self._is_closed = True
