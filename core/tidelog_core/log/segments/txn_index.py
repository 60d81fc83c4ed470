"""The aborted transactions whose abort marker is in a segment.

Entries of 34 bytes, big-endian, in the order of the markers, as in Kafka: version
0 (2 bytes), producer id, first offset, last offset (of the marker), last stable
offset when the marker was written (8 bytes each).
"""

from __future__ import annotations

from struct import Struct

from tidelog_core.log.values import AbortedTransaction

_ENTRY = Struct(">hqqqq")
ENTRY_SIZE_BYTES = _ENTRY.size
_VERSION = 0


class TxnIndex:
    """The transaction index of one segment."""

    __slots__ = ("_transactions",)

    def __init__(self, entries: bytes = b"") -> None:
        self._transactions = [AbortedTransaction(*row[1:]) for row in _ENTRY.iter_unpack(entries)]

    def __len__(self) -> int:
        return len(self._transactions)

    def append(self, transaction: AbortedTransaction) -> None:
        """Add a transaction whose marker is behind all markers in the index."""
        self._transactions.append(transaction)

    def collect(self, start_offset: int, end_offset: int, into: list[AbortedTransaction]) -> bool:
        """Add the transactions that overlap ``[start_offset, end_offset)`` to ``into``.

        Returns whether all are found: if everything below ``end_offset`` was stable when a marker
        was written, no later marker's transaction can overlap.
        """
        for transaction in self._transactions:
            overlaps = transaction.first_offset < end_offset
            if overlaps and transaction.last_offset >= start_offset:
                into.append(transaction)
            if transaction.last_stable_offset >= end_offset:
                return True
        return False

    def truncate_to(self, offset: int) -> None:
        """Remove the transactions whose marker is at ``offset`` or above."""
        self._transactions = [t for t in self._transactions if t.last_offset < offset]

    def to_bytes(self) -> bytes:
        """Return the file's content."""
        return b"".join(
            _ENTRY.pack(
                _VERSION, t.producer_id, t.first_offset, t.last_offset, t.last_stable_offset
            )
            for t in self._transactions
        )
