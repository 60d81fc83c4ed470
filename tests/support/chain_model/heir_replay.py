"""Computes, from footers alone, partitions' ends and producers, and the slices an heir must fetch.

Each partition continues from the end of its tier through its epochs in order, each in the chain
that its item names. The footers may be given in any order. Only footers of objects whose records
are all tiered may be missing: the records of others were acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from tidelog_core.diskless.wal.committed_slices import CommittedSlice, committed_slices
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter
from tidelog_core.errors import CorruptObject
from tidelog_core.log.producers.producer_snapshot import CorruptSnapshot, decode_snapshot
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain, EpochChains
from tidelog_core.model import INT64_MAX

from tests.support.chain_model.checkpoint import Checkpoint
from tests.support.chain_model.partition_replay import PartitionReplay


class ReplayGap(Exception):
    """The footers lack acknowledged records.

    If they were collected after the listing, the tier has them: read the items, list the chains and
    read the end of the tier again.
    """


class ReplayStart(NamedTuple):
    """The offset and producers from which the replay of a partition begins."""

    chains: EpochChains  # of its item
    tier: ProducerState  # as of the end of the tier; read after the chains were listed
    log_start_offset: int = 0  # of its item


class ReplayedPartition(NamedTuple):
    """A partition at the end of its committed records."""

    state: ProducerState
    # The records above the end of the tier and the log start, in order and without a gap. Batches
    # are left out. The first one may begin before that.
    slices: tuple[CommittedSlice, ...]
    aborted: tuple[AbortedTransaction, ...]  # that ended in what was replayed from footers
    log_start_offset: int  # of the item or of a checkpoint, whichever is greater

    @property
    def end_offset(self) -> int:
        """The offset behind the last committed record."""
        return self.state.end_offset


def footers_from(
    starts: Mapping[PartitionName, ReplayStart], checkpoints: Collection[Checkpoint] = ()
) -> dict[ChainName, int]:
    """Return for each chain the sequence from which on ``replay_partitions`` needs its footers.

    Chains whose footers are not needed at all are left out.
    """
    needed: dict[ChainName, int] = {}
    for name, start in starts.items():
        best = _best_checkpoint(name, start, checkpoints)
        known_end = start.tier.end_offset if best is None else best.partitions[name].end_offset
        for entry, end_offset in _epochs(start.chains):
            if end_offset > known_end:
                is_there = best is not None and best.chain == entry.chain
                sequence = best.sequence if best is not None and is_there else 0
                needed[entry.chain] = min(sequence, needed.get(entry.chain, sequence))
    return needed


def replay_partitions(
    starts: Mapping[PartitionName, ReplayStart],
    footers: Iterable[WalFooter],
    *,
    ends: Mapping[ChainName, int],
    checkpoints: Collection[Checkpoint] = (),
) -> dict[PartitionName, ReplayedPartition]:
    """Return the partitions as the chains have them. The starts' producers are changed.

    ``ends`` has the seals' sequences of the chains that the caller has sealed: objects there or
    above are not committed. ``checkpoints`` may be those of any chains, in any order. Raises
    ``ReplayGap``, and ``CorruptSnapshot`` of a checkpoint.
    """
    begun = {name: _begin(name, start, checkpoints) for name, start in starts.items()}
    found = _index(begun, footers, ends)
    return {name: _replay_one(one, found.get(name, {})) for name, one in begun.items()}


class _Begun(NamedTuple):
    """A partition as its tier and the best checkpoint describe it."""

    chains: EpochChains
    replay: PartitionReplay
    slices: tuple[CommittedSlice, ...]  # that the checkpoint knows
    tier_end: int
    log_start_offset: int


def _best_checkpoint(
    name: PartitionName, start: ReplayStart, checkpoints: Iterable[Checkpoint]
) -> Checkpoint | None:
    """Return the checkpoint with the greatest end of the partition, ``None`` if the tier has it."""
    best, best_end = None, start.tier.end_offset
    for checkpoint in checkpoints:
        one = checkpoint.partitions.get(name)
        if one is not None and one.end_offset > best_end:
            best, best_end = checkpoint, one.end_offset
    return best


def _begin(name: PartitionName, start: ReplayStart, checkpoints: Collection[Checkpoint]) -> _Begun:
    of_checkpoints = [
        one.partitions[name].log_start_offset for one in checkpoints if name in one.partitions
    ]
    offsets = start.tier.end_offset, max([start.log_start_offset, *of_checkpoints])
    best = _best_checkpoint(name, start, checkpoints)
    if best is None:
        return _Begun(start.chains, PartitionReplay(name, -1, start.tier), (), *offsets)
    known = best.partitions[name]
    state = decode_snapshot(known.producers, expiration_ms=start.tier.expiration_ms)
    if state.end_offset != known.end_offset:
        raise CorruptSnapshot(f"it is as of {state.end_offset} instead of {known.end_offset}")
    replay = PartitionReplay(name, -1, state)
    return _Begun(start.chains, replay, known.slices, *offsets)


class _Found(NamedTuple):
    """A slice, and the sequence of the object that gives it its offsets."""

    sequence: int
    slice: CommittedSlice


_Index = dict[tuple[ChainName, int], list[_Found]]  # of one partition, by chain and leader epoch


def _index(
    begun: Mapping[PartitionName, _Begun],
    footers: Iterable[WalFooter],
    ends: Mapping[ChainName, int],
) -> dict[PartitionName, _Index]:
    found: dict[PartitionName, _Index] = {}
    for footer in footers:
        header = footer.header
        if header.sequence >= ends.get(header.chain, INT64_MAX):
            continue
        for one in committed_slices(footer):
            partition = begun.get(one.partition)
            if partition is None or one.end_offset <= partition.replay.end_offset:
                continue
            of_partition = found.setdefault(one.partition, {})
            place = (header.chain, one.leader_epoch)
            of_partition.setdefault(place, []).append(_Found(header.sequence, one))
    return found


def _replay_one(begun: _Begun, found: _Index) -> ReplayedPartition:
    replay = begun.replay
    try:
        for entry, end_offset in _epochs(begun.chains):
            replay.begin_epoch(entry.leader_epoch, entry.first_offset)
            of_epoch = found.get((entry.chain, entry.leader_epoch), [])
            for sequence, one in sorted(of_epoch, key=_place):
                # A chain that others have sealed may have garbage above its seal.
                if one.end_offset <= end_offset:
                    replay.apply(one, key=f"{sequence} of {entry.chain}")
    except (ValueError, CorruptObject) as error:
        raise ReplayGap(str(error)) from None
    log_start = begun.log_start_offset
    fetched_from = max(begun.tier_end, log_start)
    slices = [one for one in (*begun.slices, *replay.slices) if one.end_offset > fetched_from]
    _check_whole(replay, slices, fetched_from)
    return ReplayedPartition(replay.state, tuple(slices), tuple(replay.aborted), log_start)


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
