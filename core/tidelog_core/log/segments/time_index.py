"""Maps timestamps to offsets in a segment: a sparse index.

Entries of 12 bytes, big-endian, ascending in both fields: timestamp in
milliseconds (8 bytes), relative offset (4 bytes) of the start of the batch that
was the first to carry that timestamp. Every record with a timestamp greater than an
entry's is after the start of the entry's batch. The last entry of a sealed segment
is the greatest timestamp of the whole segment.
"""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct

from tidelog_core.model import NO_TIMESTAMP

_ENTRY = Struct(">qI")
ENTRY_SIZE_BYTES = _ENTRY.size


class TimeIndex:
    """The time index of one segment; it grows in memory while the segment is active."""

    __slots__ = ("_base_offset", "_entries")

    def __init__(self, base_offset: int, entries: bytearray | bytes = b"") -> None:
        self._base_offset = base_offset
        self._entries: bytearray | bytes = entries or bytearray()

    def __len__(self) -> int:
        return len(self._entries) // ENTRY_SIZE_BYTES

    def maybe_append(self, timestamp_ms: int, offset: int) -> None:
        """Add the greatest timestamp so far, unless the last entry is as great."""
        if timestamp_ms <= self.last_entry()[0]:
            return
        entries = self._entries
        if not isinstance(entries, bytearray):
            entries = self._entries = bytearray(entries)
        entries += _ENTRY.pack(timestamp_ms, offset - self._base_offset)

    def lookup(self, timestamp_ms: int) -> int:
        """Return an offset at or before the first batch that reaches ``timestamp_ms``."""
        count = bisect_right(range(len(self)), timestamp_ms, key=self._timestamp)
        return self._entry(count - 1)[1] if count else self._base_offset

    def last_entry(self) -> tuple[int, int]:
        """Return the greatest timestamp and its batch's offset, (-1, base offset) if empty."""
        return self._entry(len(self) - 1) if self._entries else (NO_TIMESTAMP, self._base_offset)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries of batches that start at ``offset`` or above."""
        count = bisect_right(range(len(self)), offset - 1, key=self._offset)
        self._entries = bytearray(self._entries[: count * ENTRY_SIZE_BYTES])

    def to_bytes(self) -> bytes:
        """Return the file's content."""
        return bytes(self._entries)

    def _timestamp(self, entry_index: int) -> int:
        return self._entry(entry_index)[0]

    def _offset(self, entry_index: int) -> int:
        return self._entry(entry_index)[1]

    def _entry(self, entry_index: int) -> tuple[int, int]:
        timestamp_ms, relative_offset = _ENTRY.unpack_from(
            self._entries, entry_index * ENTRY_SIZE_BYTES
        )
        return timestamp_ms, self._base_offset + relative_offset
