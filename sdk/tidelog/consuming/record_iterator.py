"""Yields a consumer's records one by one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from types import AsyncGeneratorType
from typing import cast

from tidelog.consuming.records import ConsumerRecord


class RecordIterator:
    """Iterates over a generator of records, and over the next one once an exception has ended it.

    A generator ends when a wait for its next record is cancelled: ``asyncio.timeout`` around
    ``anext`` would end the reading.
    """

    __slots__ = ("_begin", "_is_closed", "_records")

    def __init__(self, begin: Callable[[], AsyncGenerator[ConsumerRecord, None]]) -> None:
        self._begin = begin
        self._records = self._begun()
        self._is_closed = False

    def __aiter__(self) -> RecordIterator:
        """Return this iterator."""
        return self

    def __anext__(self) -> Awaitable[ConsumerRecord]:
        """Return what waits for the next record."""
        if self._records.ag_frame is None and not self._is_closed:
            self._records = self._begun()
        return self._records.__anext__()

    async def aclose(self) -> None:
        """End the iteration."""
        self._is_closed = True
        await self._records.aclose()

    def _begun(self) -> AsyncGeneratorType[ConsumerRecord, None]:
        # Its abstract class does not tell whether it has ended.
        return cast("AsyncGeneratorType[ConsumerRecord, None]", self._begin())
