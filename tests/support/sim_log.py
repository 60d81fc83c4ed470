"""A log in memory, one record a batch, and its state after a crash or a power loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelog_core.log.leader_epochs import LeaderEpochs
from tidelog_core.replication.tier_start import TierEnd

Payload = tuple[int, int]  # producer, sequence
Entry = tuple[int, Payload]  # leader epoch, payload
NOT_IDEMPOTENT = 1_000  # producers from here on have no sequence numbers


class OutOfOrder(Exception):
    """The producer's sequence has a gap."""


@dataclass(slots=True)
class Tier:
    """The object store: committed entries from offset 0 on."""

    entries: list[Entry] = field(default_factory=list)

    @property
    def end(self) -> TierEnd | None:
        """The end of the tier, as the catalogue has it."""
        if not self.entries:
            return None
        return TierEnd(len(self.entries), self.entries[-1][0], 0)


class SimLog:
    """The part of a log that the state machines and the simulation use."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self.log_start_offset = 0
        self.local_log_start_offset = 0
        self.high_watermark = 0
        self.flushed_offset = 0
        self.entries: list[Entry] = []  # from the local log start on
        self._epochs = LeaderEpochs()
        self._positions: dict[Payload, int] = {}
        self._last_sequences: dict[int, int] = {}

    @property
    def log_end_offset(self) -> int:
        return self.local_log_start_offset + len(self.entries)

    @property
    def leader_epoch(self) -> int:
        return self._epochs.latest

    def leader_epoch_for(self, offset: int) -> int:
        return self._epochs.epoch_for(offset)

    def offset_for_leader_epoch(self, epoch: int) -> tuple[int, int]:
        return self._epochs.end_offset_for(epoch, self.log_end_offset)

    def entry(self, offset: int) -> Entry:
        return self.entries[offset - self.local_log_start_offset]

    def read(self, offset: int, up_to: int, count: int) -> list[Entry]:
        start = offset - self.local_log_start_offset
        return self.entries[start : max(start, min(start + count, up_to - offset + start))]

    def assign_leader_epoch(self, epoch: int) -> None:
        if epoch > self._epochs.latest:
            self._epochs.assign(epoch, self.log_end_offset)

    def append_as_leader(self, payload: Payload, epoch: int) -> tuple[int, bool]:
        """Return the offset, and whether the payload was there already."""
        producer, sequence = payload
        known = self._positions.get(payload)
        if known is not None:
            return known, True
        if producer < NOT_IDEMPOTENT and sequence != self._last_sequences.get(producer, -1) + 1:
            raise OutOfOrder
        offset = self.log_end_offset
        self._append((epoch, payload))
        return offset, False

    def append_as_follower(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._append(entry)

    def _append(self, entry: Entry) -> None:
        epoch, (producer, sequence) = entry
        offset = self.log_end_offset
        if epoch > self._epochs.latest:
            self._epochs.assign(epoch, offset)
        self.entries.append(entry)
        self._positions[producer, sequence] = offset
        self._last_sequences[producer] = sequence

    def advance_high_watermark(self, offset: int) -> bool:
        offset = min(offset, self.log_end_offset)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        return True

    def truncate_to(self, offset: int) -> None:
        """Truncate the log; leader epochs are truncated even if no record is."""
        if offset < self.local_log_start_offset:
            self.truncate_fully(offset, min(self.log_start_offset, offset))
            return
        self._epochs.truncate_from_end(offset)
        if offset < self.log_end_offset:
            del self.entries[offset - self.local_log_start_offset :]
            self.high_watermark = min(self.high_watermark, offset)
            self.flushed_offset = min(self.flushed_offset, offset)
            self._load_producers()

    def truncate_fully(self, offset: int, log_start_offset: int) -> None:
        """Begin an empty log; epochs and producers come from the tier."""
        self.entries.clear()
        self.local_log_start_offset = self.high_watermark = self.flushed_offset = offset
        self.log_start_offset = log_start_offset
        self._epochs.clear()
        for below, (epoch, _) in enumerate(self._tier.entries[:offset]):
            if epoch > self._epochs.latest:
                self._epochs.assign(epoch, below)
        self._load_producers()

    def evict(self, up_to: int) -> None:
        """Drop local entries that the tier has."""
        count = min(up_to, self.high_watermark) - self.local_log_start_offset
        if count > 0:
            del self.entries[:count]
            self.local_log_start_offset += count
            self.flushed_offset = max(self.flushed_offset, self.local_log_start_offset)

    def advance_log_start(self, offset: int) -> None:
        self.log_start_offset = max(self.log_start_offset, min(offset, self.high_watermark))

    def reopen(self, *, end_offset: int) -> None:
        """Reopen as a new process does that finds the log on disk up to ``end_offset``."""
        if end_offset < self.log_end_offset:
            self.truncate_to(end_offset)
        self.high_watermark = max(self.log_start_offset, self.local_log_start_offset)

    def _load_producers(self) -> None:
        self._positions.clear()
        self._last_sequences.clear()
        start = self.local_log_start_offset
        for offset, (_, payload) in enumerate([*self._tier.entries[:start], *self.entries]):
            self._positions[payload] = offset
            self._last_sequences[payload[0]] = payload[1]
