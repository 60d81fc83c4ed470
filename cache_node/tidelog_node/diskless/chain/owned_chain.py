"""The chain that this node writes: appends come in, commits and a deposal come out.

    ChainWriter        decides
    OwnedPartitions    whose appends it takes, and where their bytes are
    ChainWork          builds, puts and reads objects
    ChainFullness      says when clients are not read

This drives them on the node's event loop: it notes what the logs have got once a turn of the loop,
or every few milliseconds where nobody waits for less, wakes the writer when it has something to do,
and has the WAL worker build and put objects from the logs' files.

While the store fails, the chain waits, and is full at last. It ends when somebody else has its next
place, or when an object can never be built.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from tidelog_core.clock import wall_clock_ms
from tidelog_core.diskless.chain.chain_writer import (
    BuildObject,
    ChainWriter,
    Committed,
    Decision,
    Deposed,
    PutObject,
    ReadHeader,
    WriterLimits,
)
from tidelog_core.diskless.chain.noted_ranges import ForeignRange, NotedRange, ObjectContent
from tidelog_core.diskless.collection.collection import OwnedObjects as CommittedObjects
from tidelog_core.diskless.wal.build import ForeignSlice, Snapshot
from tidelog_core.diskless.wal.epoch_chains import PartitionName, current_chain
from tidelog_core.errors import TidelogError
from tidelog_core.metadata.epoch_chains import EpochChains
from tidelog_core.subscribers import Subscribers

from tidelog_node.counters import ChainTraffic
from tidelog_node.diskless.chain.chain_fullness import ChainFullness
from tidelog_node.diskless.chain.chain_partition import ChainPartition, let_go_of_files
from tidelog_node.diskless.chain.chain_work import ChainWork
from tidelog_node.diskless.chain.owned_partitions import OwnedPartitions
from tidelog_node.diskless.chain.pending_objects import ChainBroken, PendingObjects
from tidelog_node.diskless.chain.wal_client import WalClient
from tidelog_node.replicas.replica import Replica
from tidelog_node.tier.wal_messages import SliceFiles

logger = logging.getLogger(__name__)

TIMER_MS_MIN = 0.2  # from one call of the writer to the next; timers are no more exact


class OwnedChain:
    """One chain, from its first object until it is deposed or closed. For the node's loop."""

    def __init__(
        self,
        wal: WalClient,
        *,
        limits: WriterLimits,
        traffic: ChainTraffic,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.name = wal.chain
        self.deposed = Subscribers[[OwnedChain]]()
        # Notified with the sequence of a committed object, and the numbers and positions of the
        # foreign slices in it.
        self.foreign_committed = Subscribers[[int, Sequence[tuple[int, int]]]]()
        self.is_deposed = False
        self.committed = CommittedObjects()  # what each of them is needed for
        self._loop = asyncio.get_running_loop()
        self._writer = ChainWriter(wal.chain, now_ms=self._now_ms(), limits=limits)
        self._wal = wal
        self._traffic = traffic
        self._partitions = OwnedPartitions(self._writer.has_uncommitted)
        self._objects = PendingObjects(
            wal,
            slices_of=self._files_of,
            references_of=self._partitions.references_of,
            clock_ms=clock_ms,
        )
        self._work = ChainWork(self, self._writer, wal=wal, objects=self._objects, traffic=traffic)
        self._fullness = ChainFullness(limits.buffer_bytes_max, traffic)
        self.fullness = self._fullness.changed
        self._unnoted: list[ChainPartition] = []  # appended to since the last time
        self._unnoted_foreign: list[ForeignRange] = []  # since then
        self._unnoted_ms = 0.0  # when the first of them came
        self._note_s = limits.note_ms / 1000
        self._noting: asyncio.Handle | None = None  # notes them
        self._timer: asyncio.TimerHandle | None = None
        self._settled = asyncio.Event()  # nothing is pending; set only while closing
        self._is_closing = False
        self._ended = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Whether requests of clients must wait."""
        return self._fullness.is_full

    @property
    def has_ended(self) -> bool:
        """Whether the chain was deposed or closed."""
        return self._ended.is_set()

    # -- partitions --

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The replicas that have entered."""
        return tuple(self._partitions.entered)

    @property
    def partitions(self) -> tuple[ChainPartition, ...]:
        """The partitions that have entered."""
        return tuple(self._partitions.entered.values())

    @property
    def partition_count(self) -> int:
        """The number of partitions that have entered."""
        return len(self._partitions.entered)

    def enter(
        self,
        replica: Replica,
        stored: EpochChains,
        *,
        end_offset: int,
        previous_sequence: int = -1,
        tail_count: int = 0,
    ) -> None:
        """Let the partition in, as ``ChainWriter.enter``, whose ``ValueError`` it raises.

        ``tail_count`` says in how many objects the log's un-tiered records are.
        Also raises it while something of the partition from before it left is pending: its
        commits would be taken for those of the epoch that begins.
        """
        if self.is_deposed or self._is_closing:
            raise ValueError(f"the chain {self.name} has ended")
        is_read = not self._has_unread(replica)
        self.leave(replica)
        if not is_read or self.has_uncommitted(replica):
            raise ValueError(f"{replica.partition} has records of an earlier epoch in the chain")
        name = replica.name
        self._writer.enter(name, stored, end_offset=end_offset, previous_sequence=previous_sequence)
        current = current_chain(stored)
        assert current is not None
        partition = ChainPartition(
            replica,
            current.leader_epoch,
            begin=self._begin,
            flush=self._note_all,
            leave=self.leave,
            refer=self._note_reference,
            object_count=tail_count,
        )
        self._partitions.add(partition)

    def leave(self, replica: Replica) -> None:
        """Take nothing more of the partition. What was appended is still put."""
        partition = self._partitions.entered.get(replica)
        if partition is None:
            return
        self._note_all()
        self._partitions.remove(replica)
        self._writer.leave(partition.name)
        self._partitions.forget_if_settled(partition.name)

    def has_uncommitted(self, replica: Replica) -> bool:
        """Return whether something of the partition is not committed yet, or not in its log."""
        partition = self._partitions.entered.get(replica)
        return (
            (partition is not None and partition.size_bytes > 0)
            or self._has_unread(replica)
            or self._writer.has_uncommitted(replica.name)
        )

    def _has_unread(self, replica: Replica) -> bool:
        partition = self._partitions.entered.get(replica)
        return partition is not None and bool(partition.unread)

    def on_append(
        self, replica: Replica, base_offset: int, end_offset: int, size_bytes: int
    ) -> None:
        """Note an append; ``replica.chain`` does it without looking the replica up."""
        partition = self._partitions.entered.get(replica)
        if partition is not None:
            partition.on_append(replica, base_offset, end_offset, size_bytes)

    def note_foreign(self, number: int, files: SliceFiles) -> bool:
        """Take a gateway's slice; return false if the chain takes nothing any more.

        The files stay as they are until ``foreign_committed`` has the number, or the chain is
        deposed. The caller's numbers differ.
        """
        if self.is_deposed or self._is_closing or self._ended.is_set():
            return False
        self._partitions.add_foreign(number, files)
        self._note_later()
        name = PartitionName(files.topic_id, files.partition)
        self._unnoted_foreign.append(ForeignRange(name, number, files.size_bytes))
        return True

    def put_empty_object(self) -> None:
        """Put an object without records if none is pending: the last one can be collected then."""
        self._note_all()
        if not (self.is_deposed or self._is_closing or self._ended.is_set()):
            self.act(self._writer.put_empty_object(self._now_ms()))

    @property
    def buffered_bytes(self) -> int:
        """The bytes of records that are not committed."""
        return self._writer.buffered_bytes

    @property
    def committed_end(self) -> int:
        """The first sequence that is not known to be committed."""
        return self._writer.committed_end

    @property
    def next_sequence(self) -> int:
        """The sequence of the next object."""
        return self._writer.next_sequence

    async def write_checkpoint(self, created_ms: int, snapshots: tuple[Snapshot, ...]) -> None:
        """Have the worker write an index of the objects, with these producers.

        Raises the store's errors.
        """
        end, first_kept = self.committed_end, self.committed.first_kept
        first = end if first_kept is None else first_kept
        await self._wal.write_index(
            end, first_kept=first, created_ms=created_ms, snapshots=snapshots
        )

    # -- its life --

    async def run(self) -> None:
        """Wait until the chain is deposed or closed; ends its tasks, also when cancelled."""
        try:
            await self._ended.wait()
        finally:
            await self._end()

    async def ends_within(self, seconds: float) -> bool:
        """Wait until the chain has ended, at most so long; return whether it has."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        return self._ended.is_set()

    async def look(self) -> None:
        """Find out whether somebody has sealed the chain, if no PUT does. One read."""
        sequence = self._writer.next_sequence
        if sequence != self._writer.committed_end or self._ended.is_set():
            return
        with suppress(TidelogError):  # The store is away: no PUT would succeed either.
            header = await self._wal.header(sequence)
            if header is not None and sequence == self._writer.next_sequence:
                self._depose("sealed, as was seen while it had nothing to put")

    async def close(self, seconds_max: float) -> None:
        """Wait until nothing is pending, at most so long; then end the chain. Nothing is noted."""
        self._note_all()
        self._is_closing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                if self._writer.buffered_bytes and not self._ended.is_set():
                    await self._settled.wait()
        self._partitions.detach()
        self._partitions.entered.clear()
        await self._end()

    def abandon(self, reason: str) -> None:
        """End the chain as if it were deposed: pending objects are given up."""
        self._depose(reason)

    async def _end(self) -> None:
        self._ended.set()
        self._cancel_timer()
        await self._work.end()

    def _depose(self, reason: str) -> None:
        if self.is_deposed:
            return
        self.is_deposed = self._writer.is_deposed = True
        logger.warning(
            "chain has ended, its partitions are entered again in another one",
            extra={
                "chain": str(self.name.chain_id),
                "reason": reason,
                "committed_end": self._writer.committed_end,
                "pending_bytes": self._writer.buffered_bytes,
            },
        )
        self._traffic.deposed_count += 1
        self._traffic.kept_count = 0
        self._cancel_timer()
        self._partitions.detach()
        self._partitions.clear_foreign()
        self._unnoted.clear()
        self._unnoted_foreign.clear()
        self._fullness.clear()
        self._settled.set()
        self.deposed.notify(self)
        self._ended.set()

    # -- events --

    def _begin(self, partition: ChainPartition) -> None:
        self._note_later()
        self._unnoted.append(partition)

    def _note_later(self) -> None:
        """Schedule the next note, unless one is scheduled: it is of all appends until then."""
        if self._noting is None:
            self._unnoted_ms = self._now_ms()
            self._noting = (
                self._loop.call_later(self._note_s, self._note_all)
                if self._note_s
                else self._loop.call_soon(self._note_all)
            )

    def _note_all(self) -> None:
        """Note the appends since the last time."""
        if self._noting is not None:
            self._noting.cancel()
            self._noting = None
        unnoted, self._unnoted = self._unnoted, []
        foreign, self._unnoted_foreign = self._unnoted_foreign, []
        if not (unnoted or foreign) or self.is_deposed or self._ended.is_set():
            return
        now_ms = self._now_ms()
        waited_ms = now_ms - self._unnoted_ms
        for one in unnoted:
            noted = NotedRange(
                one.name, one.leader_epoch, one.base_offset, one.end_offset, one.size_bytes
            )
            self._fullness.appends.add(one.name, one.end_offset, one.append_count)
            one.size_bytes = one.append_count = 0
            try:
                self._writer.add(noted, now_ms, waited_ms=waited_ms)
            except ValueError as error:
                # Records would be missing in the chain for good.
                logger.exception("an append does not follow the one before")
                self._depose(str(error))
                return
        for part in foreign:
            self._writer.add_foreign(part, now_ms, waited_ms=waited_ms)
        self.act(self._writer.tick(now_ms))

    def _note_reference(self, reference: ForeignSlice, gateway_committed_end: int) -> None:
        """Note that a gateway's slice was appended to a log."""
        self._note_all()
        if self.is_deposed or self._ended.is_set():
            return
        try:
            decisions = self._writer.note_reference(
                reference, self._now_ms(), gateway_committed_end=gateway_committed_end
            )
        except ValueError as error:
            logger.exception("a reference does not follow the append before")
            self._depose(str(error))
            return
        self.act(decisions)

    def _on_timer(self) -> None:
        self._timer = None
        self._note_all()  # It goes into the object that is due.
        if not self.is_deposed:
            self.act(self._writer.tick(self._now_ms()))

    def act(self, decisions: Sequence[Decision]) -> None:
        """Carry out the writer's decisions."""
        for decision in decisions:
            match decision:
                case BuildObject():
                    self._work.build(decision)
                case PutObject(sequence, attempt):
                    self._work.put(sequence, attempt)
                case ReadHeader(sequence):
                    self._work.read_header(sequence)
                case Committed():
                    self._on_committed(decision)
                case Deposed(_, reason):
                    self._depose(reason)
        if not self.is_deposed:
            self._fullness.note(self._writer.buffered_bytes)
            self._set_timer()

    def _set_timer(self) -> None:
        """Have the writer called when it has something to do, or before.

        Each note and answer moves that time, most of them to a later one. A timer that is early
        costs less than a timer for each of them.
        """
        now_ms = self._now_ms()
        delay_ms = None if self._ended.is_set() else self._writer.delay_ms(now_ms)
        if delay_ms is None:
            self._cancel_timer()
            return
        due_s = (now_ms + max(delay_ms, TIMER_MS_MIN)) / 1000
        if self._timer is not None and self._timer.when() <= due_s + TIMER_MS_MIN / 1000:
            return
        self._cancel_timer()
        self._timer = self._loop.call_at(due_s, self._on_timer)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    def _files_of(self, content: ObjectContent) -> Sequence[SliceFiles]:
        if self.is_deposed:
            raise ChainBroken("the chain has ended")
        return self._partitions.files_of(content)

    # -- committing --

    def _on_committed(self, committed: Committed) -> None:
        traffic = self._traffic
        for sequence, content in committed.contents:
            pending = self._objects.remove(sequence)
            if pending is not None and pending.header is not None:
                has_foreign = bool(content.foreign)
                self.committed.add(pending.header, content.ends(), has_foreign=has_foreign)
            traffic.object_count += 1
            traffic.object_bytes += content.size_bytes
        traffic.kept_count = len(self.committed)
        for name, end_offset in committed.ends.items():
            self._fullness.appends.settle(name, end_offset)
            replica = self._partitions.pending.get(name)
            self._partitions.forget_if_settled(name)
            if replica is None or replica.is_dropped:
                continue
            readable_end = end_offset
            if (partition := self._partitions.entered.get(replica)) is not None:
                partition.object_count += 1
                readable_end = partition.note_committed(end_offset)
            try:
                replica.on_chain_committed(readable_end)
                let_go_of_files(replica, end_offset)
            except Exception:  # One partition's trouble must not keep the others' acks back.
                logger.exception(
                    "commit could not be passed on", extra={"partition": str(replica.partition)}
                )
        for sequence, content in committed.contents:
            if content.foreign:
                self.foreign_committed.notify(sequence, self._partitions.take_foreign(content))
        self._work.drop_committed()
        if self._is_closing and not self._writer.buffered_bytes:
            self._settled.set()
