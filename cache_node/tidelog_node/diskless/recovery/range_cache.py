"""Caches prefetched ranges of objects, for an heir that needs them a moment later.

The objects of chains and of the tier never change. So a range stays valid, no matter who writes the
chain after the read and where it ends. Cached ranges decide nothing: a listing made after the seal
says which objects exist, and the CRCs of each are checked as always. A key whose object
was collected may get a late seal. A seal has another size, so a reader of its footer asks for
another range, and gets it from the store.
"""

from __future__ import annotations

from tidelog_node.diskless.recovery.range_reader import RangeReader

KEPT_BYTES_MAX = 64 << 20

_Range = tuple[int, int]  # of an object, ``[start, end)``


class NoRoom(Exception):
    """The cached ranges have reached their limit."""


class RangeCache:
    """Reads ranges, from memory if they are cached. For the tasks of one event loop."""

    def __init__(self, read: RangeReader, bytes_max: int = KEPT_BYTES_MAX) -> None:
        """``read`` reads ranges that are not cached."""
        self._read = read
        self._bytes_max = bytes_max
        self._ranges: dict[str, dict[_Range, bytes]] = {}  # by key
        self._keys: dict[int, set[str]] = {}  # by the broker that they are kept for
        self.size_bytes = 0  # of the kept ranges, and of those that are being read

    async def read(self, key: str, start: int, end: int, /) -> bytes | memoryview:
        """Return the range: from memory if exactly this one is cached."""
        kept = self._ranges.get(key, {}).get((start, end))
        return await self._read(key, start, end) if kept is None else kept

    async def read_within(self, key: str, start: int, end: int, /) -> bytes | memoryview:
        """Return the range: from memory if a cached range includes it."""
        kept = self._within(key, start, end)
        return await self._read(key, start, end) if kept is None else kept

    def has(self, key: str, start: int, end: int) -> bool:
        """Whether ``read_within`` has the range in memory."""
        return self._within(key, start, end) is not None

    def keep_for(self, broker_id: int) -> RangeReader:
        """Return a reader that keeps the ranges it reads until ``drop`` is called for the broker.

        It raises ``NoRoom`` instead of reading more than may be kept.
        """
        keys = self._keys.setdefault(broker_id, set())

        async def read(key: str, start: int, end: int, /) -> bytes | memoryview:
            kept = self._ranges.get(key, {}).get((start, end))
            if kept is not None:
                return kept
            reserved = end - start
            if self.size_bytes + reserved > self._bytes_max:
                raise NoRoom
            self.size_bytes += reserved
            try:
                data = bytes(await self._read(key, start, end))
                if self._keys.get(broker_id) is keys and (start, end) not in self._of(key):
                    keys.add(key)
                    self._of(key)[start, end] = data
                    self.size_bytes += len(data)
            finally:
                self.size_bytes -= reserved
            return data

        return read

    def drop(self, broker_id: int) -> None:
        """Forget the ranges that were kept for the broker."""
        for key in self._keys.pop(broker_id, ()):
            self.size_bytes -= sum(map(len, self._ranges.pop(key, {}).values()))

    def _of(self, key: str) -> dict[_Range, bytes]:
        return self._ranges.setdefault(key, {})

    def _within(self, key: str, start: int, end: int) -> memoryview | None:
        for (first, _), data in self._ranges.get(key, {}).items():
            if first <= start and end <= first + len(data):
                return memoryview(data)[start - first : end - first]
        return None
