"""Tracks the producers of one log: sequences, transactions and verification guards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tidelog_core.log.producers.producer_snapshots import producers_at
from tidelog_core.log.producers.producer_state import ProducerEntry, ProducerState
from tidelog_core.log.producers.staged_append import StagedAppend
from tidelog_core.log.producers.verification import VerificationGuard, Verifications
from tidelog_core.log.segments.log_segments import LogSegments
from tidelog_core.records.batch import BatchHeader

EXPIRY_VISITS_MAX = 1_000  # producers of one log that one turn of the event loop looks at


class LogProducers:
    """The producers up to the log end. ``state`` is another one after the log was cut."""

    __slots__ = ("_clock_ms", "_expiration_ms", "_segments", "_verifications", "state")

    def __init__(
        self,
        segments: LogSegments,
        state: ProducerState,
        *,
        clock_ms: Callable[[], int],
        expiration_ms: int,
    ) -> None:
        self._segments = segments
        self._clock_ms = clock_ms
        self._expiration_ms = expiration_ms
        self._verifications = Verifications()
        self.state: ProducerState = state

    @property
    def count(self) -> int:
        """The number of producers with a state."""
        return len(self.state)

    def items(self) -> Iterator[tuple[int, ProducerEntry]]:
        """Yield the ids and states of the known producers; they must not be kept or changed."""
        return self.state.items()

    def expire(self) -> int:
        """Forget producers that have been idle for too long. Returns how many.

        A thousand are looked at; ``next_expiry_ms`` has passed while more are due.
        """
        return self.state.expire(self._clock_ms(), visits_max=EXPIRY_VISITS_MAX)

    @property
    def next_expiry_ms(self) -> int | None:
        """A time before which no producer expires, ``None`` if there is no producer."""
        return self.state.next_expiry_ms

    def has_ongoing_transaction(self, producer_id: int, epoch: int | None = None) -> bool:
        """Whether the producer has written, in this epoch, to a transaction that is open."""
        return self.state.has_ongoing_transaction(producer_id, epoch)

    def begin_verification(
        self, header: BatchHeader, *, bumps_epoch: bool
    ) -> VerificationGuard | None:
        """Return the guard with which to append a client's transactional batch.

        Call it before the transaction's coordinator is queried. Returns ``None`` if the batch's
        transaction is open in this log: it needs no verification.
        """
        if self.state.has_ongoing_transaction(header.producer_id, header.producer_epoch):
            return None
        return self._verifications.begin(header, bumps_epoch=bumps_epoch)

    def require_verified(self, header: BatchHeader, guard: VerificationGuard | None) -> None:
        """Raise if a client's transactional batch may not be appended now.

        Raises ``InvalidTxnState``, ``OutOfOrderSequence``.
        """
        if self.state.has_ongoing_transaction(header.producer_id, header.producer_epoch):
            return
        if self.state.find_duplicate(header) is None:
            self._verifications.require(header, guard, self.state)

    def on_append(self, staged: StagedAppend) -> None:
        """Apply the changes of batches that were written to the active segment."""
        if staged.draft is None:
            self.state.end_offset = staged.end_offset
            return
        for aborted in self.state.commit(staged.draft, end_offset=staged.end_offset):
            self._segments.active.indexes.txn.append(aborted)
        for producer_id in staged.draft.transactional:
            self._verifications.end(producer_id)

    def at(self, offset: int) -> ProducerState:
        """Return the producers' state at an offset, from snapshots and batches."""
        return producers_at(
            self._segments.directory,
            self._segments.all,
            offset,
            expiration_ms=self._expiration_ms,
            now_ms=self._clock_ms(),
        )
