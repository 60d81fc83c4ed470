"""Decodes the record batches of a segment object into Arrow record batches.

Batch headers are read into a table. Unwanted batches are dropped there (control batches,
aborted transactions, offsets out of range), CRCs are checked, and ``RowDecoder`` writes the
records of the others into Arrow's buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tidelog_core.errors import CorruptObject

from tidelog.arrow.batch_crcs import intact_count
from tidelog.arrow.native import kernels
from tidelog.arrow.native.kernels import Longs
from tidelog.arrow.row_decoder import RowDecoder

_TRANSACTIONAL = 0x10
CONTROL = 0x20


@dataclass(frozen=True, slots=True)
class AbortedRange:
    """An aborted range: the producer's batches in ``[first_offset, end_offset)`` are skipped."""

    producer_id: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class RowRange:
    """The records to read from a partition, and the columns."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int  # exclusive
    include_headers: bool = False
    aborted: tuple[AbortedRange, ...] = ()  # empty for read_uncommitted


class BatchDecoder:
    """Decodes a range of bytes of one segment object, piece by piece, into Arrow batches."""

    def __init__(self, rows: RowRange, *, object_key: str, position: int = 0) -> None:
        """``position`` is the first piece's position in the object."""
        self._rows = rows
        self._object_key = object_key
        self._position = position
        self._rest = b""  # the start of an incomplete batch
        self._decoder = RowDecoder(
            rows.topic,
            rows.partition,
            include_headers=rows.include_headers,
            corrupt=self._corrupt,
        )
        self._next_offset = -1  # batches must not go back

    def feed(self, data: bytes | memoryview) -> Iterator[pa.RecordBatch]:
        """Yield the rows of every batch completed by this piece. Exhaust it before the next call.

        Raises ``CorruptObject`` with the object and the batch's position.
        """
        if self._rest:
            # Only a batch that spans two pieces is copied, because a piece is large.
            missing = _missing_bytes(self._rest, data)
            yield from self._decode(self._rest + data[:missing])
            data = data[missing:]
        if data:
            yield from self._decode(data)

    def _decode(self, data: bytes | memoryview) -> Iterator[pa.RecordBatch]:
        """Yield the rows of whole batches, and keep the bytes after them."""
        array = np.frombuffer(data, dtype=np.uint8)
        table = kernels.batch_table(len(array) // kernels.HEADER_SIZE + 1)
        count, consumed, problem = kernels.scan_batches(array, table)
        if problem:
            raise self._corrupt(self._position + consumed, "it is not a batch of version 2")
        position = self._position
        self._position += consumed
        self._rest = bytes(data[consumed:])
        table = table[:count]
        self._check_order(table, position)
        self._check_crcs(data, table, position)
        offsets = (self._rows.start_offset, self._rows.end_offset)
        yield from self._decoder.decode(
            data, table[self._wanted(table)], offsets, position=position
        )

    def finish(self) -> None:
        """Raise ``CorruptObject`` unless the last piece ended at the end of a batch."""
        if self._rest:
            raise self._corrupt(self._position, f"it is cut off after {len(self._rest)} bytes")

    def _corrupt(self, position: int, problem: str) -> CorruptObject:
        return CorruptObject(self._object_key, f"batch at byte {position}: {problem}")

    def _check_order(self, table: Longs, position: int) -> None:
        if not len(table):
            return
        floors = np.concatenate(([self._next_offset], table[:-1, kernels.LAST_OFFSET] + 1))
        backwards = np.flatnonzero(table[:, kernels.BASE_OFFSET] < floors)
        if len(backwards):
            row = table[backwards[0]]
            raise self._corrupt(
                position + int(row[kernels.POSITION]),
                f"base offset {row[kernels.BASE_OFFSET]} is below offset {floors[backwards[0]]},"
                " where the batch before it ends",
            )
        self._next_offset = int(table[-1, kernels.LAST_OFFSET]) + 1

    def _check_crcs(self, data: bytes | memoryview, table: Longs, position: int) -> None:
        """Check every batch: damaged headers could make a batch look unwanted."""
        count = intact_count(data, table)
        if count < len(table):
            place = position + int(table[count, kernels.POSITION])
            raise self._corrupt(place, "its CRC does not fit its bytes")

    def _wanted(self, table: Longs) -> NDArray[np.bool_]:
        rows = self._rows
        attributes = table[:, kernels.ATTRIBUTES]
        wanted: NDArray[np.bool_] = (
            (table[:, kernels.LAST_OFFSET] >= rows.start_offset)
            & (table[:, kernels.BASE_OFFSET] < rows.end_offset)
            & (table[:, kernels.RECORD_COUNT] > 0)
            & (attributes & CONTROL == 0)
        )
        for aborted in rows.aborted:
            wanted &= ~(
                (table[:, kernels.PRODUCER_ID] == aborted.producer_id)
                & (attributes & _TRANSACTIONAL != 0)
                & (table[:, kernels.BASE_OFFSET] >= aborted.first_offset)
                & (table[:, kernels.BASE_OFFSET] < aborted.end_offset)
            )
        return wanted


def _missing_bytes(begun: bytes, data: bytes | memoryview) -> int:
    """Return how many bytes of ``data`` complete the started batch; all if it is longer."""
    head = begun + data[: kernels.HEADER_SIZE]
    if len(head) < kernels.HEADER_SIZE:
        return len(data)
    # The scan reports an impossible size.
    size_bytes = max(int.from_bytes(head[8:12], "big", signed=True) + 12, kernels.HEADER_SIZE)
    return min(size_bytes - len(begun), len(data))
