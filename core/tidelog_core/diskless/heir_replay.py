"""Where partitions end, who has written them, and what an heir must fetch: from footers alone.

Each partition goes on from the end of its tier through its epochs in order, each one in the chain
that its item names. The footers may be given in any order, those of objects that the tier has need
not be there. Nothing may be missing above: whatever is, was acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidelog_core.config import INT64_MAX
from tidelog_core.diskless.epoch_chains import PartitionName
from tidelog_core.diskless.replay import CommittedSlice, PartitionReplay, committed_slices
from tidelog_core.diskless.wal_footer import WalFooter
from tidelog_core.errors import CorruptObject
from tidelog_core.log.producer_state import ProducerState
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain, EpochChains


class ReplayGap(Exception):
    """Acknowledged records are missing in what was read.

    If they were collected meanwhile the tier has them: read the items, list the chains and read
    the end of the tier again.
    """


class ReplayStart(NamedTuple):
    """Where the replay of a partition begins."""

    chains: EpochChains  # of its item
    tier: ProducerState  # as of the end of the tier; read after the chains were listed
    log_start_offset: int = 0  # of its item


class ReplayedPartition(NamedTuple):
    """A partition at the end of what is committed."""

    state: ProducerState
    # The records above the end of the tier and the log start, in order and without a gap. Batches
    # are left out. The first one may begin before that.
    slices: tuple[CommittedSlice, ...]
    aborted: tuple[AbortedTransaction, ...]  # that ended in what was replayed

    @property
    def end_offset(self) -> int:
        """The offset behind the last committed record."""
        return self.state.end_offset


def replay_partitions(
    starts: Mapping[PartitionName, ReplayStart],
    footers: Iterable[WalFooter],
    *,
    ends: Mapping[ChainName, int],
) -> dict[PartitionName, ReplayedPartition]:
    """Return the partitions as the chains have them. The starts' producers are changed.

    ``ends`` has the seals' sequences of the chains that the caller has sealed: what is there or
    above is not committed. Raises ``ReplayGap``.
    """
    found = _index(starts, footers, ends)
    return {
        partition: _replay_one(partition, start, found.get(partition, {}))
        for partition, start in starts.items()
    }


class _Found(NamedTuple):
    """A slice, and the sequence of the object that gives it its offsets."""

    sequence: int
    slice: CommittedSlice


_Index = dict[tuple[ChainName, int], list[_Found]]  # of one partition, by chain and leader epoch


def _index(
    starts: Mapping[PartitionName, ReplayStart],
    footers: Iterable[WalFooter],
    ends: Mapping[ChainName, int],
) -> dict[PartitionName, _Index]:
    found: dict[PartitionName, _Index] = {}
    for footer in footers:
        header = footer.header
        if header.sequence >= ends.get(header.chain, INT64_MAX):
            continue
        for one in committed_slices(footer):
            start = starts.get(one.partition)
            if start is None or one.end_offset <= start.tier.end_offset:
                continue
            of_partition = found.setdefault(one.partition, {})
            place = (header.chain, one.leader_epoch)
            of_partition.setdefault(place, []).append(_Found(header.sequence, one))
    return found


def _replay_one(partition: PartitionName, start: ReplayStart, found: _Index) -> ReplayedPartition:
    fetched_from = max(start.tier.end_offset, start.log_start_offset)
    replay = PartitionReplay(partition, -1, start.tier)
    try:
        for entry, end_offset in _epochs(start.chains):
            replay.begin_epoch(entry.leader_epoch, entry.first_offset)
            of_epoch = found.get((entry.chain, entry.leader_epoch), [])
            for sequence, one in sorted(of_epoch, key=_place):
                # A chain that others have sealed may have garbage above its seal.
                if one.end_offset <= end_offset:
                    replay.apply(one, key=f"{sequence} of {entry.chain}")
    except (ValueError, CorruptObject) as error:
        raise ReplayGap(str(error)) from None
    slices = [one for one in replay.slices if one.end_offset > fetched_from]
    _check_whole(replay, slices, fetched_from)
    return ReplayedPartition(replay.state, tuple(slices), tuple(replay.aborted))


def _epochs(chains: EpochChains) -> Iterable[tuple[EpochChain, int]]:
    """Yield every epoch with the offset that it ends at, the greatest one for the last epoch."""
    ends = [*(one.first_offset for one in chains[1:]), INT64_MAX]
    return zip(chains, ends, strict=False)


def _place(found: _Found) -> tuple[int, int]:
    return found.sequence, found.slice.base_offset


def _check_whole(
    replay: PartitionReplay, slices: Sequence[CommittedSlice], fetched_from: int
) -> None:
    end_offset = fetched_from
    for one in slices:
        if one.base_offset > end_offset:
            break
        end_offset = one.end_offset
    if end_offset != replay.end_offset:
        raise ReplayGap(
            f"{replay.partition} ends at {replay.end_offset}, its slices from {fetched_from} on"
            f" were found up to {end_offset}"
        )
