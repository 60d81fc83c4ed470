"""The simulated metadata store: linearizable conditional commits, unreliable answers.

A request is applied at one moment between its sending and its answer. It may be refused
(throttled: nothing is written), its answer may be lost before or after it was applied, and
one that the caller has given up may be applied seconds later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Literal

from tidelog_core.metadata.records import Broker, BrokerLease, Partition, partition_key
from tidelog_core.metadata.store import ABSENT, Check, ItemKey

from tests.simulation.world import Endpoint, World

Outcome = Literal["ok", "conflict", "unknown", "refused"]
Record = Partition | Broker | BrokerLease
Answer = Callable[..., None]  # handler(outcome, value, *args)

TIMEOUT_MS = 250.0
LATE_MS_MAX = 2_500.0


class SimStore:
    """All items, and the way to them."""

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random
        self.items: dict[ItemKey, Record] = {}  # each with its version
        self.cut: set[int] = set()
        self.refusal = 0.0
        self.unknown = 0.0
        self.delay_factor = 1.0
        self.on_partition: Callable[[Partition, Partition], None] = lambda *_: None

    def heal(self) -> None:
        """Be a good store from now on; what is late stays late."""
        self.cut.clear()
        self.refusal = self.unknown = 0.0
        self.delay_factor = 1.0

    # -- what is there, seen from outside of the simulation --

    def put(self, record: Record) -> None:
        """Lay an item in place before anything happens."""
        self.items[record.item_id] = dataclasses.replace(record, version=1)

    def partition(self, key: ItemKey) -> Partition:
        """Return the partition's item as it is at this moment."""
        record = self.items[key]
        assert isinstance(record, Partition)
        return record

    # -- requests --

    def commit(
        self,
        caller: Endpoint,
        records: Sequence[Record],
        checks: Sequence[Check],
        handler: Answer,
        *args: Any,
    ) -> None:
        """Put the records, each at the version it names, and answer with an outcome."""
        random, world = self._random, self._world
        if caller.broker_id in self.cut:
            return world.after(TIMEOUT_MS, caller.deliver, handler, ("unknown", None, *args))
        if self.refusal and random.random() < self.refusal:
            return world.after(self._delay(), caller.deliver, handler, ("refused", None, *args))
        if self.unknown and random.random() < self.unknown:
            world.after(TIMEOUT_MS, caller.deliver, handler, ("unknown", None, *args))
            kind = random.random()
            if kind < 0.4:
                world.after(self._delay(), self._apply, records, checks)
            elif kind < 0.8:
                world.after(
                    TIMEOUT_MS + random.random() * LATE_MS_MAX, self._apply, records, checks
                )
            return None
        return world.after(
            self._delay(), self._commit, world.now_ms, caller, records, checks, handler, args
        )

    def read(self, caller: Endpoint, handler: Answer, *args: Any) -> None:
        """Answer with all records as they are at one moment."""
        if caller.broker_id in self.cut or (self.refusal and self._random.random() < self.refusal):
            self._world.after(TIMEOUT_MS, caller.deliver, handler, ("refused", None, *args))
            return
        self._world.after(self._delay(), self._read, caller, handler, args)

    def _read(self, caller: Endpoint, handler: Answer, args: tuple[Any, ...]) -> None:
        found = list(self.items.values())
        self._world.after(self._delay(), caller.deliver, handler, ("ok", found, *args))

    def _commit(
        self,
        sent_ms: float,
        caller: Endpoint,
        records: Sequence[Record],
        checks: Sequence[Check],
        handler: Answer,
        args: tuple[Any, ...],
    ) -> None:
        outcome: Outcome = "ok" if self._apply(records, checks) else "conflict"
        delay_ms = self._delay()
        if caller.broker_id in self.cut or self._world.now_ms + delay_ms - sent_ms > TIMEOUT_MS:
            outcome, delay_ms = "unknown", max(0.0, sent_ms + TIMEOUT_MS - self._world.now_ms)
        self._world.after(delay_ms, caller.deliver, handler, (outcome, None, *args))

    def _apply(self, records: Sequence[Record], checks: Sequence[Check]) -> bool:
        items = self.items
        conditions = [(record.item_id, record.version) for record in records]
        conditions += [(check.id, check.expected_version) for check in checks]
        for item_id, expected in conditions:
            found = items.get(item_id)
            if (ABSENT if found is None else found.version) != expected:
                return False
        for record in records:
            item_id = record.item_id
            before = items.get(item_id)
            after = dataclasses.replace(record, version=record.version + 1)
            items[item_id] = after
            if isinstance(after, Partition) and isinstance(before, Partition):
                self.on_partition(before, after)
        return True

    def _delay(self) -> float:
        delay_ms = 1.0 + self._random.random() * 5.0
        if self.delay_factor > 1:
            delay_ms *= 1 + self._random.random() * self.delay_factor
        return delay_ms


__all__ = ["Outcome", "Record", "SimStore", "partition_key"]
