"""A group shard's pending offsets during one leader term, and its producers' last markers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidelog_core.errors import InvalidProducerEpoch
from tidelog_core.log.values import TransactionCoordinatorFenced
from tidelog_core.metadata.coordination.transactions import (
    PendingOffsets,
    pending_offsets_claim_key,
)
from tidelog_core.metadata.store import Check

from tidelog_node.coordinator.led_shards import Leadership

MARKERS_KEPT_MAX = 10_000  # the oldest are forgotten


@dataclasses.dataclass(frozen=True, slots=True)
class _LastMarker:
    epoch: int
    coordinator_epoch: int
    number: int  # in the order in which the shard's markers arrived


@dataclasses.dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    user_count: int = 0


class PendingShard:
    """A shard's pending offsets and markers, as this node knows them since it wrote its claim."""

    def __init__(self, index: int, leadership: Leadership, *, claim_version: int) -> None:
        self.index = index
        self.leadership = leadership
        self.claim_version = claim_version
        self.pending: dict[tuple[int, str], PendingOffsets] = {}  # by producer id and group
        self._markers: dict[int, _LastMarker] = {}  # by producer id
        self._marker_total = 0
        self._turns: dict[int, _Turn] = {}  # by producer id, while in use

    @property
    def claim_check(self) -> Check:
        """The condition that no other node has claimed the shard since."""
        return Check(pending_offsets_claim_key(self.index), self.claim_version)

    @asynccontextmanager
    async def exclusive(self, producer_id: int) -> AsyncIterator[None]:
        """Hold the producer's lock; an unused lock is forgotten."""
        turn = self._turns.setdefault(producer_id, _Turn())
        turn.user_count += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.user_count -= 1
            if turn.user_count == 0:
                del self._turns[producer_id]

    # -- pending offsets --

    def of_group(self, group_id: str) -> list[PendingOffsets]:
        """Return all that wait for the group."""
        return [p for (_, group), p in self.pending.items() if group == group_id]

    def of_producer(self, producer_id: int) -> list[PendingOffsets]:
        """Return all that wait for the end of the producer's transaction."""
        return [p for (id_, _), p in self.pending.items() if id_ == producer_id]

    def is_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether the shard is known to be part of the producer's open transaction."""
        return any(p.producer_epoch == producer_epoch for p in self.of_producer(producer_id))

    # -- markers --

    def last_marker(self, producer_id: int) -> int:
        """Return the number of the producer's last marker, 0 for none."""
        marker = self._markers.get(producer_id)
        return 0 if marker is None else marker.number

    def take_marker(self, producer_id: int, producer_epoch: int, coordinator_epoch: int) -> None:
        """Note the producer's marker.

        Raises ``InvalidProducerEpoch`` and ``TransactionCoordinatorFenced`` if a newer epoch of the
        producer or of its coordinator is known here.
        """
        last = self._markers.get(producer_id)
        newest = max((p.producer_epoch for p in self.of_producer(producer_id)), default=-1)
        if producer_epoch < max(newest, -1 if last is None else last.epoch):
            raise InvalidProducerEpoch(f"producer {producer_id} has a newer epoch")
        if last is not None and coordinator_epoch < last.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"coordinator epoch {last.coordinator_epoch} has ended transactions of "
                f"producer {producer_id}"
            )
        self._marker_total += 1
        self._markers.pop(producer_id, None)
        self._markers[producer_id] = _LastMarker(
            producer_epoch, coordinator_epoch, self._marker_total
        )
        if len(self._markers) > MARKERS_KEPT_MAX:
            del self._markers[next(iter(self._markers))]
