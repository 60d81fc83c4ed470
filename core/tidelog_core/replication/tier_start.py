"""Decides when a replica drops its local log and continues at the end of the tier.

Everything in the tier is committed: it is copied from below the high watermark, and the
chain of segments has no gaps. So a log that restarts at the tier's end lacks nothing
below it, and fetches the records above it again.

- A *new or empty replica*, and one whose fetch offset the leader has evicted, copies only the
  local tail. It is never in the ISR: a member has everything below the high watermark.
- A *leader* must have every offset of the tier, or the same offsets would get other bytes.
  Every ISR member has them. A replica that leads after an unclean election, or after its disk
  lost the end of the log, may have fewer or other records. It restarts at the tier's end before
  it leads, and so loses fewer records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class ReplicaLog(Protocol):
    """The log as the state machines see it; ``LocalLog`` implements it."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read, here or from the tier."""

    @property
    def local_log_start_offset(self) -> int:
        """The first offset that may be read here."""

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""

    @property
    def high_watermark(self) -> int:
        """The end of the records that are known to be committed, exclusive."""

    @property
    def leader_epoch(self) -> int:
        """The latest leader epoch that the log has seen, -1 if none."""

    def leader_epoch_for(self, offset: int) -> int:
        """Return the epoch that wrote ``offset``, -1 if it is not known."""

    def offset_for_leader_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the greatest epoch at or below ``epoch`` and its end, else (-1, -1)."""


@dataclass(frozen=True, slots=True)
class TierEnd:
    """The end of a partition's records in the tier, which have no gaps."""

    offset: int
    leader_epoch: int  # of the record before ``offset``
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class TruncateFully:
    """Drop the local log and continue at ``offset``.

    Everything in ``[log_start_offset, offset)`` is in the tier; its leader epochs and
    producers come from the last tiered segment.
    """

    offset: int
    log_start_offset: int


def start_before_following(
    log: ReplicaLog, tier_end: TierEnd | None, *, is_in_sync: bool
) -> TruncateFully | None:
    """Return the truncation to do before the first fetch from a leader, if any."""
    if (
        tier_end is None
        or is_in_sync
        or log.log_end_offset > log.local_log_start_offset
        or log.log_end_offset >= tier_end.offset
    ):
        return None
    return TruncateFully(tier_end.offset, tier_end.log_start_offset)


def start_before_leading(
    log: ReplicaLog, tier_end: TierEnd | None, *, log_start_offset: int
) -> TruncateFully | None:
    """Return how a replica restarts before it leads, if an election may have lost records.

    ``log_start_offset`` is the partition's in the metadata store. After a clean
    election the result is ``None`` and the tier need not be read.
    """
    if tier_end is None and log.log_end_offset < log_start_offset:
        # Its next records would get offsets of deleted ones, and be deleted like them.
        return TruncateFully(log_start_offset, log_start_offset)
    if tier_end is None or tier_end.offset <= log.log_start_offset:
        return None
    if log.log_end_offset >= tier_end.offset and (
        log.local_log_start_offset >= tier_end.offset
        or log.leader_epoch_for(tier_end.offset - 1) == tier_end.leader_epoch
    ):
        return None
    return TruncateFully(tier_end.offset, tier_end.log_start_offset)
