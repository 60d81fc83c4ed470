"""Tracks each producer of a log: its epoch, its last batches, its open transaction.

A batch is checked before it is written and noted after: ``stage`` opens a draft,
``ProducerDraft.add`` checks one batch against the state and the draft so far, and
``commit`` takes the draft over. A draft that is dropped leaves no trace.

The rules are those of Kafka's idempotent and transactional producers. A batch
whose epoch and sequences equal one of the producer's last five is a duplicate. An
unknown producer may start with any sequence, because its state may have expired; a
known one continues where it stopped, and starts again at 0 with a new epoch.

Idle producers are forgotten. A heap has each producer with a time at which it was last seen or
before, and an append does not touch it: a producer that comes up there and was seen since goes back
with that later time, at most once in ``expiration_ms``.
Source: KIP-98, KIP-360 and Kafka 4.0's ProducerStateManager.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from tidelog_core.errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequence
from tidelog_core.log.values import (
    AbortedTransaction,
    AppendOrigin,
    TransactionCoordinatorFenced,
)
from tidelog_core.model import NO_OFFSET, NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP
from tidelog_core.records.batch import BatchHeader
from tidelog_core.records.control import EndTransactionMarker

RETAINED_BATCH_COUNT = 5  # a client has at most this many requests in flight
SEQUENCE_MAX = 2**31 - 1
NO_COORDINATOR_EPOCH = -1
NONE_BEGUN = 2**63  # above every offset
UNCOMMITTED_MAX = 50_000  # producers with appends above the high watermark that are found at once


class RetainedBatch(NamedTuple):
    """One of a producer's last batches; a repetition is recognized by it."""

    last_sequence: int
    last_offset: int
    offset_delta: int  # last offset - first offset
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        """The first sequence; sequences wrap to 0 after 2**31 - 1."""
        return (self.last_sequence - self.offset_delta) & SEQUENCE_MAX

    @property
    def first_offset(self) -> int:
        """The batch's base offset."""
        return self.last_offset - self.offset_delta


class CompletedTransaction(NamedTuple):
    """A transaction whose marker has been checked and may be committed."""

    producer_id: int
    first_offset: int
    last_offset: int  # of the marker
    is_aborted: bool


class ProducerEntry:
    """The state of one producer."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_seen_ms",
        "transaction_first_offset",
    )

    def __init__(
        self,
        *,
        epoch: int = NO_PRODUCER_EPOCH,
        coordinator_epoch: int = NO_COORDINATOR_EPOCH,
        last_seen_ms: int = NO_TIMESTAMP,
        transaction_first_offset: int = NO_OFFSET,
        batches: Iterable[RetainedBatch] = (),
    ) -> None:
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_seen_ms = last_seen_ms
        self.transaction_first_offset = transaction_first_offset  # -1: none is open
        self.batches = list(batches)  # of the current epoch, oldest first, at most five

    def copy(self) -> ProducerEntry:
        """Return an entry that can change without changing this one."""
        return ProducerEntry(
            epoch=self.epoch,
            coordinator_epoch=self.coordinator_epoch,
            last_seen_ms=self.last_seen_ms,
            transaction_first_offset=self.transaction_first_offset,
            batches=self.batches,
        )

    @property
    def last_sequence(self) -> int:
        """The last sequence of the current epoch, -1 if it has no batch."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def find_duplicate(self, header: BatchHeader) -> RetainedBatch | None:
        """Return the retained batch that ``header`` repeats."""
        if header.producer_epoch != self.epoch:
            return None
        last_sequence, delta = header.last_sequence, header.last_offset_delta
        for batch in self.batches:
            if batch.last_sequence == last_sequence and batch.offset_delta == delta:
                return batch
        return None

    def start_epoch(self, epoch: int) -> None:
        """Enter an epoch; the batches of another one are forgotten."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()

    def add_batch(self, batch: RetainedBatch) -> None:
        """Retain the newest batch."""
        if len(self.batches) == RETAINED_BATCH_COUNT:
            del self.batches[0]
        self.batches.append(batch)


class ProducerState:
    """The producers and transactions of one log, up to ``end_offset``."""

    __slots__ = (
        "_expiration_ms",
        "_first_ongoing",
        "_first_unreplicated",
        "_idle",
        "_ongoing",
        "_producers",
        "_unreplicated",
        "_written",
        "end_offset",
    )

    def __init__(self, *, end_offset: int = 0, expiration_ms: int) -> None:
        self._producers: dict[int, ProducerEntry] = {}
        # A heap of every producer, with a time at or before that at which it was last seen.
        self._idle: list[tuple[int, int]] = []
        self._ongoing: dict[int, int] = {}  # first offset → producer id
        self._unreplicated: dict[int, int] = {}  # first offset → last offset, above the watermark
        # The lowest first offset of each, NONE_BEGUN for none. Every append reads it, and there may
        # be thousands of transactions that are never ended.
        self._first_ongoing = NONE_BEGUN
        self._first_unreplicated = NONE_BEGUN
        # Producers with appends above the high watermark, by their last ones, and the last offsets
        # of these. Not every append: after a crash each log is read from its last snapshot on.
        self._written: OrderedDict[int, int] = OrderedDict()
        self._expiration_ms = expiration_ms
        self.end_offset = end_offset

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def expiration_ms(self) -> int:
        """The time for which an idle producer is remembered."""
        return self._expiration_ms

    def items(self) -> Iterator[tuple[int, ProducerEntry]]:
        """Iterate over producer ids and their states."""
        return iter(self._producers.items())

    def entry(self, producer_id: int) -> ProducerEntry | None:
        """Return the state of a producer, None if it is unknown."""
        return self._producers.get(producer_id)

    def producer_ids(self) -> list[int]:
        """Return the ids of all producers: a copy, for callers that go through them in turns."""
        return list(self._producers)

    def uncommitted(
        self, high_watermark: int, *, count_max: int
    ) -> list[tuple[int, ProducerEntry]]:
        """Return producers that have appended above the high watermark, the last ones if too many.

        In the order of their last appends, and without a look at any other producer. Appends from
        before a snapshot was loaded are not known.
        """
        found: dict[int, ProducerEntry] = {}
        for producer_id, last_offset in reversed(self._written.items()):
            if len(found) == count_max:
                break
            if last_offset >= high_watermark:
                entry = self._producers.get(producer_id)
                if entry is not None:
                    found[producer_id] = entry
        return list(found.items())[::-1]

    def load(self, producer_id: int, entry: ProducerEntry) -> None:
        """Add a producer from a snapshot."""
        known_count = len(self._producers)
        self._producers[producer_id] = entry
        self._note_new(known_count)
        if entry.transaction_first_offset != NO_OFFSET:
            self._begin({entry.transaction_first_offset: producer_id})

    def unreplicated(self) -> Iterator[tuple[int, int]]:
        """Iterate over the (first, last) offsets of transactions ended above the high watermark."""
        return iter(self._unreplicated.items())

    def load_unreplicated(self, first_offset: int, last_offset: int) -> None:
        """Add a transaction that has ended above the high watermark."""
        self._unreplicated[first_offset] = last_offset
        self._first_unreplicated = min(self._first_unreplicated, first_offset)

    def find_duplicate(self, header: BatchHeader) -> RetainedBatch | None:
        """Return the retained batch that a client's batch repeats."""
        entry = self._producers.get(header.producer_id)
        return entry.find_duplicate(header) if entry is not None else None

    def stage(self, origin: AppendOrigin, *, now_ms: int) -> ProducerDraft:
        """Open a draft of changes."""
        return ProducerDraft(self, origin, now_ms)

    def commit(self, draft: ProducerDraft, *, end_offset: int) -> list[AbortedTransaction]:
        """Apply the draft's changes, once its batches are written.

        Returns the transactions that the batches aborted, for the transaction index.
        """
        known_count = len(self._producers)
        self._producers.update(draft.entries)
        if len(self._producers) != known_count:
            self._note_new(known_count)
        written = self._written
        for producer_id, entry in draft.entries.items():
            if entry.batches:
                written[producer_id] = entry.batches[-1].last_offset
                written.move_to_end(producer_id)
        while len(written) > UNCOMMITTED_MAX:
            written.popitem(last=False)
        self._begin(draft.started)
        aborted = []
        for completed in draft.completed:
            self._end(completed.first_offset)
            # A transaction that the same append opens later does not count, as if each batch
            # were appended alone.
            last_stable_offset = min(self._first_ongoing, completed.last_offset + 1)
            self.load_unreplicated(completed.first_offset, completed.last_offset)
            if completed.is_aborted:
                aborted.append(
                    AbortedTransaction(*completed[:3], last_stable_offset=last_stable_offset)
                )
        self.end_offset = end_offset
        return aborted

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the oldest transaction that is open or not yet replicated."""
        first = min(self._first_ongoing, self._first_unreplicated)
        return None if first == NONE_BEGUN else first

    def advance_high_watermark(self, high_watermark: int) -> None:
        """Drop the completed transactions whose marker is below the high watermark.

        And forget whose appends are below it.
        """
        written = self._written
        while written:
            producer_id = next(iter(written))
            if written[producer_id] >= high_watermark:
                break
            del written[producer_id]
        if self._unreplicated:
            self._unreplicated = {
                first: last for first, last in self._unreplicated.items() if last >= high_watermark
            }
            self._first_unreplicated = min(self._unreplicated, default=NONE_BEGUN)

    def expire(self, now_ms: int, *, visits_max: int | None = None) -> int:
        """Forget producers idle for too long, except in transactions. Returns how many.

        Looks at ``visits_max`` producers at most; ``next_expiry_ms`` says whether more are due.
        """
        idle, seen_ms_max = self._idle, now_ms - self._expiration_ms
        visits, count = 0, 0
        while idle and idle[0][0] <= seen_ms_max and visits != visits_max:
            visits += 1
            producer_id = idle[0][1]
            entry = self._producers[producer_id]
            if entry.transaction_first_offset != NO_OFFSET:
                # Its end will be seen at this time at the earliest.
                heapq.heapreplace(idle, (now_ms, producer_id))
            elif entry.last_seen_ms > seen_ms_max:
                heapq.heapreplace(idle, (entry.last_seen_ms, producer_id))
            else:
                heapq.heappop(idle)
                del self._producers[producer_id]
                count += 1
        return count

    @property
    def next_expiry_ms(self) -> int | None:
        """A time before which no producer expires, ``None`` if there is no producer."""
        return self._idle[0][0] + self._expiration_ms if self._idle else None

    def has_ongoing_transaction(self, producer_id: int, epoch: int | None = None) -> bool:
        """Whether the producer has written, in this epoch, to a transaction that is open."""
        entry = self._producers.get(producer_id)
        if entry is None or entry.transaction_first_offset == NO_OFFSET:
            return False
        return epoch is None or entry.epoch == epoch

    def _note_new(self, known_count: int) -> None:
        """Take the producers that were added last, when there were ``known_count``."""
        for producer_id in islice(reversed(self._producers), len(self._producers) - known_count):
            entry = self._producers[producer_id]
            heapq.heappush(self._idle, (entry.last_seen_ms, producer_id))

    def _begin(self, started: dict[int, int]) -> None:
        self._ongoing.update(started)
        self._first_ongoing = min(self._first_ongoing, min(started, default=NONE_BEGUN))

    def _end(self, first_offset: int) -> None:
        self._ongoing.pop(first_offset, None)
        if first_offset == self._first_ongoing:
            self._first_ongoing = min(self._ongoing, default=NONE_BEGUN)


class ProducerDraft:
    """Changes to a ``ProducerState`` by batches that are not written yet."""

    __slots__ = (
        "_now_ms",
        "_origin",
        "_state",
        "completed",
        "entries",
        "started",
        "transactional",
    )

    def __init__(self, state: ProducerState, origin: AppendOrigin, now_ms: int) -> None:
        self._state = state
        self._origin = origin
        self._now_ms = now_ms
        self.entries: dict[int, ProducerEntry] = {}
        self.started: dict[int, int] = {}
        self.completed: list[CompletedTransaction] = []
        self.transactional: set[int] = set()  # producers with transactional data or a marker

    def add(
        self, header: BatchHeader, base_offset: int, marker: EndTransactionMarker | None = None
    ) -> None:
        """Check a batch with a producer id, and add it to the draft.

        ``marker`` is the content of a control batch. A control batch without one (its
        transaction was compacted away) changes nothing. Raises
        ``OutOfOrderSequence``, ``InvalidProducerEpoch``, ``InvalidTxnState`` and
        ``TransactionCoordinatorFenced``. Followers accept every batch that the leader accepted.
        """
        producer_id = header.producer_id
        entry = self.entries.get(producer_id)
        if entry is None:
            known = self._state.entry(producer_id)
            entry = known.copy() if known is not None else ProducerEntry()
        if header.is_control:
            if marker is None:
                return
            self._end_transaction(entry, header, base_offset, marker)
        else:
            self._add_data(entry, header, base_offset)
        entry.last_seen_ms = self._now_ms
        self.entries[producer_id] = entry
        if header.is_transactional:
            self.transactional.add(producer_id)

    def _add_data(self, entry: ProducerEntry, header: BatchHeader, base_offset: int) -> None:
        epoch, producer_id = header.producer_epoch, header.producer_id
        self._check_epoch(entry, header)
        if self._origin is AppendOrigin.CLIENT:
            _check_sequence(entry, header)
        is_open = entry.transaction_first_offset != NO_OFFSET
        is_trusted = self._origin is AppendOrigin.REPLICATION
        if is_open and not header.is_transactional and not is_trusted:
            raise InvalidTxnState(
                f"producer {producer_id} has a transaction open, so its batches must belong to it"
            )
        entry.start_epoch(epoch)
        delta = header.last_offset_delta
        entry.add_batch(
            RetainedBatch(header.last_sequence, base_offset + delta, delta, header.max_timestamp_ms)
        )
        if header.is_transactional and not is_open:
            entry.transaction_first_offset = base_offset
            self.started[base_offset] = producer_id

    def _end_transaction(
        self, entry: ProducerEntry, header: BatchHeader, offset: int, marker: EndTransactionMarker
    ) -> None:
        self._check_epoch(entry, header)
        is_fenced = marker.coordinator_epoch < entry.coordinator_epoch
        if is_fenced and self._origin is not AppendOrigin.REPLICATION:
            raise TransactionCoordinatorFenced(
                f"the marker for producer {header.producer_id} comes from coordinator epoch "
                f"{marker.coordinator_epoch}, but epoch {entry.coordinator_epoch} has written"
            )
        # A marker without data before it moves no stable offset and needs no index entry.
        if entry.transaction_first_offset != NO_OFFSET:
            self.completed.append(
                CompletedTransaction(
                    header.producer_id,
                    entry.transaction_first_offset,
                    offset,
                    is_aborted=not marker.is_commit,
                )
            )
            entry.transaction_first_offset = NO_OFFSET
        entry.start_epoch(header.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch

    def _check_epoch(self, entry: ProducerEntry, header: BatchHeader) -> None:
        if header.producer_epoch < entry.epoch and self._origin is not AppendOrigin.REPLICATION:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} writes with epoch {header.producer_epoch}, "
                f"but epoch {entry.epoch} has written"
            )


def _check_sequence(entry: ProducerEntry, header: BatchHeader) -> None:
    first_sequence = header.base_sequence
    if entry.epoch == NO_PRODUCER_EPOCH:
        return
    is_new_epoch = header.producer_epoch != entry.epoch
    expected = 0 if is_new_epoch else (entry.last_sequence + 1) & SEQUENCE_MAX
    if first_sequence != expected:
        raise OutOfOrderSequence(
            f"producer {header.producer_id} sent sequence {first_sequence} in epoch "
            f"{header.producer_epoch}, expected {expected} (last: {entry.last_sequence} in epoch "
            f"{entry.epoch})"
        )
