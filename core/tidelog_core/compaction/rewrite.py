"""Rewrites record batches without some of their records.

Offsets never change: a batch keeps its base offset, last offset, producer, sequences,
leader epoch, codec and timestamp type. A batch that loses all records is removed, except two
kinds that stay without records: the last batch of a producer that the log still knows, which has
the sequence to continue with, and the batch at the end of the pass, which has the last offset.

Tombstones and markers have to outlive the records that they delete, so that a reader of an older
value also sees the tombstone. The first pass that finds no older record writes a delete horizon
into the batch; a pass after that time removes the tombstone or marker.
Source: KIP-534 and Kafka's log cleaner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tidelog_core.compaction.transactions import CleanedTransactions
from tidelog_core.log.producers.producer_state import ProducerEntry
from tidelog_core.records.batch import (
    BatchHeader,
    Buffer,
    Record,
    build_empty_batch,
    check_crc,
    decode_batch,
    rebuild_batch,
)

KeepRecord = Callable[[Record], bool]

WalkedBatch = tuple[Buffer, int, BatchHeader]
"""A batch in a walk over a segment: a buffer, the batch's position in it, its header."""

RewriteBatch = Callable[[Buffer, int, BatchHeader], bytes | None]
"""Returns the rewritten batch, ``None`` if it is removed; see ``Rewrite.batch``."""


@dataclass(frozen=True, slots=True)
class DeleteRule:
    """The time that tombstones and markers stay after the records that they delete."""

    now_ms: int
    delete_retention_ms: int
    # Outside of this pass no older records are left below it. Only tombstones below it are removed,
    # and no markers, whose transaction may begin outside. None: the pass covers the whole log.
    tombstones_below: int | None = None


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The last batch of a producer that the log knows."""

    epoch: int
    data_offset: int | None  # the last offset of its last data batch, None if it has none


def last_batches(producers: Iterable[tuple[int, ProducerEntry]]) -> dict[int, LastBatch]:
    """Return the last batch of every producer, by producer id."""
    return {
        producer_id: LastBatch(
            entry.epoch, entry.batches[-1].last_offset if entry.batches else None
        )
        for producer_id, entry in producers
    }


@dataclass(slots=True, kw_only=True)
class Rewrite:
    """One pass over a log: ``batch`` is called for every batch, in the order of the log.

    ``keep`` is called for every data record below ``end_offset``; all records at or above it stay.
    Without ``transactions``, transactions are ignored: markers stay, and aborted data are treated
    like any. Without ``deletes``, no tombstone or marker is removed for its age and no delete
    horizon is set: for a pass over a part of a log, with older records at any offset outside it.
    """

    end_offset: int  # exclusive
    keep: KeepRecord
    transactions: CleanedTransactions | None = None
    deletes: DeleteRule | None = None
    last_batches: Mapping[int, LastBatch] = field(default_factory=dict)
    keeps_emptied: bool = False  # a batch that loses everything stays, without records

    def batch(self, buffer: Buffer, position: int, header: BatchHeader) -> bytes | None:
        """Return the rewritten batch at ``position``, None if it is removed.

        Raises ``CorruptRecordBatch`` if it is damaged, before any decision.
        """
        check_crc(buffer, position, header)
        if header.is_control:
            return self._control(buffer, position, header)
        if self.transactions is not None and self.transactions.is_aborted(header):
            return self._emptied(header)
        if header.base_offset >= self.end_offset:
            return _bytes_of(buffer, position, header)
        if header.record_count == 0 and self.transactions is None:
            return _bytes_of(buffer, position, header)
        return self._data(buffer, position, header)

    def _data(self, buffer: Buffer, position: int, header: BatchHeader) -> bytes | None:
        records = decode_batch(buffer, position, header)
        is_expired = self._is_expired(header)
        kept = [
            record
            for record in records
            if record.offset >= self.end_offset
            or (self.keep(record) and not (is_expired and record.value is None))
        ]
        if not kept:
            return self._emptied(header)
        has_tombstones = any(record.value is None for record in kept)
        horizon_ms = self._new_horizon_ms(header) if has_tombstones else None
        if len(kept) == len(records) and horizon_ms is None:
            return _bytes_of(buffer, position, header)
        return rebuild_batch(header, kept, delete_horizon_ms=horizon_ms)

    def _control(self, buffer: Buffer, position: int, header: BatchHeader) -> bytes | None:
        if self.transactions is None:
            return _bytes_of(buffer, position, header)
        may_drop = self.transactions.may_drop_marker(buffer, position, header)
        if header.record_count == 0 or (may_drop and self._is_expired(header)):
            return self._emptied(header)
        horizon_ms = self._new_horizon_ms(header) if may_drop else None
        if horizon_ms is None:
            return _bytes_of(buffer, position, header)
        records = decode_batch(buffer, position, header)
        return rebuild_batch(header, records, delete_horizon_ms=horizon_ms)

    def _rule_for(self, header: BatchHeader) -> DeleteRule | None:
        """Return the delete rule, None if it does not apply to the batch."""
        rule = self.deletes
        if rule is None or rule.tombstones_below is None:
            return rule
        is_outside = header.is_control or header.next_offset > rule.tombstones_below
        return None if is_outside else rule

    def _is_expired(self, header: BatchHeader) -> bool:
        rule, horizon_ms = self._rule_for(header), header.delete_horizon_ms
        return rule is not None and horizon_ms is not None and horizon_ms <= rule.now_ms

    def _new_horizon_ms(self, header: BatchHeader) -> int | None:
        """Return the delete horizon to set in the batch, None if it has or needs none."""
        rule = self._rule_for(header)
        # A batch that ends above ``end_offset`` may have older records of its keys below it.
        if (
            rule is None
            or header.delete_horizon_ms is not None
            or header.next_offset > self.end_offset
        ):
            return None
        return rule.now_ms + rule.delete_retention_ms

    def _emptied(self, header: BatchHeader) -> bytes | None:
        is_needed = header.next_offset == self.end_offset or self._is_last_of_producer(header)
        if is_needed or self.keeps_emptied:
            return build_empty_batch(header)
        return None

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self.last_batches.get(header.producer_id)
        if last is None or not header.has_producer_id:
            return False
        if last.data_offset is not None:
            return header.last_offset == last.data_offset
        return header.is_control and header.producer_epoch == last.epoch


def _bytes_of(buffer: Buffer, position: int, header: BatchHeader) -> bytes:
    return bytes(buffer[position : position + header.size_bytes])
