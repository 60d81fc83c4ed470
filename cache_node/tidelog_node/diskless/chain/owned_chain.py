"""The chain that this node writes: appends come in, commits and a deposal come out.

``ChainWriter`` decides. This drives it on the node's event loop: it notes what the logs have got
once a turn of the loop, wakes it when it has something to do, and has the WAL worker build and put
objects from the logs' files.

**What may happen between an append and the building of its object.** Only offsets at or above the
high watermark are built, because the high watermark of a diskless partition follows commits; and
those of a partition that becomes diskless, whose log holds their segments until they are committed.

- Segments are rolled: the files stay, and a range may cross them.
- Compaction, eviction and retention replace and remove segments that are wholly below the high
  watermark and not held, and never those.
- The log moves to another directory, or is opened again: the files are looked up again whenever an
  object is built, also for the second time. The worker checks the offsets that it finds.
- The log was cut, because its disk has failed: nobody was told of these records. The object can
  never be built, so the chain ends itself, as if it were sealed.
- A gateway's slices are not of a log: its spool keeps them until they are committed.
- The partition is dropped, or has left and its log was cut: its records are left out of objects
  that were never built. If others were built and have to be built again, the chain ends itself.

**Errors.** Nothing that the store answers ends a chain, except that somebody else has its next
place. While it cannot store, it waits, and says that it is full: then clients are not read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tidelog_core.clock import wall_clock_ms
from tidelog_core.config import NodeConfig
from tidelog_core.diskless.chain.chain_writer import (
    BuildObject,
    ChainWriter,
    Committed,
    Decision,
    Deposed,
    PutObject,
    PutOutcome,
    ReadHeader,
    WriterLimits,
)
from tidelog_core.diskless.chain.noted_ranges import ForeignRange, NotedRange, ObjectContent
from tidelog_core.diskless.chain.put_pace import PaceLimits
from tidelog_core.diskless.collection.collection import OwnedObjects as CommittedObjects
from tidelog_core.diskless.wal.build import ForeignSlice
from tidelog_core.diskless.wal.epoch_chains import PartitionName, current_chain
from tidelog_core.diskless.wal.header import HEADER_SIZE
from tidelog_core.diskless.wal.rows import MarkRow
from tidelog_core.errors import TidelogError
from tidelog_core.metadata.epoch_chains import EpochChains
from tidelog_core.subscribers import Subscribers

from tidelog_node.counters import ChainTraffic
from tidelog_node.diskless.chain.chain_partition import ChainPartition, let_go_of_files
from tidelog_node.diskless.chain.pending_appends import PendingAppends
from tidelog_node.diskless.chain.pending_objects import ChainBroken, PendingObject, PendingObjects
from tidelog_node.diskless.chain.wal_client import WalClient
from tidelog_node.replica import Replica
from tidelog_node.tier.wal_messages import FileRange, SliceFiles

logger = logging.getLogger(__name__)

TIMER_MS_MIN = 0.2
FREE_FLUSH_MS = 10.0  # while another object is being written
FREE_IDLE_FLUSH_MS = 0.5  # as long as a turn of the loop may take, which brings several appends
# What came while an object was written would go into the next one alone, and what its clients send
# once they are acknowledged would wait for that one: twice the objects, and no ack comes sooner.
FREE_GATHER_MS = 1.0
HEADER_SECONDS_MAX = 5.0  # of one read: all later acks wait for it
ROOM_PART = 0.75  # a full chain is not full any more once it owes this part of its limit


def writer_limits(config: NodeConfig, *, pays_for_requests: bool = True) -> WriterLimits:
    """Return the limits of a chain by the node's settings.

    Where requests cost nothing there is no budget for them, and what waits is put soon after
    nothing is in flight: the store's own pace decides how much goes into an object. Nothing is
    written twice at once: on one machine that would only delay the first write.
    """
    limits = WriterLimits(
        flush_bytes=config.diskless_append_buffer_max_bytes,
        flush_ms=config.diskless_append_commit_interval_ms,
        buffer_bytes_max=config.diskless_buffer_max_bytes,
        pace=PaceLimits(
            in_flight_max=config.diskless_append_uploads_max,
            hedge_percentile=config.diskless_append_hedge_percentile,
            puts_per_second_max=config.diskless_append_puts_per_second_max,
        ),
    )
    if pays_for_requests:
        return limits
    return replace(
        limits,
        flush_ms=min(limits.flush_ms, FREE_FLUSH_MS),
        idle_flush_ms=FREE_IDLE_FLUSH_MS,
        gather_ms=FREE_GATHER_MS,
        pace=replace(limits.pace, hedge_percentile=0.0, puts_per_second_max=0.0),
    )


def kept_bytes_max(limits: WriterLimits) -> int:
    """Return the bytes of objects that the worker may keep: those in flight, and one more."""
    return (limits.pace.in_flight_max + 1) * limits.object_bytes_max


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
        self.fullness = Subscribers[[bool]]()
        self.deposed = Subscribers[[OwnedChain]]()
        # Notified with the sequence of a committed object, and the numbers and positions of the
        # foreign slices in it.
        self.foreign_committed = Subscribers[[int, Sequence[tuple[int, int]]]]()
        self.is_full = False  # requests of clients must wait
        self.is_deposed = False
        self.committed = CommittedObjects()  # what each of them is needed for
        self._loop = asyncio.get_running_loop()
        self._writer = ChainWriter(wal.chain, now_ms=self._now_ms(), limits=limits)
        self._wal = wal
        self._objects = PendingObjects(wal, slices_of=self._slices_of, clock_ms=clock_ms)
        self._traffic = traffic
        self._partitions: dict[Replica, ChainPartition] = {}  # entered
        self._replicas: dict[PartitionName, Replica] = {}  # also those with objects pending
        self._unnoted: list[ChainPartition] = []  # appended to in this turn
        self._foreign: dict[int, SliceFiles] = {}  # a gateway's slices that are not committed
        self._unnoted_foreign: list[ForeignRange] = []  # of this turn
        self._appends = PendingAppends()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_dropping = False
        self._settled = asyncio.Event()  # nothing is pending; set only while closing
        self._is_closing = False
        self._ended = asyncio.Event()

    # -- partitions --

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The replicas that have entered."""
        return tuple(self._partitions)

    @property
    def partitions(self) -> tuple[ChainPartition, ...]:
        """The partitions that have entered."""
        return tuple(self._partitions.values())

    @property
    def partition_count(self) -> int:
        """The number of partitions that have entered."""
        return len(self._partitions)

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
        Also raises it while the chain owes something of the partition from before it left: its
        commits would be taken for those of the epoch that begins.
        """
        if self.is_deposed or self._is_closing:
            raise ValueError(f"the chain {self.name} has ended")
        self.leave(replica)
        if self.has_uncommitted(replica):
            raise ValueError(f"{replica.partition} has records of an earlier epoch in the chain")
        name = replica.name
        self._writer.enter(name, stored, end_offset=end_offset, previous_sequence=previous_sequence)
        current = current_chain(stored)
        assert current is not None
        partition = ChainPartition(
            replica,
            current.leader_epoch,
            begin=self._begin_turn,
            flush=self._note_all,
            leave=self.leave,
            refer=self._note_reference,
            object_count=tail_count,
        )
        self._partitions[replica] = partition
        self._replicas[name] = replica
        replica.chain = partition

    def leave(self, replica: Replica) -> None:
        """Take nothing more of the partition. What was appended is still put."""
        partition = self._partitions.get(replica)
        if partition is None:
            return
        self._note_all()
        self._partitions.pop(replica, None)
        replica.chain = None
        self._writer.leave(partition.name)
        self._forget_if_settled(partition.name)

    def has_uncommitted(self, replica: Replica) -> bool:
        """Return whether something of the partition is not committed yet."""
        partition = self._partitions.get(replica)
        name = replica.name
        return (partition is not None and partition.size_bytes > 0) or (
            self._writer.has_uncommitted(name)
        )

    def on_append(
        self, replica: Replica, base_offset: int, end_offset: int, size_bytes: int
    ) -> None:
        """Note an append; ``replica.chain`` does it without looking the replica up."""
        partition = self._partitions.get(replica)
        if partition is not None:
            partition.on_append(replica, base_offset, end_offset, size_bytes)

    def note_foreign(self, number: int, files: SliceFiles) -> bool:
        """Take a gateway's slice; return false if the chain takes nothing any more.

        The files stay as they are until ``foreign_committed`` has the number, or the chain is
        deposed. The caller's numbers differ.
        """
        if self.is_deposed or self._is_closing or self._ended.is_set():
            return False
        self._foreign[number] = files
        if not (self._unnoted or self._unnoted_foreign):
            self._loop.call_soon(self._note_all)
        name = PartitionName(files.topic_id, files.partition)
        self._unnoted_foreign.append(ForeignRange(name, number, files.size_bytes))
        return True

    def note_mark(self, replica: Replica, *, log_start_offset: int, tiered_end_offset: int) -> None:
        """Have the next object say how far the log is deleted and tiered."""
        if replica in self._partitions and not self.is_deposed:
            topic_id, partition = replica.topic_id.bytes, replica.partition.partition
            row = MarkRow(topic_id, partition, 0, log_start_offset, tiered_end_offset)
            self._writer.note_mark(row)

    def advance(self) -> None:
        """Put an object without records if none is pending: the last one can be collected then."""
        self._note_all()
        if not (self.is_deposed or self._is_closing or self._ended.is_set()):
            self._act(self._writer.advance(self._now_ms()))

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

    async def write_checkpoint(self, created_ms: int) -> None:
        """Have the worker write down which objects have what. Raises the store's errors."""
        end, first_kept = self.committed_end, self.committed.first_kept
        first = end if first_kept is None else first_kept
        await self._wal.write_index(end, first_kept=first, created_ms=created_ms)

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
        for replica in self.replicas:
            replica.chain = None
        self._partitions.clear()
        self._let_go()
        await self._end()

    def abandon(self, reason: str) -> None:
        """End the chain as if it were deposed: what is pending is given up."""
        self._depose(reason)

    async def _end(self) -> None:
        self._ended.set()
        self._cancel_timer()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._writer.next_sequence:
            await self._objects.drop(self._writer.next_sequence)

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
        self._traffic.buffered_bytes = self._traffic.kept_count = 0
        self._cancel_timer()
        for replica in self._partitions:
            replica.chain = None
        self._let_go()
        self._unnoted.clear()
        self._unnoted_foreign.clear()
        self._foreign.clear()
        self._appends.clear()
        self._set_full(False)
        self._settled.set()
        self.deposed.notify(self)
        self._ended.set()

    def _let_go(self) -> None:
        """Let go of the files of all logs: nothing more is built from them."""
        for replica in self._replicas.values():
            let_go_of_files(replica)

    # -- events --

    def _begin_turn(self, partition: ChainPartition) -> None:
        if not (self._unnoted or self._unnoted_foreign):
            self._loop.call_soon(self._note_all)
        self._unnoted.append(partition)

    def _note_all(self) -> None:
        """Note what was appended since the last time."""
        unnoted, self._unnoted = self._unnoted, []
        foreign, self._unnoted_foreign = self._unnoted_foreign, []
        if not (unnoted or foreign) or self.is_deposed or self._ended.is_set():
            return
        now_ms = self._now_ms()
        decisions: list[Decision] = []
        for one in unnoted:
            noted = NotedRange(
                one.name, one.leader_epoch, one.base_offset, one.end_offset, one.size_bytes
            )
            self._appends.add(one.name, one.end_offset, one.append_count)
            one.size_bytes = one.append_count = 0
            try:
                decisions += self._writer.note(noted, now_ms)
            except ValueError as error:
                # Records would be missing in the chain for good.
                logger.exception("an append does not follow the one before")
                self._depose(str(error))
                return
        for part in foreign:
            decisions += self._writer.note_foreign(part, now_ms)
        self._act(decisions)

    def _note_reference(self, reference: ForeignSlice, gateway_committed_end: int) -> None:
        """Note that a log has got a gateway's slice, behind what was appended to it before."""
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
        self._act(decisions)

    def _on_timer(self) -> None:
        self._timer = None
        if not self.is_deposed:
            self._act(self._writer.tick(self._now_ms()))

    def _act(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            match decision:
                case BuildObject(sequence):
                    if self._objects.get(sequence) is None:  # else its build has failed before
                        self._objects.add(decision)
                    self._spawn(self._build(sequence))
                case PutObject(sequence, attempt):
                    self._spawn(self._put(sequence, attempt))
                case ReadHeader(sequence):
                    self._spawn(self._read(sequence))
                case Committed():
                    self._on_committed(decision)
                case Deposed(_, reason):
                    self._depose(reason)
        if not self.is_deposed:
            self._note_fullness()
            self._set_timer()

    def _set_timer(self) -> None:
        self._cancel_timer()
        delay_ms = None if self._ended.is_set() else self._writer.delay_ms(self._now_ms())
        if delay_ms is not None:
            delay_s = max(delay_ms, TIMER_MS_MIN) / 1000
            self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    # -- building, putting, reading --

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._ended.is_set():
            work.close()
            return
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            if not isinstance(error, ChainBroken):
                logger.error("chain has failed unexpectedly", exc_info=error)
            self._depose(str(error) or repr(error))

    async def _build(self, sequence: int) -> None:
        try:
            header = await self._objects.build(sequence)
        except ChainBroken:
            raise
        except (TidelogError, OSError) as error:
            # The worker is starting or full, or the log is being exchanged.
            logger.info("object is not built yet", extra={"reason": str(error)})
            self._act(self._writer.on_build_failed(sequence, self._now_ms()))
        else:
            self._act(self._writer.on_built(sequence, header, self._now_ms()))

    async def _put(self, sequence: int, attempt: int) -> None:
        pending = self._objects.get(sequence)
        if pending is None:
            return  # The first PUT has been answered in this turn.
        self._count_attempt(pending)
        outcome = await self._objects.put(sequence, attempt)
        pending.open -= 1
        self._count_outcome(outcome, self._loop.time() - pending.began_s)
        self._act(self._writer.on_put(sequence, attempt, outcome, self._now_ms()))

    async def _read(self, sequence: int) -> None:
        header, is_known = None, True
        try:
            async with asyncio.timeout(HEADER_SECONDS_MAX):
                header = await self._wal.header(sequence)
        except (TidelogError, TimeoutError) as error:
            is_known = False
            logger.warning(
                "the object in a place of the chain cannot be read, will retry",
                extra={"sequence": sequence, "reason": repr(error)},
            )
        decisions = self._writer.on_header(sequence, header, self._now_ms(), is_known=is_known)
        self._act(decisions)

    def _slices_of(self, content: ObjectContent) -> Sequence[SliceFiles]:
        """Return where the logs have the ranges now. Raises their errors.

        Foreign slices come first, so where they will be in the object depends on no log.
        """
        if self.is_deposed:
            raise ChainBroken("the chain has ended")
        found = [self._foreign[part.number] for part in content.foreign]
        for name, leader_epoch, base_offset, end_offset, _ in content.ranges:
            replica = self._replicas[name]
            if replica.is_dropped or self._has_cut(replica, end_offset):
                continue
            ranges = replica.log.file_ranges(base_offset, end_offset)
            files = tuple(FileRange(str(path), start, end) for path, start, end in ranges)
            topic_id, partition = name
            found.append(
                SliceFiles(topic_id, partition, leader_epoch, base_offset, end_offset, files)
            )
        return found

    def _has_cut(self, replica: Replica, end_offset: int) -> bool:
        """Whether the partition has left, and its log no longer has the records below this."""
        return replica not in self._partitions and replica.log.log_end_offset < end_offset

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
            self._appends.settle(name, end_offset)
            replica = self._replicas.get(name)
            self._forget_if_settled(name)
            if replica is None or replica.is_dropped:
                continue
            if (partition := self._partitions.get(replica)) is not None:
                partition.object_count += 1
            try:
                replica.on_chain_committed(end_offset)
                let_go_of_files(replica, end_offset)
            except Exception:  # One partition's trouble must not keep the others' acks back.
                logger.exception(
                    "commit could not be passed on", extra={"partition": str(replica.partition)}
                )
        for sequence, content in committed.contents:
            if content.foreign:
                self.foreign_committed.notify(sequence, self._take_foreign(content))
        if not (self._is_dropping or self._wal.is_local):
            self._is_dropping = True
            self._spawn(self._drop_committed())
        if self._is_closing and not self._writer.buffered_bytes:
            self._settled.set()

    def _take_foreign(self, content: ObjectContent) -> list[tuple[int, int]]:
        """Forget the foreign slices of a committed object; return where it has them."""
        found: list[tuple[int, int]] = []
        position = HEADER_SIZE
        for part in content.foreign:
            found.append((part.number, position))
            position += part.size_bytes
            self._foreign.pop(part.number, None)
        return found

    def _forget_if_settled(self, name: PartitionName) -> None:
        """Forget the replica of a partition that has left, once nothing of it is pending."""
        replica = self._replicas.get(name)
        if replica is None or replica in self._partitions or self._writer.has_uncommitted(name):
            return
        del self._replicas[name]

    async def _drop_committed(self) -> None:
        end = -1
        while end != self._writer.committed_end:
            end = self._writer.committed_end
            await self._objects.drop(end)
        self._is_dropping = False

    def _note_fullness(self) -> None:
        self._traffic.buffered_bytes = self._writer.buffered_bytes
        pending_bytes = self._writer.buffered_bytes + self._appends.size_bytes
        limit_bytes = self._writer.limits.buffer_bytes_max
        if self.is_full:
            if pending_bytes < ROOM_PART * limit_bytes:
                self._set_full(False)
        elif pending_bytes >= limit_bytes:
            self._set_full(True)

    def _set_full(self, is_full: bool) -> None:
        if is_full != self.is_full:
            self.is_full = is_full
            self.fullness.notify(is_full)

    # -- counting --

    def _count_attempt(self, pending: PendingObject) -> None:
        if pending.open:
            self._traffic.hedge_count += 1
        elif pending.attempt_count:
            self._traffic.retry_count += 1
        pending.attempt_count += 1
        pending.open += 1

    def _count_outcome(self, outcome: PutOutcome, seconds: float) -> None:
        if outcome is PutOutcome.STORED:
            self._traffic.puts.observe(seconds)
        elif outcome is PutOutcome.THROTTLED:
            self._traffic.throttled_count += 1
        elif outcome is PutOutcome.UNKNOWN:
            self._traffic.unknown_count += 1
