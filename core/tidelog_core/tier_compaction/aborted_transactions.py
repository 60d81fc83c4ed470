"""The aborted transactions of tiered segments, and of the segments that replace them."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog_core.log.values import AbortedTransaction
from tidelog_core.records.batch import BatchHeader


class TransactionalSpans:
    """Between which batches a new segment has transactional data of each producer."""

    def __init__(self) -> None:
        # By producer id: the base offsets of the first and the last batch.
        self._spans: dict[int, tuple[int, int]] = {}

    def note(self, header: BatchHeader) -> None:
        """Note a batch of the segment; in the order of the log."""
        if header.is_transactional and not header.is_control:
            first, _ = self._spans.get(header.producer_id, (header.base_offset, 0))
            self._spans[header.producer_id] = first, header.base_offset

    def within(self, transactions: Iterable[AbortedTransaction]) -> tuple[AbortedTransaction, ...]:
        """Return the transactions that may have records in the segment, ordered by marker."""
        kept = []
        for one in transactions:
            first, last = self._spans.get(one.producer_id, (0, -1))
            if first <= one.last_offset and last >= one.first_offset:
                kept.append(one)
        return tuple(sorted(kept, key=lambda one: one.last_offset))
