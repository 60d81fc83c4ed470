"""Writes that are tried once, for callers that decide themselves when to try again.

An owner of a chain sends a PUT that is not answered once more, in parallel, and must know the
outcome of each one. A store that repeats on its own would hide both.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Protocol, cast, runtime_checkable

from tidelog_core.errors import OutcomeUnknown
from tidelog_core.objects.payload import Payload
from tidelog_core.objects.store import ObjectStore


@runtime_checkable
class OneAttemptStore(Protocol):
    """A store whose ``put`` may send several requests, and which can also send just one."""

    async def put_once(self, key: str, data: Payload, *, timeout_s: float) -> None:
        """Store ``data`` with one request if the key is not taken.

        Raises ``ObjectExists`` also while another write of the key is under way, ``OutcomeUnknown``
        if it may be written, now or later, ``StoreUnavailable`` if nothing was written.
        """


async def put_once(store: ObjectStore, key: str, data: Payload, *, timeout_s: float) -> None:
    """Store ``data`` with one request. Raises as ``OneAttemptStore.put_once``."""
    if _is_one_attempt_store(type(store)):
        await cast("OneAttemptStore", store).put_once(key, data, timeout_s=timeout_s)
        return
    try:
        async with asyncio.timeout(timeout_s):
            await store.put(key, bytes(data))  # Folders and memory never repeat.
    except TimeoutError:
        raise OutcomeUnknown(f"object {key!r} may not be written: no answer in time") from None


@cache
def _is_one_attempt_store(kind: type[ObjectStore]) -> bool:
    """Whether a store of this class is a ``OneAttemptStore``. To ask each time takes 15 µs."""
    return issubclass(kind, OneAttemptStore)
