"""One transactional id in memory: its stored record, and the decisions on it, one at a time.

Every decision is made on the record that the last one stored. A decision that changes the record is
returned only after the store has it. One that changes nothing is returned only after a read has
shown that the store still holds that record: another node may coordinate the id by now without this
one having noticed, and «committed» or INVALID_TXN_STATE would be about an earlier transaction. If
the store refuses a write, or its outcome is unknown, the transaction is unloaded, and the next
request reads the store. A decision that was begun is finished even if its request is cancelled.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kio.schema.errors import ErrorCode
from tidelog_core.errors import NotCoordinator, OutcomeUnknown, VersionConflict
from tidelog_core.metadata.coordination.transactions import TransactionRecord
from tidelog_core.metadata.records import delete, put
from tidelog_core.metadata.store import ABSENT, ItemKey, MetadataStore

from tidelog_node.transactions.state import Decide, Decision, is_expired

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Unloaded(Exception):
    """The transaction was unloaded between finding and using it: find it again."""


class LoadedTransaction:
    """The only writer of its item on this node. For the tasks of one event loop."""

    def __init__(
        self,
        key: ItemKey,
        record: TransactionRecord | None,
        *,
        store: MetadataStore,
        take_producer_id: Callable[[], Awaitable[int]],
        on_change: Callable[[LoadedTransaction], None],
    ) -> None:
        """``record`` is the item of ``key`` as read from the store, ``None`` if there is none.

        ``on_change`` is called after every write, and when the transaction is unloaded.
        """
        self.transactional_id = key.key
        self.record = record
        self.is_unloaded = False
        self.is_deleted = False  # by this object; it is unloaded then
        self._key = key
        self._store = store
        self._take_producer_id = take_producer_id
        self._on_change = on_change
        self._lock = asyncio.Lock()
        # Until this coordinator has written the item, an earlier one may still write it.
        self._is_claimed = record is None
        self._tasks: set[asyncio.Task[object]] = set()

    @property
    def is_vacant(self) -> bool:
        """Whether it can be forgotten: it has no item, and nothing is being stored."""
        return self.record is None and not self._lock.locked() and not self._tasks

    async def apply(self, decide: Decide) -> Decision:
        """Return the decision once its change is stored.

        Raises ``Unloaded``, ``VersionConflict``, ``OutcomeUnknown``, ``StoreUnavailable``.
        """
        return await self._finish(self._apply(decide))

    async def claim(self) -> TransactionRecord | None:
        """Return the record once no earlier coordinator can change it. Raises as ``apply``."""

        async def claim() -> TransactionRecord | None:
            async with self._lock:
                await self._claim()
                return self.record

        return await self._finish(claim())

    async def confirm(self) -> TransactionRecord | None:
        """Return the record after comparing it with the store. Raises as ``apply``."""

        async def confirm() -> TransactionRecord | None:
            async with self._lock:
                if not await self._claim():
                    await self._confirm()
                return self.record

        return await self._finish(confirm())

    async def expire(self, *, now_ms: int, expiration_ms: int) -> bool:
        """Delete the item if it has been unused for ``expiration_ms``. Raises as ``apply``."""

        async def expire() -> bool:
            async with self._lock:
                record = self._current()
                if record is None:
                    return False
                if not is_expired(record, now_ms=now_ms, expiration_ms=expiration_ms):
                    return False
                try:
                    await self._store.commit([delete(record, is_logged=False)])
                except (VersionConflict, OutcomeUnknown):
                    self.unload()
                    raise
                self.record = None
                self.is_deleted = True
                self.unload()
                return True

        return await self._finish(expire())

    def unload(self) -> None:
        """Raise ``Unloaded`` from every later use."""
        if not self.is_unloaded:
            self.is_unloaded = True
            self._on_change(self)

    async def close(self) -> None:
        """Wait until everything begun is stored."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _finish(self, work: Awaitable[T]) -> T:
        task: asyncio.Task[T] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the caller may have been cancelled

    async def _apply(self, decide: Decide) -> Decision:
        async with self._lock:
            is_confirmed = await self._claim()
            decision = decide(self.record, None)
            if decision.needs_producer_id:
                decision = decide(self.record, await self._take_producer_id())
                assert not decision.needs_producer_id
            if decision.after is not None:
                await self._put(decision.after)
            # A client that gets CONCURRENT_TRANSACTIONS asks again anyway.
            elif not is_confirmed and decision.error is not ErrorCode.concurrent_transactions:
                await self._confirm()
            return decision

    async def _claim(self) -> bool:
        """Write the item if an earlier coordinator may still write it. Returns whether it did."""
        record = self._current()
        if self._is_claimed or record is None:
            return False
        await self._put(record)
        return True

    async def _confirm(self) -> None:
        """Raise ``VersionConflict`` if another node has written the item."""
        item = await self._store.get(self._key)
        record = self._current()
        known = ABSENT if record is None else record.version
        if known != (ABSENT if item is None else item.version):
            self.unload()
            raise VersionConflict([(self._key.collection, self._key.key)])

    async def _put(self, record: TransactionRecord) -> None:
        self._current()
        known = self.record
        if known is not None:
            record = dataclasses.replace(record, version=known.version)
        try:
            await self._store.commit([put(record, is_logged=False)])
        except (VersionConflict, OutcomeUnknown):
            self.unload()
            raise
        self._is_claimed = True
        self.record = dataclasses.replace(record, version=record.version + 1)
        self._on_change(self)

    def _current(self) -> TransactionRecord | None:
        if self.is_unloaded:
            raise Unloaded
        return self.record


def not_coordinator(transactional_id: str) -> NotCoordinator:
    """Return the error for an id that belongs to another node."""
    return NotCoordinator(f"this node does not coordinate transactional id {transactional_id!r}")
