"""``Client``: the life cycle of every client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Client(ABC):
    """Starts and closes, by calls or by ``async with``."""

    @abstractmethod
    async def start(self) -> None:
        """Connect."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""

    async def __aenter__(self) -> Self:
        """Start. After a failure the client is closed: nobody else would close it."""
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()
