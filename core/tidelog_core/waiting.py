"""Waiting of a loop, for an event or its next turn."""

from __future__ import annotations

import asyncio
from contextlib import suppress


async def wait_and_clear(event: asyncio.Event, timeout_s: float | None) -> None:
    """Return with a clear event once it is set, or after the timeout, if there is one."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
    event.clear()
