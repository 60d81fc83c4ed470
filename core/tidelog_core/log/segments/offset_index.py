"""Maps offsets to positions in a segment file: a sparse index.

Entries of 8 bytes, big-endian, ascending: offset relative to the segment's base
offset (4 bytes), position of the batch that starts with it (4 bytes). There is an
entry about every ``index.interval.bytes`` of log.

Kafka stores a batch's last offset in the entry, Tidelog its first. In both cases the
greatest entry at or below an offset is at or before the batch that holds it, so readers
work with either.
"""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct

_ENTRY = Struct(">II")
ENTRY_SIZE_BYTES = _ENTRY.size
RELATIVE_OFFSET_MAX = 2**31 - 1
POSITION_MAX = 2**31 - 1  # of a byte in a segment; signed, as segment.bytes is


class OffsetIndex:
    """The offset index of one segment; it grows in memory while the segment is active."""

    __slots__ = ("_base_offset", "_entries")

    def __init__(self, base_offset: int, entries: bytearray | bytes = b"") -> None:
        self._base_offset = base_offset
        self._entries: bytearray | bytes = entries or bytearray()

    def __len__(self) -> int:
        return len(self._entries) // ENTRY_SIZE_BYTES

    def append(self, offset: int, position: int) -> None:
        """Add the batch that starts with ``offset`` at ``position``."""
        entries = self._entries
        if not isinstance(entries, bytearray):
            entries = self._entries = bytearray(entries)
        entries += _ENTRY.pack(offset - self._base_offset, position)

    def lookup(self, offset: int) -> int:
        """Return the position of an indexed batch at or before ``offset``, 0 if there is none."""
        count = bisect_right(range(len(self)), offset - self._base_offset, key=self._relative)
        return self._entry(count - 1)[1] if count else 0

    def offset_at_or_after(self, position: int) -> int | None:
        """Return the offset of the first indexed batch that starts at ``position`` or later.

        None if no indexed batch does; the segment's end offset is the bound then.
        """
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._entry(middle)[1] < position:
                low = middle + 1
            else:
                high = middle
        return self._base_offset + self._entry(low)[0] if low < len(self) else None

    def offset_at_or_before(self, position: int) -> int:
        """Return the offset of the last indexed batch that starts at ``position`` or earlier.

        The segment's base offset if there is none.
        """
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._entry(middle)[1] <= position:
                low = middle + 1
            else:
                high = middle
        return self._base_offset + self._entry(low - 1)[0] if low else self._base_offset

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at ``offset`` and above."""
        count = bisect_right(range(len(self)), offset - self._base_offset - 1, key=self._relative)
        self._entries = bytearray(self._entries[: count * ENTRY_SIZE_BYTES])

    def to_bytes(self) -> bytes:
        """Return the file's content."""
        return bytes(self._entries)

    def _relative(self, entry_index: int) -> int:
        return self._entry(entry_index)[0]

    def _entry(self, entry_index: int) -> tuple[int, int]:
        relative_offset, position = _ENTRY.unpack_from(
            self._entries, entry_index * ENTRY_SIZE_BYTES
        )
        return relative_offset, position
