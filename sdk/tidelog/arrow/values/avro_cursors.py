"""Where the reading of many Avro values has come to, and the numbers and spans that come next.

Every value has a cursor, its place in the bytes. A value that is damaged gets a mark, and its
cursor moves no more: it cannot read another value's bytes, because every step is within its own
end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidelog.arrow.values.arrays import Longs

Flags = NDArray[np.bool_]
# Columns of items that are read of a run of values, beside one for each value: about 0.4 s.
STEPS_MAX = 20_000
_VARINT_BYTES = 10


class Cursors:
    """The places in the bytes that reading has come to, one for each value."""

    def __init__(self, data: NDArray[np.uint8], starts: Longs, ends: Longs) -> None:
        """``data`` must not be empty."""
        self.data = data
        self.at = starts.copy()
        self.ends = ends
        self.is_bad: Flags = np.zeros(len(starts), np.bool_)
        self.steps_left = STEPS_MAX + len(starts)

    def bytes_at(self, rows: Longs) -> NDArray[np.int64]:
        """Return the next byte of these values, and pass it; damaged values have 0."""
        at = self.at[rows]
        is_over = at >= self.ends[rows]
        found = self.data[np.where(is_over, 0, at)].astype(np.int64)
        self._fail(rows, is_over)
        self.at[rows] = np.where(is_over, at, at + 1)
        return np.where(is_over, 0, found)

    def longs(self, rows: Longs) -> Longs:
        """Return the next numbers, zigzag varints of up to 64 bits."""
        found = self.bytes_at(rows)
        left = np.flatnonzero(found > 0x7F)
        found &= 0x7F
        for number in range(1, _VARINT_BYTES):
            if not len(left):
                break
            more = self.bytes_at(rows[left])
            if number == _VARINT_BYTES - 1:
                self._fail(rows[left], more > 1)
            found[left] |= (more & 0x7F) << (7 * number)
            left = left[more > 0x7F]
        # The shift to the right is one without a sign.
        return ((found >> 1) & np.int64(0x7FFF_FFFF_FFFF_FFFF)) ^ -(found & 1)

    def spans(self, rows: Longs, sizes: Longs) -> tuple[Longs, Longs]:
        """Pass so many bytes; return where they start, and how many they are."""
        at = self.at[rows]
        is_wrong = (sizes < 0) | (sizes > self.ends[rows] - at)
        self._fail(rows, is_wrong)
        sizes = np.where(is_wrong, 0, sizes)
        self.at[rows] = at + sizes
        return at, sizes

    def fail(self, rows: Longs, is_wrong: Flags) -> None:
        """Mark the values for which it is true."""
        self._fail(rows, is_wrong)

    def _fail(self, rows: Longs, is_wrong: Flags) -> None:
        if is_wrong.any():
            wrong = rows[is_wrong]
            self.is_bad[wrong] = True
            self.at[wrong] = self.ends[wrong]
