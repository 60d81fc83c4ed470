"""Starts logs at the ends of their tails, so that partitions are led before any record is read.

    producers in an index of the chain → footers of the objects committed since
    → producers, open transactions, leader epochs at the end
    → the log is truncated to its end, and led → ``TailFills`` reads the records in between

A log that has none of a long tail gains nothing by waiting for it: all that a leader needs to know
of the tail is in the batch rows of the footers. The owner of a chain stores its producers at
committed offsets from time to time, so only the later footers are read, however long the tail is.
Each footer is read once for all partitions that share the object.

This needs a whole tail and a log without any of it. All other logs are refilled first: those that
have a part of their tail, whose tail has slices of gateways (their rows are in other chains), or
whose tail lacks an object or a footer. The refill reports the fault.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from tidelog_core.batched import batched
from tidelog_core.diskless.chain.store import ChainStore, ListedChain, ListedObject
from tidelog_core.diskless.wal.committed_slices import (
    CommittedSlice,
    committed_slices_of,
    header_of,
    marker_of,
)
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter
from tidelog_core.errors import CorruptObject, ObjectNotFound, StorageError
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.producers.producer_snapshot import (
    CorruptSnapshot,
    decode_snapshot,
    encode_snapshot,
)
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.log.unfilled_range import Unfilled
from tidelog_core.log.values import AppendOrigin
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.turns import Turn

from tidelog_node.diskless.recovery.chain_slices import (
    FOOTERS_AT_ONCE_MAX,
    ProducersAt,
    ReadChains,
    StoredObject,
    StoredSlice,
)
from tidelog_node.diskless.recovery.concurrent_calls import for_each
from tidelog_node.diskless.recovery.log_tail import LogTail
from tidelog_node.diskless.recovery.object_reads import ObjectRead, plan_reads
from tidelog_node.replicas.replica import Replica

logger = logging.getLogger(__name__)

BEGUN_AT_ONCE_MAX = 16  # logs
DEFERRED_BYTES_MIN = 1 << 20  # of a tail; a shorter one is refilled sooner than that pays

# The slices of an object, by partition, leader epoch and base offset.
_Slices = dict[tuple[PartitionName, int, int], CommittedSlice]


class Fill(NamedTuple):
    """The records that a log lacks before its start, and the log as of where they begin."""

    replica: Replica
    log: LocalLog  # the replica's; another log of the replica has fills of its own
    slices: Sequence[StoredSlice]
    unfilled: Unfilled  # the log's, this very object
    leader_epochs: Sequence[tuple[int, int]]
    producer_snapshot: bytes

    @property
    def is_wanted(self) -> bool:
        """Whether the log still lacks these records, and was not truncated since.

        A log whose partition this node has left is not filled: its files may become those of the
        partition's next replica here at any time, on another thread.
        """
        replica, log = self.replica, self.log
        is_same = replica.opened_log is log and log.unfilled is self.unfilled
        return is_same and not (log.is_offline or replica.is_dropped)

    @property
    def size_bytes(self) -> int:
        """The bytes of the records."""
        return sum(one.size_bytes for one in self.slices)


def may_defer_fill(tail: LogTail, start_offset: int) -> bool:
    """Whether the log may start at its tail's end: the tail is long, and the log has none of it."""
    log = tail.replica.log
    return log.log_end_offset == start_offset and log.unfilled is None and is_long(tail.slices)


def is_long(slices: Sequence[StoredSlice]) -> bool:
    """Whether the tail is long enough for a log to start at its end."""
    if sum(one.size_bytes for one in slices) < DEFERRED_BYTES_MIN:
        return False
    return not any(one.is_reference for one in slices)


def slices_to_replay(
    slices: Sequence[StoredSlice], start_offset: int, producers: ProducersAt | None
) -> Sequence[StoredSlice]:
    """Return the slices of a tail whose footers are needed to know its producers.

    Those are all from ``start_offset`` on, or those above the offset where they are known. If the
    first slice begins below the start, its footer is needed in any case.
    """
    if producers is None or not slices or slices[0].base_offset != start_offset:
        return slices
    if not start_offset < producers.end_offset <= slices[-1].end_offset:
        return slices
    first = bisect_right(slices, producers.end_offset, key=_end_offset)
    return slices[first:]


class DeferredFills:
    """Starts logs at the ends of their tails. For the tasks of one event loop."""

    def __init__(self, chains: ChainStore, executor: Executor) -> None:
        self._chains = chains
        self._executor = executor

    async def begin(
        self,
        replicas: Mapping[PartitionName, Replica],
        tails: Mapping[PartitionName, LogTail],
        listings: Mapping[ChainName, ListedChain],
        chains_read: ReadChains,
    ) -> dict[PartitionName, Fill]:
        """Start logs at the ends of their tails; return the fills that they need.

        ``chains_read`` has producers and footers that need not be read. The logs of others stay as
        they are. Raises the store's errors.
        """
        listed = {
            StoredObject(chain, one.sequence): one
            for chain, listing in listings.items()
            for one in listing.objects
        }
        turn = Turn()
        replays: dict[PartitionName, _TailReplay] = {}
        for name, tail in tails.items():
            replay = _TailReplay(replicas[name], tail, chains_read.producers.get(name))
            if all(StoredObject(one.chain, one.sequence) in listed for one in tail.slices):
                replays[name] = replay
            await turn.step()  # Each copies its log's producers.
        names = {(name.topic_id.bytes, name.partition): name for name in replays}
        reads = list(plan_reads({name: replay.left for name, replay in replays.items()}))

        async def footer(read: ObjectRead) -> _Slices:
            footer = chains_read.footers.get(read.place)
            if footer is None:
                footer = await self._footer(listed[read.place], read.place.chain)
            return {} if footer is None else _slices_of(footer, names)

        for some in batched(reads, FOOTERS_AT_ONCE_MAX):
            answers = await for_each(some, footer, at_once_max=FOOTERS_AT_ONCE_MAX)
            for read, slices in zip(some, answers, strict=True):
                for name, wanted in read.slices.items():
                    replays[name].apply(name, wanted, slices)
                    await turn.step()
        fills: dict[PartitionName, Fill] = {}

        async def begin(name: PartitionName) -> None:
            fill = await replays[name].begin(self._executor)
            if fill is not None:
                fills[name] = fill

        # Each waits for the disk.
        await for_each(replays, begin, at_once_max=BEGUN_AT_ONCE_MAX)
        return fills

    async def _footer(self, listed: ListedObject, chain: ChainName) -> WalFooter | None:
        """Return the footer of an object, ``None`` if it cannot be read."""
        try:
            return await self._chains.footer(chain, listed)
        except (ObjectNotFound, CorruptObject):
            return None


class _TailReplay:
    """The state of a log at the end of the slices that were applied."""

    def __init__(self, replica: Replica, tail: LogTail, producers: ProducersAt | None) -> None:
        """``producers`` are the partition's at an offset of the tail, if they are known."""
        log = replica.log
        self._replica, self._log, self._tail = replica, log, tail
        self._start_offset = log.log_end_offset
        # The tier has everything below, or it was deleted.
        log.advance_high_watermark(self._start_offset)
        known = log.producers.state
        self._snapshot = encode_snapshot(known)
        self._epochs_before = tuple(log.leader_epochs)
        self._epochs = list(self._epochs_before)
        self._is_given_up = known.end_offset != self._start_offset
        self.left = slices_to_replay(tail.slices, self._start_offset, producers)
        at = None
        if producers is not None and len(self.left) < len(tail.slices):
            at = _state_of(producers, replica, expiration_ms=known.expiration_ms)
        if at is None:
            self.left = tail.slices
            at = decode_snapshot(self._snapshot, expiration_ms=known.expiration_ms)
        self._producers = at
        self._slices_end = self._start_offset  # of those whose leader epochs were noted
        for one in tail.slices[: len(tail.slices) - len(self.left)]:
            self._note_epoch(one)

    def apply(self, name: PartitionName, wanted: Sequence[StoredSlice], found: _Slices) -> None:
        """Apply the partition's slices in an object; give the replay up if one is missing."""
        for one in wanted:
            if self._is_given_up:
                return
            committed = found.get((name, one.leader_epoch, one.base_offset))
            start = self._producers.end_offset
            if (
                committed is None
                or not _is_same(one, committed)
                or not _has_batch_at(committed, start)
            ):
                self._is_given_up = True
                return
            self._note_epoch(one)
            self._apply(committed, start)

    def _note_epoch(self, one: StoredSlice) -> None:
        if not self._epochs or one.leader_epoch > self._epochs[-1][0]:
            self._epochs.append((one.leader_epoch, self._slices_end))
        self._slices_end = one.end_offset

    def _apply(self, one: CommittedSlice, start: int) -> None:
        """Apply the batches from the offset on, as a follower does in one append."""
        state = self._producers
        # Clients choose the batches' timestamps: by those, a producer of old records would expire
        # at once. A producer counts as seen when its leader put the object.
        draft = state.stage(AppendOrigin.REPLICATION, now_ms=one.created_ms)
        for row in one.batches:
            if row.producer_id >= 0 and row.base_offset >= start:
                header = header_of(row, one.leader_epoch)
                draft.add(header, row.base_offset, marker_of(row))
        state.commit(draft, end_offset=one.end_offset)
        state.advance_high_watermark(one.end_offset)

    async def begin(self, executor: Executor) -> Fill | None:
        """Truncate the log to the tail's end; return its fill, ``None`` if it may not be."""
        log, replica, producers = self._log, self._replica, self._producers
        if self._is_given_up or producers.end_offset != self._tail.end_offset:
            return None
        if not self._is_unchanged:
            return None
        try:
            mark = log.mark_unfilled(producers.end_offset)
            try:
                await asyncio.get_running_loop().run_in_executor(executor, mark.run)
                if not self._is_unchanged:
                    return None
                unfilled = log.start_unfilled(mark, leader_epochs=self._epochs, producers=producers)
            finally:
                mark.close()
        except (StorageError, OSError) as error:
            if self._is_unchanged:  # Otherwise the log has ended, and its mark with it.
                replica.note_failure(error)
            return None
        return Fill(replica, log, self._tail.slices, unfilled, self._epochs_before, self._snapshot)

    @property
    def _is_unchanged(self) -> bool:
        """Whether the log is unchanged, and the replica neither leads nor follows, nor has left."""
        log, replica = self._log, self._replica
        is_same = replica.opened_log is log and log.log_end_offset == self._start_offset
        return is_same and not (replica.is_leader or replica.is_follower or replica.is_dropped)


def _state_of(at: ProducersAt, replica: Replica, *, expiration_ms: int) -> ProducerState | None:
    """Return the producers, ``None`` if they cannot be decoded: then all footers are read."""
    try:
        state = decode_snapshot(at.snapshot, expiration_ms=expiration_ms)
        if state.end_offset != at.end_offset:
            raise CorruptSnapshot(f"it is of offset {state.end_offset}, not {at.end_offset}")
    except CorruptSnapshot as error:
        logger.warning(
            "producers in a checkpoint of a chain are damaged, read without them",
            extra={"partition": str(replica.partition), "reason": str(error)},
        )
        return None
    state.advance_high_watermark(state.end_offset)
    return state


def _slices_of(footer: WalFooter, names: Mapping[tuple[bytes, int], PartitionName]) -> _Slices:
    """Return the slices of these partitions in an object, with their batches."""
    return {
        (one.partition, one.leader_epoch, one.base_offset): one
        for one in committed_slices_of(footer, names)
    }


def _end_offset(one: StoredSlice) -> int:
    return one.end_offset


def _is_same(wanted: StoredSlice, found: CommittedSlice) -> bool:
    return (wanted.end_offset, wanted.position, wanted.size_bytes, wanted.crc32c) == (
        found.end_offset,
        found.position,
        found.size_bytes,
        found.crc32c,
    )


def _has_batch_at(found: CommittedSlice, offset: int) -> bool:
    """Whether a batch begins there: a log start may be within one, and its log with all of it."""
    return any(row.base_offset == offset for row in found.batches)
