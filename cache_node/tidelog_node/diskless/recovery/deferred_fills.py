"""Has logs begin where their tails end, so that partitions are led before any record is read.

    producers in an index of the chain → footers of what was committed since
    → producers, open transactions, leader epochs at the end
    → the log is truncated to its end, and led → ``TailFills`` reads the records in between

A log that has none of a long tail gains nothing by waiting for it: what a leader has to know of it
is in the batch rows of the footers. An owner writes down its producers every so often, at committed
offsets, so only the footers above are read, however long the tail is. Footers are read object by
object, as the records would be, and each for all partitions that share the object.

Only a tail that was found whole begins so. All others are refilled first: a log that has a part of
its tail, a tail with gateways' slices (their rows are in other chains), and one of which an object
or a footer is gone or damaged. Refilling it reports the fault.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from tidelog_core.diskless.chain.store import ChainStore, ListedChain, ListedObject
from tidelog_core.diskless.checkpoints.replay import (
    CommittedSlice,
    committed_slices_of,
    header_of,
    marker_of,
)
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter
from tidelog_core.errors import CorruptObject, ObjectNotFound, StorageError
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.producer_snapshot import CorruptSnapshot, decode_snapshot, encode_snapshot
from tidelog_core.log.producer_state import ProducerState
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
from tidelog_node.replica import Replica

logger = logging.getLogger(__name__)

BEGUN_AT_ONCE_MAX = 16  # logs
DEFERRED_BYTES_MIN = 1 << 20  # of a tail; a shorter one is refilled sooner than that pays

# The slices of an object, by partition, leader epoch and base offset.
_Slices = dict[tuple[PartitionName, int, int], CommittedSlice]


class Fill(NamedTuple):
    """The records that a log lacks before its start, and the log as of where they begin."""

    replica: Replica
    log: LocalLog  # the replica's; another one begins anew
    slices: Sequence[StoredSlice]
    unfilled: Unfilled  # the log's, this very object
    leader_epochs: Sequence[tuple[int, int]]
    producer_snapshot: bytes

    @property
    def is_wanted(self) -> bool:
        """Whether the log still lacks these records, and has not begun again since."""
        log = self.log
        is_same = self.replica.opened_log is log and log.unfilled is self.unfilled
        return is_same and not log.is_offline

    @property
    def size_bytes(self) -> int:
        """The bytes of the records."""
        return sum(one.size_bytes for one in self.slices)


def may_defer_fill(tail: LogTail, start_offset: int) -> bool:
    """Whether the log may begin at its tail's end: it ends where its long tail begins."""
    log = tail.replica.log
    return log.log_end_offset == start_offset and log.unfilled is None and is_long(tail.slices)


def is_long(slices: Sequence[StoredSlice]) -> bool:
    """Whether a log that has nothing of the tail may begin at its end."""
    if sum(one.size_bytes for one in slices) < DEFERRED_BYTES_MIN:
        return False
    return not any(one.is_reference for one in slices)


def slices_to_replay(
    slices: Sequence[StoredSlice], start_offset: int, producers: ProducersAt | None
) -> Sequence[StoredSlice]:
    """Return the slices of a tail whose footers say what its producers have done.

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
    """Begins logs at their ends. For the tasks of one event loop."""

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
        """Have logs begin where their tails end; return what they lack.

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

        for at in range(0, len(reads), FOOTERS_AT_ONCE_MAX):
            some = reads[at : at + FOOTERS_AT_ONCE_MAX]
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
    """A log as it is at the end of what was applied of its tail."""

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
        """Apply the partition's slices of an object; without one of them all is given up."""
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
        """Take the batches from the offset on, as a follower takes them by one append."""
        state = self._producers
        # Clients choose the batches' timestamps. A producer counts as seen when its leader put
        # the object: see ``PartitionReplay``.
        draft = state.stage(AppendOrigin.REPLICATION, now_ms=one.created_ms)
        for row in one.batches:
            if row.producer_id >= 0 and row.base_offset >= start:
                header = header_of(row, one.leader_epoch)
                draft.add(header, row.base_offset, marker_of(row))
        state.commit(draft, end_offset=one.end_offset)
        state.advance_high_watermark(one.end_offset)

    async def begin(self, executor: Executor) -> Fill | None:
        """Truncate the log to the tail's end, if it may begin there; return what it lacks then."""
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
            replica.note_failure(error)
            return None
        return Fill(replica, log, self._tail.slices, unfilled, self._epochs_before, self._snapshot)

    @property
    def _is_unchanged(self) -> bool:
        """Whether the log is as it was found, and nobody leads or follows with it."""
        log, replica = self._log, self._replica
        is_same = replica.opened_log is log and log.log_end_offset == self._start_offset
        return is_same and not replica.is_leader and not replica.is_follower


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
