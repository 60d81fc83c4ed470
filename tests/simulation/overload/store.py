"""A metadata store in one file, as SQLite keeps it: one process writes at a time, all read."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Literal

from tidelog_core.metadata.records import BrokerLease, Partition
from tidelog_core.metadata.store import ABSENT, Check, ItemKey

from tests.simulation.world import World

Outcome = Literal["ok", "conflict", "refused"]
Record = Partition | BrokerLease
Handler = Callable[..., None]  # handler(outcome, records found or checks lost, *args)

BUSY_MS = 10_000.0  # a writer waits for its turn for so long
POLL_MS_MAX = 100.0  # between two tries of a writer that waits


class LockedStore:
    """All items, and the lock on them."""

    def __init__(self, world: World, random: Random) -> None:
        self.world, self.random = world, random
        self.items: dict[ItemKey, Record] = {}  # each with its version
        self.locked_until_ms = 0.0  # by a process that is no node
        self.slowness = 1.0  # of the machine
        self.lag_ms: Callable[[], float] = lambda: 0.0  # how late a thread runs again
        self.on_partition: Callable[[Partition, Partition], None] = lambda *_: None

    def put(self, record: Record) -> None:
        """Store an item before anything happens."""
        self.items[record.item_id] = dataclasses.replace(record, version=1)

    def partitions(self) -> list[Partition]:
        """Return the partitions as they are at this moment."""
        return [record for record in self.items.values() if isinstance(record, Partition)]

    def apply(self, records: Sequence[Record], checks: Sequence[Check]) -> tuple[Outcome, Any]:
        """Do all the writes, or none if an item has another version; return the lost checks."""
        lost = {check for check in checks if self._version(check.id) != check.expected_version}
        if lost or any(self._version(one.item_id) != one.version for one in records):
            return "conflict", lost
        for record in records:
            before = self.items.get(record.item_id)
            after = dataclasses.replace(record, version=record.version + 1)
            self.items[record.item_id] = after
            if isinstance(after, Partition) and isinstance(before, Partition):
                self.on_partition(before, after)
        return "ok", set()

    def _version(self, key: ItemKey) -> int:
        found = self.items.get(key)
        return ABSENT if found is None else found.version

    def delay_ms(self) -> float:
        """Return how long the next step of a call takes."""
        return (0.5 + self.random.random() * 3.0) * self.slowness


class Connection:
    """One way to the store: its calls are carried out one after the other, by a thread."""

    def __init__(self, store: LockedStore) -> None:
        self._store = store
        self._calls: deque[Callable[[], None]] = deque()
        self._is_busy = False

    def read(self, handler: Handler, *args: Any) -> None:
        """Answer with all records as they are at one moment."""

        def carry_out() -> None:
            self._end(handler, "ok", list(self._store.items.values()), args)

        self._add(carry_out)

    def commit(
        self, records: Sequence[Record], checks: Sequence[Check], handler: Handler, *args: Any
    ) -> None:
        """Write all records if the versions are as expected. It waits while the file is locked."""
        began_ms = self._store.world.now_ms

        def carry_out() -> None:
            store = self._store
            if store.world.now_ms < store.locked_until_ms:
                if store.world.now_ms - began_ms >= BUSY_MS:
                    self._end(handler, "refused", set(), args)
                    return
                pause_ms = 1.0 + store.random.random() * POLL_MS_MAX
                store.world.after(pause_ms + store.lag_ms(), carry_out)
                return
            outcome, lost = store.apply(records, checks)
            self._end(handler, outcome, lost, args)

        self._add(carry_out)

    def _add(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        if not self._is_busy:
            self._begin()

    def _begin(self) -> None:
        self._is_busy = bool(self._calls)
        if self._calls:
            self._store.world.after(self._store.delay_ms(), self._calls.popleft())

    def _end(self, handler: Handler, outcome: Outcome, found: Any, args: tuple[Any, ...]) -> None:
        self._store.world.after(self._store.delay_ms(), handler, outcome, found, *args)
        self._begin()
