"""Everything that an ``Admin`` can be asked."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from tidelog.administering.configs import ConfigCalls
from tidelog.administering.share_groups import ShareGroupCalls
from tidelog.administering.transactions import TransactionCalls


class EveryCall(ShareGroupCalls, ConfigCalls, TransactionCalls):
    """The calls of an admin, once its options are checked."""

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()
