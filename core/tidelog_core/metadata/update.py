"""Updates shared items by compare-and-set: read, decide, write, and retry on a conflict.

Possible interleavings, and why they are safe:

- *Another write between read and commit.* The commit expects the version that was read, so it
  conflicts, and the next attempt decides from the new item. An item that was removed and created
  again counts from the start, so a decision compares an id or an epoch where that matters.
- *A commit with an unknown outcome.* The next attempt reads the item with or without the write.
  The decision finds nothing left to do, or is safe to repeat.
- *Such a commit that lands late.* It conflicts once the item was written again. Two kinds may land
  and must be harmless: the creation of an item that was removed again, and ``ANY_VERSION``.

Not for a writer that keeps the item in memory: it must stop once another process has written
the item. Not for a commit of many items either: it has to find out which of them conflicted.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidelog_core.errors import OutcomeUnknown, TidelogError, VersionConflict
from tidelog_core.metadata.store import Item, ItemKey, MetadataStore, Write

ATTEMPTS_MAX = 10  # each conflict means that another writer succeeded
LOST = (VersionConflict, OutcomeUnknown)

T = TypeVar("T")

# Returns the result, and the write that makes it true, or ``None`` if nothing has to change.
# The write expects the version of the given item. Called once an attempt; may raise.
Decide = Callable[[Item | None], tuple[T, Write | None]]


async def update(
    store: MetadataStore, key: ItemKey, decide: Decide[T], *, attempts_max: int = ATTEMPTS_MAX
) -> T:
    """Return the decided result, once its write is stored. Durable on return.

    Raises the errors of ``decide`` and of ``retried``.
    """

    async def attempt() -> T:
        result, write = decide(await store.get(key))
        if write is not None:
            await store.commit([write])
        return result

    return await retried(attempt, attempts_max=attempts_max)


async def retried(
    attempt: Callable[[], Awaitable[T]],
    *,
    on: tuple[type[TidelogError], ...] = LOST,
    attempts_max: int = ATTEMPTS_MAX,
    pause_seconds_max: float = 0,
) -> T:
    """Return the attempt's result; an attempt begins by reading. Raises the last one's error.

    Pauses before each further attempt for a random time.
    """
    for _ in range(attempts_max - 1):
        with contextlib.suppress(*on):
            return await attempt()
        if pause_seconds_max:
            await asyncio.sleep(random.uniform(0, pause_seconds_max))
    return await attempt()
