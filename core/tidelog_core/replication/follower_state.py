"""Builds a follower's fetches and applies the leader's answers.

Theory of operation. One fetch at a time, always from the own log end, with the latest
leader epoch of the own log. The leader compares the two with its epochs. If they diverge,
it answers with its greatest epoch at or below the follower's, and the end of that epoch. The
follower truncates to the greatest end that both may share and fetches again. So the logs are equal
up to the fetch offset whenever the leader notes it, and a record is truncated only if the leader
of a later epoch does not have it. The high watermark is not used for this: it may lag
behind the committed records, and truncating there has lost acknowledged records (KIP-101).

Answers come late, twice or never. One is used only if it answers a fetch of the current
leader epoch and the log still ends where that fetch began.

If the leader no longer has the offset locally, the follower restarts at the end of the
tier, see ``tier_start``.

Source: KIP-101, KIP-279, KIP-405, KIP-595; Kafka's ``AbstractFetcherThread``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidelog_core.errors import ErrorCode
from tidelog_core.metadata.records import Partition
from tidelog_core.model import NO_LEADER, NO_LEADER_EPOCH, NO_OFFSET
from tidelog_core.replication.tier_start import ReplicaLog, TierEnd, TruncateFully


@dataclass(frozen=True, slots=True)
class ReplicaFetch:
    """The parameters of a follower's fetch."""

    leader_id: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int  # the log's latest epoch, -1 for none
    log_start_offset: int
    is_fed: bool = False  # the partition is diskless here: no records are wanted


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """An answer without its records."""

    error: ErrorCode = ErrorCode.none
    high_watermark: int = 0
    log_start_offset: int = 0
    diverging: tuple[int, int] | None = None  # an epoch and its end offset at the leader


@dataclass(frozen=True, slots=True)
class Ignore:
    """Do nothing; fetch again after a pause if ``must_wait``, or once the leader changes."""

    must_wait: bool = True


@dataclass(frozen=True, slots=True)
class Append:
    """Append the answer's records, then apply these values, up to the log's end."""

    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate the log and its leader epochs at ``offset``, even if no record is removed."""

    offset: int


@dataclass(frozen=True, slots=True)
class AskOffsets:
    """Ask the leader for its log start, local start and end, and the store for the tier's end."""


Action = Ignore | Append | Truncate | TruncateFully | AskOffsets

_NOT_LOCAL = frozenset({ErrorCode.offset_out_of_range, ErrorCode.offset_moved_to_tiered_storage})


class LeaderContact:
    """The last answer of a leader in one fetch session, for all partitions of the session.

    An answer names only the partitions with news; it also says that the others have none.
    """

    __slots__ = ("answered_ms",)

    def __init__(self) -> None:
        self.answered_ms = 0.0


class FollowerState:
    """One partition followed in one leader epoch."""

    def __init__(self, partition: Partition, broker_id: int) -> None:
        assert partition.leader != broker_id
        self.partition = partition
        self.broker_id = broker_id
        self.leader_epoch = partition.leader_epoch
        self.on_stop: Callable[[], None] = _do_nothing
        self._heard_ms = 0.0  # before the contact
        self._contact: LeaderContact | None = None
        self._is_stopped = False

    @property
    def leader_id(self) -> int:
        """The broker to fetch from; ``NO_LEADER`` if there is none."""
        return self.partition.leader

    @property
    def heard_ms(self) -> float:
        """The time at which the leader last said, or implied, how far it is."""
        contact = self._contact
        return self._heard_ms if contact is None else max(self._heard_ms, contact.answered_ms)

    def begin(self, now_ms: float) -> None:
        """Note when following began: records committed by then count as heard of."""
        self._heard_ms = now_ms

    def on_heard(self, contact: LeaderContact) -> None:
        """Note that the leader has answered for this partition: later answers imply it."""
        self._contact = contact

    def end_contact(self) -> None:
        """Note that later answers of the leader say nothing about this partition."""
        if self._contact is not None:
            self._heard_ms, self._contact = self.heard_ms, None

    def on_partition(self, partition: Partition) -> None:
        """Take a newer record of the same leader epoch."""
        assert partition.leader_epoch == self.leader_epoch
        if partition.version > self.partition.version:
            self.partition = partition

    def stop(self) -> None:
        """Stop fetching: this broker takes over, drains, or no longer holds a replica."""
        if not self._is_stopped:
            self._is_stopped = True
            self.on_stop()

    def next_fetch(self, log: ReplicaLog, *, is_fed: bool = False) -> ReplicaFetch | None:
        """Return the next fetch, ``None`` if there is no leader to fetch from.

        ``is_fed``: the records come from the bucket, and the leader only says up to where. What
        this log has above its high watermark was not compared with the bucket yet.
        """
        if self._is_stopped or self.leader_id == NO_LEADER:
            return None
        end_offset = log.high_watermark if is_fed else log.log_end_offset
        return ReplicaFetch(
            leader_id=self.leader_id,
            leader_epoch=self.leader_epoch,
            offset=end_offset,
            # Not the last record's epoch: a leader that was deposed before it appended anything
            # has an epoch that no other replica knows, and must drop it. Otherwise records of
            # older epochs that it fetches next would count as records of that epoch.
            last_fetched_epoch=log.leader_epoch,
            log_start_offset=log.log_start_offset,
            is_fed=is_fed,
        )

    def on_answer(
        self, fetch: ReplicaFetch, answer: FetchAnswer, log: ReplicaLog, *, is_fed: bool = False
    ) -> Action:
        """Return the action for an answer; ``is_fed`` as for ``next_fetch``.

        An answer without records holds wherever the log ends by now, and is not repeated.
        """
        if not (self._is_in_epoch(fetch) if is_fed else self._is_current(fetch, log)):
            return Ignore(must_wait=False)
        if answer.error in _NOT_LOCAL:
            return AskOffsets()
        if answer.error is not ErrorCode.none:
            # FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER: one of the
            # two is behind the metadata store, and will not be for long.
            return Ignore()
        if answer.diverging is not None:
            epoch, end_offset = answer.diverging
            return Truncate(self.truncation_offset(epoch, end_offset, log))
        return Append(answer.high_watermark, answer.log_start_offset)

    def truncation_offset(self, epoch: int, end_offset: int, log: ReplicaLog) -> int:
        """Return where to truncate, given that the leader's ``epoch`` ends at ``end_offset``."""
        own_epoch, own_end = log.offset_for_leader_epoch(epoch)
        if own_epoch == NO_LEADER_EPOCH:
            # This log has older epochs only, or none: the logs can agree up to that end at most.
            return min(end_offset, log.log_end_offset)
        if own_epoch != epoch:
            # This log lacks the leader's epoch: the logs can agree on an older epoch at most.
            return min(own_end, log.log_end_offset)
        return min(own_end, end_offset, log.log_end_offset)

    def on_offsets(
        self,
        fetch: ReplicaFetch,
        log: ReplicaLog,
        *,
        leader_start: int,
        leader_local_start: int,
        leader_end: int,
        tier_end: TierEnd | None,
    ) -> Action:
        """Return the action for an offset that the leader does not have locally.

        ``fetch`` is the refused one; the offsets are of the same leader epoch.
        """
        if not self._is_current(fetch, log):
            return Ignore(must_wait=False)
        end_offset = log.log_end_offset
        action: Action = Ignore()
        if end_offset > leader_end:
            # An unclean leader has fewer records than this log, and its epochs do not reach back.
            action = Truncate(leader_end)
            if leader_end < log.local_log_start_offset:
                action = TruncateFully(leader_end, min(leader_start, leader_end))
        elif end_offset < leader_local_start:
            # If neither holds, the tier's end was read before the leader's eviction: read again.
            if tier_end is not None and tier_end.offset >= leader_local_start:
                action = TruncateFully(tier_end.offset, tier_end.log_start_offset)
            elif leader_local_start <= leader_start:
                action = TruncateFully(leader_start, leader_start)  # All below has been deleted.
        return action

    def _is_current(self, fetch: ReplicaFetch, log: ReplicaLog) -> bool:
        return self._is_in_epoch(fetch) and fetch.offset == log.log_end_offset

    def _is_in_epoch(self, fetch: ReplicaFetch) -> bool:
        return not self._is_stopped and fetch.leader_epoch == self.leader_epoch


def _do_nothing() -> None:
    pass


def find_divergence(
    log: ReplicaLog, *, fetch_offset: int, last_fetched_epoch: int
) -> tuple[int, int] | None:
    """Return the epoch and offset where the fetching log diverges, ``None`` if it does not.

    (-1, -1) if the epoch is newer than the leader's, or the leader does not have the offset here:
    OFFSET_OUT_OF_RANGE or OFFSET_MOVED_TO_TIERED_STORAGE. For the leader, before it notes a
    fetch. Source: Kafka's ``Partition.readRecords``.
    """
    if fetch_offset < log.local_log_start_offset:
        return NO_LEADER_EPOCH, NO_OFFSET
    if last_fetched_epoch < 0:
        return None
    epoch, end_offset = log.offset_for_leader_epoch(last_fetched_epoch)
    if epoch < 0:
        return epoch, end_offset
    if epoch < last_fetched_epoch or end_offset < fetch_offset:
        return epoch, end_offset
    return None
