"""Decides whether the first batch of a transaction may be appended.

A batch whose transaction is not open in this log may be late: its transaction may have ended,
and nothing would end the one that the batch opens. So the leader first queries the
transaction's coordinator. If a marker arrives before the append, every guard returned before
it becomes invalid.
Source: KIP-890; ``ProducerStateManager`` and ``VerificationStateEntry`` of Kafka.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from tidelog_core.errors import InvalidTxnState, OutOfOrderSequence
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.records.batch import BatchHeader

VERIFICATIONS_MAX = 10_000  # of one log at a time; above it the oldest are dropped


class VerificationGuard:
    """A token taken before the coordinator is queried and passed with the append.

    Compared by identity.
    """

    __slots__ = ()


@dataclass(slots=True)
class _Entry:
    guard: VerificationGuard
    epoch: int
    lowest_sequence: int
    bumps_epoch: bool  # the producer's epoch grows with every transaction


class Verifications:
    """The guards of one log, one a producer."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: OrderedDict[int, _Entry] = OrderedDict()

    def begin(self, header: BatchHeader, *, bumps_epoch: bool) -> VerificationGuard:
        """Return the guard for the producer's first batches in a transaction."""
        producer_id = header.producer_id
        entry = self._entries.get(producer_id)
        if entry is None or header.producer_epoch > entry.epoch:
            entry = _Entry(
                VerificationGuard(), header.producer_epoch, header.base_sequence, bumps_epoch
            )
            self._entries[producer_id] = entry
            if len(self._entries) > VERIFICATIONS_MAX:
                self._entries.popitem(last=False)
        elif header.producer_epoch < entry.epoch:
            return VerificationGuard()  # never valid: a newer incarnation of the producer exists
        entry.lowest_sequence = min(entry.lowest_sequence, header.base_sequence)
        return entry.guard

    def require(
        self, header: BatchHeader, guard: VerificationGuard | None, producers: ProducerState
    ) -> None:
        """Raise if the batch may not open its transaction here.

        Raises ``InvalidTxnState``; ``OutOfOrderSequence`` if an earlier batch of the transaction
        is not appended yet.
        """
        producer_id = header.producer_id
        entry = self._entries.get(producer_id)
        if entry is None or entry.guard is not guard:
            raise InvalidTxnState("the record batch is not part of an open transaction")
        known = producers.entry(producer_id)
        is_unknown = known is None or not known.batches
        is_first_of_all = is_unknown and entry.bumps_epoch
        if header.base_sequence > entry.lowest_sequence or (
            is_first_of_all and header.base_sequence != 0
        ):
            raise OutOfOrderSequence(
                f"producer {producer_id} begins its transaction with sequence "
                f"{header.base_sequence}, but has sent {entry.lowest_sequence} before"
            )

    def end(self, producer_id: int) -> None:
        """Make the producer's guards worthless: its transaction is open here, or has ended."""
        self._entries.pop(producer_id, None)
