"""A queue by deadline: a task over thousands of logs or groups visits only those that are due.

A heap with stale entries: a key that is put again or discarded leaves its old entry in the heap.
A stale entry is dropped when it reaches the top, or with all others when they are more than half of
the heap. So every call takes amortized O(log n), and a call that finds nothing due takes O(1).
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

K = TypeVar("K")

STALE_ENTRIES_MIN = 64  # fewer are not dropped together


class DueQueue(Generic[K]):
    """Keys by the time at which each is due, on the caller's clock."""

    def __init__(self) -> None:
        # Due time, a serial number and the key. The serial number keeps keys of one time in the
        # order of their calls.
        self._heap: list[tuple[float, int, K]] = []
        self._entries: dict[K, tuple[float, int, K]] = {}  # the current entries
        self._count = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def put(self, key: K, due: float) -> None:
        """Set the key's due time."""
        known = self._entries.get(key)
        if known is not None and known[0] == due:
            return
        self._count += 1
        entry = self._entries[key] = (due, self._count, key)
        heapq.heappush(self._heap, entry)
        self._drop_stale()

    def put_earlier(self, key: K, due: float) -> None:
        """Set the key's due time, unless it is due earlier."""
        known = self._entries.get(key)
        if known is None or due < known[0]:
            self.put(key, due)

    def discard(self, key: K) -> None:
        """Remove the key if it is queued."""
        self._entries.pop(key, None)
        self._drop_stale()

    def take(self, now: float) -> list[K]:
        """Remove and return the keys that are due at ``now``, the earliest first."""
        taken = []
        while (first := self.first_due) is not None and first <= now:
            key = heapq.heappop(self._heap)[2]
            del self._entries[key]
            taken.append(key)
        return taken

    @property
    def first_due(self) -> float | None:
        """The earliest due time, ``None`` if the queue is empty."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if self._entries.get(entry[2]) is entry:
                return entry[0]
            heapq.heappop(heap)
        return None

    def _drop_stale(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + STALE_ENTRIES_MIN:
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)
