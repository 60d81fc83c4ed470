"""Faults of the metadata store and of the object store.

The proxies before DynamoDB and the bucket do theirs. A folder of objects is moved away, as if its
file system were not mounted any more.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from uuid import uuid4

from tidelog_core.objects.key_rules import STAGING

from tests.chaos.plan import FaultKind, PlannedFault
from tests.support.store_proxy import HOLD_SECONDS, STORE_PASSES, StoreBehaviour, StoreProxy

Undo = Callable[[], Awaitable[str]]  # returns what the report should say
CHANGING = frozenset({"PUT", "POST", "DELETE"})  # the methods of requests that change the bucket
LATE_LEASES_MAX = 3.0  # Requests are applied so late that others may have led for long.
TRUNCATED_PART = 0.1


def behaviour_of_store(fault: PlannedFault) -> StoreBehaviour:
    """Return what DynamoDB does to a node's requests during the fault."""
    match fault.kind:
        case FaultKind.STORE_SLOW:
            return StoreBehaviour(delay_s=0.1 + fault.amount * 2)
        case FaultKind.STORE_FAILING:
            throttled_part, lost_part = 0.1 + 0.5 * fault.amount, 0.1 + 0.3 * fault.amount
            return StoreBehaviour(throttled_part=throttled_part, lost_part=lost_part)
    return StoreBehaviour(is_cut=True)


def behaviour_of_bucket(
    fault: PlannedFault, *, lease_s: float, chance: random.Random
) -> StoreBehaviour:
    """Return what S3 does to a node's requests during the fault."""
    part = 0.1 + 0.4 * fault.amount
    match fault.kind:
        case FaultKind.OBJECTS_SLOW:
            return StoreBehaviour(delay_s=0.2 + fault.amount * 3)
        case FaultKind.OBJECTS_STORM:
            return StoreBehaviour(throttled_part=0.5 + 0.5 * fault.amount)
        case FaultKind.OBJECTS_LATE:
            late_s = LATE_LEASES_MAX * lease_s
            return StoreBehaviour(late_part=part, late_s=late_s, methods=CHANGING)
        case FaultKind.OBJECTS_LOST:
            hold_s = chance.choice((0.3, HOLD_SECONDS))
            return StoreBehaviour(lost_part=part, truncated_part=TRUNCATED_PART, hold_s=hold_s)
    return StoreBehaviour(is_cut=True)


async def unmount(objects: Path, *, is_empty: bool) -> Undo:
    """Move the folder of the objects away; the returned call moves it back.

    ``is_empty``: an empty folder, which has been a store, is in its place.
    """
    if not objects.exists():

        async def nothing() -> str:
            return "no object yet"

        return nothing
    objects.rename(_away(objects))
    if is_empty:
        (objects / STAGING).mkdir(parents=True)

    async def undo() -> str:
        return mount(objects)

    return undo


def mount(objects: Path) -> str:
    """Move the folder back, if it is away. What was written in its place is hidden from then on."""
    away = _away(objects)
    if not away.exists():
        return ""
    hidden = ""
    if objects.exists():
        beside = objects.with_name(f"hidden-{uuid4()}")
        objects.rename(beside)
        written = [path for path in beside.rglob("*") if path.is_file()]
        hidden = f"{len(written)} files written in its place" if written else ""
    away.rename(objects)
    return hidden


def _away(objects: Path) -> Path:
    return objects.with_name("unmounted")


def misbehave(proxies: Sequence[StoreProxy | None], behaviour: StoreBehaviour) -> Undo:
    """Let the proxies, which must be there, do it; the returned call ends it."""
    there = [proxy for proxy in proxies if proxy is not None]
    assert len(there) == len(proxies), "the cluster has no such store"
    for proxy in there:
        proxy.behave(behaviour)

    async def undo() -> str:
        for proxy in there:
            proxy.behave(STORE_PASSES)
        return ""

    return undo


async def lock_sqlite(path: Path) -> Undo:
    """Write to the store as somebody else who does not end; the returned call ends it."""
    connection = await asyncio.to_thread(_lock, path)

    async def undo() -> str:
        if connection is None:
            return "never got the lock"
        await asyncio.to_thread(_unlock, connection)
        return ""

    return undo


def _lock(path: Path) -> sqlite3.Connection | None:
    connection = sqlite3.connect(path, timeout=2.0, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        connection.close()
        return None
    return connection


def _unlock(connection: sqlite3.Connection) -> None:
    connection.execute("ROLLBACK")
    connection.close()
