"""Limits how often and how long a question about a transaction is repeated."""

from __future__ import annotations

import asyncio

RETRY_SECONDS = 0.02
RETRY_SECONDS_MAX = 0.1


class Retries:
    """Limits repeated questions while the producer's last transaction is being ended.

    A producer would retry much later. A value to compare before and after the question must be
    read before each attempt: if the last transaction ended between, the earlier value is stale.
    """

    def __init__(self) -> None:
        self._deadline = asyncio.get_running_loop().time() + RETRY_SECONDS_MAX
        self._is_first = True

    async def wait(self) -> bool:
        """Wait, and return whether to ask again: always once, then until the deadline."""
        is_late = asyncio.get_running_loop().time() >= self._deadline
        if is_late and not self._is_first:
            return False
        self._is_first = False
        await asyncio.sleep(RETRY_SECONDS)
        return True
