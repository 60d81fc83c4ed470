"""Tracks transactions during a compaction: which data and which markers may be removed.

Data of aborted transactions are removed. A marker may be removed once a whole pass has found no
batch of its transaction, because readers then no longer need it. A pass that removes the last batch
of a transaction still finds it, so the marker is removed in a later pass at the earliest.
Source: KIP-98; Kafka's CleanedTransactionMetadata.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog_core.log.values import AbortedTransaction
from tidelog_core.records.batch import BatchHeader, Buffer, decode_batch
from tidelog_core.records.control import ControlType, parse_control_type


class CleanedTransactions:
    """The transactions as one walk sees them. It passes every batch once, in the order of the log.

    To drop markers, the walk must begin where the oldest transaction in it begins, or
    ``begun_before`` must have the producers with a transaction that is open where it
    begins: their first marker stays. ``aborted`` are the transactions that overlap
    the range, in any order.
    """

    __slots__ = ("_aborted", "_ongoing_aborted", "_ongoing_committed", "_seen_aborted", "kept")

    def __init__(
        self, aborted: Iterable[AbortedTransaction] = (), *, begun_before: Iterable[int] = ()
    ) -> None:
        self._aborted = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        self._ongoing_aborted: dict[int, AbortedTransaction] = {}  # by producer id
        # Producers of aborted transactions with batches that were met, or may be before the walk.
        self._seen_aborted: set[int] = set(begun_before)
        self._ongoing_committed: set[int] = set(self._seen_aborted)
        # Aborted transactions whose markers readers still need, for the transaction index.
        self.kept: list[AbortedTransaction] = []

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the batch of data belongs to an aborted transaction."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._ongoing_aborted:
            self._seen_aborted.add(header.producer_id)
            return True
        self._ongoing_committed.add(header.producer_id)
        return False

    def may_drop_marker(self, buffer: Buffer, position: int, header: BatchHeader) -> bool:
        """Whether no reader needs the control batch any more.

        A batch without a record was emptied before. Raises ``CorruptRecordBatch``.
        """
        self._begin_up_to(header.last_offset)
        records = decode_batch(buffer, position, header)
        if not records:
            return True
        match parse_control_type(records[0].key):
            case ControlType.ABORT:
                aborted = self._ongoing_aborted.pop(header.producer_id, None)
                self._ongoing_committed.discard(header.producer_id)
                if aborted is None or header.producer_id not in self._seen_aborted:
                    return True
                self._seen_aborted.remove(header.producer_id)
                self.kept.append(aborted)
                return False
            case ControlType.COMMIT:
                was_met = header.producer_id in self._ongoing_committed
                self._seen_aborted.discard(header.producer_id)
                self._ongoing_committed.discard(header.producer_id)
                return not was_met
            case None:
                return False

    def take_kept(self) -> list[AbortedTransaction]:
        """Return ``kept`` and clear it, at the end of a segment."""
        kept, self.kept = self.kept, []
        return kept

    def _begin_up_to(self, offset: int) -> None:
        while self._aborted and self._aborted[-1].first_offset <= offset:
            aborted = self._aborted.pop()
            self._ongoing_aborted[aborted.producer_id] = aborted
