"""Checks the CRCs of scanned batches."""

from __future__ import annotations

from crc32c import crc32c

from tidelog.arrow.native import kernels
from tidelog.arrow.native.kernels import Longs

_CRC_END = 21  # the CRC covers the bytes after it
_COLUMNS = (kernels.POSITION, kernels.SIZE, kernels.CRC)


def intact_count(data: bytes | memoryview, table: Longs) -> int:
    """Return how many batches come before the first whose CRC does not fit its bytes.

    ``table`` has rows as ``scan_batches`` fills them for ``data``.
    """
    view = memoryview(data)
    for number, (start, size, crc) in enumerate(table[:, _COLUMNS].tolist()):
        if crc32c(view[start + _CRC_END : start + size]) != crc:
            return number
    return len(table)
