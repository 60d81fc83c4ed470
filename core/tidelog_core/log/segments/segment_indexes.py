"""The three indexes of a segment, and the seal record of their files.

While a segment is active its indexes are in memory only: recovery reads the active segment
anyway. Sealing writes the files. A reader uses an index file only if the segment's seal
record, in the ``sealed-segments`` checkpoint, has its size and CRC. Any other or missing file
is rebuilt from the log. So a truncated, stale, damaged or lost index file costs time and
never correctness.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from tidelog_core.log.paths import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_path,
)
from tidelog_core.log.segments.offset_index import OffsetIndex
from tidelog_core.log.segments.time_index import TimeIndex
from tidelog_core.log.segments.txn_index import TxnIndex


class SealRecord(NamedTuple):
    """A segment's extent, and the sizes and CRCs of its index files. One checkpoint row."""

    base_offset: int
    end_offset: int  # exclusive
    size_bytes: int
    max_timestamp_ms: int
    max_timestamp_offset: int  # base offset of the first batch that reaches it
    offset_index_size_bytes: int
    offset_index_crc: int
    time_index_size_bytes: int
    time_index_crc: int
    txn_index_size_bytes: int  # 0: there is no file
    txn_index_crc: int


class SegmentIndexes:
    """The offset, time and transaction index of one segment."""

    __slots__ = ("offset", "time", "txn")

    def __init__(self, offset: OffsetIndex, time: TimeIndex, txn: TxnIndex) -> None:
        self.offset = offset
        self.time = time
        self.txn = txn

    @classmethod
    def empty(cls, base_offset: int) -> SegmentIndexes:
        """Return the indexes of an empty segment."""
        return cls(OffsetIndex(base_offset), TimeIndex(base_offset), TxnIndex())

    @classmethod
    def load(cls, directory: Path, seal: SealRecord) -> SegmentIndexes | None:
        """Read the index files; None if one of them does not match ``seal``."""
        base_offset = seal.base_offset
        contents = []
        for suffix, (size_bytes, crc) in zip(_SUFFIXES, _vouched(seal), strict=True):
            content = _read(segment_path(directory, base_offset, suffix), size_bytes)
            if content is None or len(content) != size_bytes or crc32c(content) != crc:
                return None
            contents.append(content)
        offset, time, txn = contents
        return cls(OffsetIndex(base_offset, offset), TimeIndex(base_offset, time), TxnIndex(txn))

    def write(self, directory: Path, base_offset: int) -> tuple[int, int, int, int, int, int]:
        """Write the files, not durably. Returns size and CRC of each, for a seal record.

        Not atomic: readers trust the files only once the seal record is written.
        """
        facts: list[int] = []
        contents = (self.offset.to_bytes(), self.time.to_bytes(), self.txn.to_bytes())
        for suffix, content in zip(_SUFFIXES, contents, strict=True):
            path = segment_path(directory, base_offset, suffix)
            if content or suffix != TXN_INDEX_SUFFIX:
                path.write_bytes(content)
            else:
                path.unlink(missing_ok=True)
            facts += (len(content), crc32c(content))
        a, b, c, d, e, f = facts
        return a, b, c, d, e, f


_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


def _vouched(seal: SealRecord) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    return (
        (seal.offset_index_size_bytes, seal.offset_index_crc),
        (seal.time_index_size_bytes, seal.time_index_crc),
        (seal.txn_index_size_bytes, seal.txn_index_crc),
    )


def _read(path: Path, size_bytes: int) -> bytes | None:
    if size_bytes == 0:
        return b""
    try:
        # Read and not mapped: its CRC has to be computed anyway, a map takes a descriptor,
        # and an unreadable page would end the process.
        return path.read_bytes()
    except FileNotFoundError:
        return None
