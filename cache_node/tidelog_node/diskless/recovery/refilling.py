"""Makes local logs what the tier and the chains have, before their partitions are led.

    below the high watermark     this process has seen it committed
    up to the chains' end        kept where the local bytes have the CRC of the chain's slice
    the rest                     cut, and fetched from the chains' objects

After an unclean stop a diskless log proves nothing: it was never flushed, and a machine that lost
power may give back other bytes than it took. So every slice is compared, and the log is cut at the
first one that differs. Objects are read for all partitions that need them (``object_reads``), and
ahead, by count and by bytes. Slices are appended in order like a leader's: producers, transactions
and leader epochs follow from the batches.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from crc32c import crc32c
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.diskless.wal.slice_bytes import foreign_batches, placed_batches
from tidelog_core.errors import (
    CorruptObject,
    CorruptRecordBatch,
    ObjectNotFound,
    OffsetOutOfRange,
    StorageError,
    TidelogError,
)
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.values import AppendInfo
from tidelog_core.model import TopicPartition
from tidelog_core.records.header import Buffer, iter_headers
from tidelog_core.turns import Turn

from tidelog_node.diskless.recovery.chain_slices import StoredSlice
from tidelog_node.diskless.recovery.compared_slices import count_equal, run_of
from tidelog_node.diskless.recovery.object_reads import ObjectRead, plan_reads
from tidelog_node.diskless.recovery.range_reader import RangeReader
from tidelog_node.diskless.recovery.slice_reads import SlicePlace, read_runs, read_unchecked
from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

READS_AHEAD_MAX = 256  # of one refill
GATHERED_BYTES_MAX = 8 << 20  # of one refill, and an object
# Of one append: a megabyte of the smallest batches takes the loop some 10 ms.
APPENDED_BYTES_MAX = 1 << 20
COMPARED_AT_ONCE_MAX = 16  # logs


class Refilled(Protocol):
    """A replica whose log is refilled; ``Replica``."""

    is_leader: bool

    @property
    def partition(self) -> TopicPartition:
        """The partition's name."""

    @property
    def log(self) -> LocalLog:
        """Its log."""

    @property
    def is_follower(self) -> bool:
        """Whether this node follows another one."""

    def append_as_follower(self, batches: memoryview, /) -> AppendInfo:
        """Append the records."""

    def note_changed(self) -> None:
        """Note that the log has changed."""


class Tail(NamedTuple):
    """The records that a log is to have behind those that the tier has."""

    replica: Refilled
    slices: Sequence[StoredSlice]  # in order of offset, without a gap
    end_offset: int

    @property
    def unproven_bytes(self) -> int:
        """The bytes that are compared or read: this process has not seen them committed here."""
        known_end = self.replica.log.high_watermark
        return sum(one.size_bytes for one in self.slices if one.end_offset > known_end)


class MissingSlice(CorruptObject):
    """An object is gone that was there when its chain was read: lost, or collected since."""


class RefillLimits(NamedTuple):
    """Limits of all refills of one ``LogRefill`` together."""

    reads_at_once: int = 64
    bytes_ahead: int = 64 << 20  # one object may always be read
    reads_behind_others: int = 64  # at once, while refills are under way that come first


LIMITS = RefillLimits()


class LogRefill:
    """Refills logs from chains. For the tasks of one event loop."""

    def __init__(
        self,
        node: NodeContext,
        read: RangeReader,
        *,
        limits: RefillLimits = LIMITS,
        behind: LogRefill | None = None,
    ) -> None:
        """``read`` reads the objects of chains. The refills of ``behind`` come first."""
        self._node = node
        self._read = read
        self._limits = limits
        self._behind = behind
        self._read_slots = asyncio.Semaphore(limits.reads_at_once)
        self._slots_behind = asyncio.Semaphore(limits.reads_behind_others)
        self._log_slots = asyncio.Semaphore(COMPARED_AT_ONCE_MAX)
        self._bytes_ahead = 0
        self._refill_count = 0  # under way

    @property
    def is_busy(self) -> bool:
        """Whether any refill is under way."""
        return self._refill_count > 0

    async def refill(
        self, tails: Mapping[PartitionName, Tail]
    ) -> dict[PartitionName, TidelogError | OSError]:
        """Make the logs end where their tails do, with the slices' bytes; return the failures.

        A log holds, or begins at, the offset where its first slice is wanted. Nobody appends to
        it meanwhile. A failure is ``CorruptObject`` with object and partition, or one of the store
        or the log; a log that failed has some of the slices.
        """
        self._refill_count += 1
        try:
            return await self._refill(tails)
        finally:
            self._refill_count -= 1

    async def _refill(
        self, tails: Mapping[PartitionName, Tail]
    ) -> dict[PartitionName, TidelogError | OSError]:
        failures: dict[PartitionName, TidelogError | OSError] = {}
        missing: dict[PartitionName, Sequence[StoredSlice]] = {}

        async def begin(name: PartitionName, tail: Tail) -> None:
            async with self._log_slots:
                try:
                    missing[name] = await self._keep(tail)
                except (TidelogError, OSError) as error:
                    failures[name] = error

        async with asyncio.TaskGroup() as group:
            for name, tail in tails.items():
                group.create_task(begin(name, tail))
        await self._fetch(tails, missing, failures)
        for name, tail in tails.items():
            if name not in failures:
                try:
                    _finish(tail)
                except (TidelogError, OSError) as error:
                    failures[name] = error
        return failures

    # -- the local bytes --

    async def _keep(self, tail: Tail) -> list[StoredSlice]:
        """Keep what the log has of the slices and cut the rest; return those that it lacks."""
        log, slices = tail.replica.log, tail.slices
        kept_count = await self.count_kept(log, slices)
        _require_unled(tail.replica)
        valid_end = slices[kept_count].base_offset if kept_count < len(slices) else tail.end_offset
        valid_end = max(valid_end, log.high_watermark)
        if log.log_end_offset > valid_end:
            logger.warning(
                "local log has other records than its chain, cut",
                extra={
                    "partition": str(tail.replica.partition),
                    "offset": valid_end,
                    "log_end_offset": log.log_end_offset,
                },
            )
            log.truncate_to(valid_end)
        return [one for one in slices if one.end_offset > log.log_end_offset]

    async def count_kept(self, log: LocalLog, slices: Sequence[StoredSlice]) -> int:
        """Return how many of the first slices the log has, byte for byte.

        What is below the high watermark is right.
        """
        number = 0
        while number < len(slices):
            one = slices[number]
            if one.end_offset <= log.high_watermark:
                number += 1
                continue
            if one.base_offset < log.local_log_start_offset or one.end_offset > log.log_end_offset:
                return number
            if one.is_reference:
                if not await self._has_reference(log, one):
                    return number
                number += 1
                continue
            run = run_of(slices, number, log.log_end_offset)
            found = await self._count_equal(log, run)
            number += found
            if found < len(run):
                return number
        return number

    async def _has_reference(self, log: LocalLog, one: StoredSlice) -> bool:
        """Whether the log has a gateway's slice, with the offsets and the epoch it was given."""
        loop = asyncio.get_running_loop()
        try:
            ranges = log.file_ranges(one.base_offset, one.end_offset)
            if sum(end - start for _, start, end in ranges) != one.size_bytes:
                return False
            data = await loop.run_in_executor(self._node.executor, _read_files, ranges)
            foreign = await loop.run_in_executor(self._node.executor, foreign_batches, data)
        except (OffsetOutOfRange, StorageError, CorruptRecordBatch, OSError):
            return False
        placed = placed_batches(
            foreign, one.base_offset, key="", position=0, leader_epoch=one.leader_epoch
        )
        return crc32c(foreign) == one.crc32c and placed == data

    async def _count_equal(self, log: LocalLog, run: Sequence[StoredSlice]) -> int:
        """Return how many slices of a run the log has, one behind the other in its files."""
        loop = asyncio.get_running_loop()
        first = run[0].base_offset
        try:
            if log.read(first, max_bytes=1, up_to=run[-1].end_offset).start_offset != first:
                return 0
            ranges = log.file_ranges(first, run[-1].end_offset)
            return await loop.run_in_executor(self._node.executor, count_equal, ranges, run)
        except (OffsetOutOfRange, StorageError, OSError):
            return 0

    # -- the chains' bytes --

    async def _fetch(
        self,
        tails: Mapping[PartitionName, Tail],
        missing: Mapping[PartitionName, Sequence[StoredSlice]],
        failures: dict[PartitionName, TidelogError | OSError],
    ) -> None:
        """Append the missing slices in order; some objects are read ahead."""
        ahead: deque[tuple[ObjectRead, int, asyncio.Task[list[bytearray]]]] = deque()
        # Planned as it goes on: what only partitions need that have failed is not read.
        left = (
            (one, _size_bytes(one))
            for one in plan_reads(missing)
            if not failures.keys() >= one.slices.keys()
        )
        following = next(left, None)
        gathered = _Gathered()
        try:
            while following is not None or ahead:
                while following is not None and (not ahead or self._has_room(following[1], ahead)):
                    read, size_bytes = following
                    self._bytes_ahead += size_bytes
                    ahead.append((*following, asyncio.create_task(self._read_object(read))))
                    following = next(left, None)
                    await gathered.turn.step()
                read, size_bytes, task = ahead.popleft()
                try:
                    parts = await task
                except (TidelogError, OSError) as error:
                    for name in read.slices:
                        failures.setdefault(name, self._named(error, read, name))
                else:
                    await self._gather(read, parts, gathered, failures)
                finally:
                    self._bytes_ahead -= size_bytes
                if gathered.size_bytes >= GATHERED_BYTES_MAX or (following is None and not ahead):
                    await self._append_all(tails, gathered, failures)
        finally:
            for _, size_bytes, task in ahead:
                self._bytes_ahead -= size_bytes
                task.cancel()
            await asyncio.gather(*(task for _, _, task in ahead), return_exceptions=True)

    def _has_room(self, size_bytes: int, ahead: Sequence[object]) -> bool:
        has_bytes = self._bytes_ahead + size_bytes <= self._limits.bytes_ahead
        return has_bytes and len(ahead) < READS_AHEAD_MAX

    async def _read_object(self, read: ObjectRead) -> list[bytearray]:
        """Return the bytes of the slices, partition by partition. Raises the store's errors."""
        return await read_unchecked(self._get_range, self._key(read), _places(read))

    async def _get_range(self, key: str, start: int, end: int) -> bytes | memoryview:
        async with self._read_slots:
            if self._behind is None or not self._behind.is_busy:
                return await self._read(key, start, end)
            async with self._slots_behind:
                return await self._read(key, start, end)

    async def _gather(
        self,
        read: ObjectRead,
        parts: Sequence[bytearray],
        gathered: _Gathered,
        failures: dict[PartitionName, TidelogError | OSError],
    ) -> None:
        """Take what was read, if it is right; a partition that has failed takes nothing more."""
        left = iter(parts)
        for name, slices in read.slices.items():
            found = [next(left) for _ in slices]
            if name in failures:
                continue
            try:
                for one, data in zip(slices, found, strict=True):
                    gathered.add(name, self._checked(name, one, data))
                    await gathered.turn.step()
            except CorruptObject as error:
                failures[name] = error

    async def _append_all(
        self,
        tails: Mapping[PartitionName, Tail],
        gathered: _Gathered,
        failures: dict[PartitionName, TidelogError | OSError],
    ) -> None:
        """Append what was gathered, by as few appends as the loop can bear."""
        failed: set[PartitionName] = set()  # here; of others, what came before is right
        for name, data in gathered.take():
            if name in failed:
                continue
            try:
                _require_unled(tails[name].replica)
                self.append_slice(tails[name].replica, data)
            except (TidelogError, OSError) as error:
                failures[name] = error
                failed.add(name)
            await asyncio.sleep(0)

    async def read_slice(self, name: PartitionName, one: StoredSlice) -> bytearray:
        """Return the slice's bytes. Raises ``CorruptObject``, and the store's errors."""
        key = self._key(one)
        try:
            data = await self._get_range(key, one.position, one.position + one.size_bytes)
        except ObjectNotFound:
            raise _missing(key, name) from None
        return self._checked(name, one, data)

    def _checked(
        self, name: PartitionName, one: StoredSlice, data: bytes | bytearray | memoryview
    ) -> bytearray:
        """Return the batches of the slice as the log has them. Raises ``CorruptObject``."""
        key = self._key(one)
        if len(data) != one.size_bytes or crc32c(data) != one.crc32c:
            raise CorruptObject(
                key,
                f"the slice of {name} with offsets [{one.base_offset}, {one.end_offset}) at"
                f" {one.position} has {len(data)} of {one.size_bytes} bytes, or its CRC does"
                " not match",
            )
        if one.is_reference:
            return placed(data, one, key=key)
        return data if isinstance(data, bytearray) else bytearray(data)

    def _key(self, one: StoredSlice | ObjectRead) -> str:
        place = one.place if isinstance(one, ObjectRead) else one
        return wal_key(self._node.view.image.cluster_id, place.chain, place.sequence)

    def _named(
        self, error: TidelogError | OSError, read: ObjectRead, name: PartitionName
    ) -> TidelogError | OSError:
        """Return the error of reading an object as the partition has it."""
        return _missing(self._key(read), name) if isinstance(error, ObjectNotFound) else error

    def append_slice(self, replica: Refilled, data: bytearray) -> None:
        """Append the batches that have records at or above the log's end.

        Raises ``StorageError`` if the log ends before they begin.
        """
        log = replica.log
        found = _first_batch(data, log.log_end_offset)
        if found is None:
            return  # The log had these.
        position, base_offset = found
        if base_offset > log.log_end_offset:  # It was cut or replaced meanwhile.
            raise StorageError(f"{replica.partition} lacks the offsets before {base_offset}")
        is_empty = log.log_end_offset == log.local_log_start_offset
        if base_offset < log.log_end_offset and is_empty:
            # The log start is within a batch: the log has to begin with all of it.
            log.truncate_fully_and_start_at(base_offset, leader_epochs=log.leader_epochs)
        replica.append_as_follower(memoryview(data)[position:])


class _Gathered:
    """Slices that were read, until they are appended: many by one append, because each costs."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.turn = Turn()  # What was read ahead does not suspend the task that gathers.
        self._parts: dict[PartitionName, list[bytearray]] = {}

    def add(self, name: PartitionName, data: bytearray) -> None:
        """Add the partition's next batches."""
        self._parts.setdefault(name, []).append(data)
        self.size_bytes += len(data)

    def take(self) -> Iterator[tuple[PartitionName, bytearray]]:
        """Yield all partitions with their batches, some at a time, and forget them."""
        parts, self._parts, self.size_bytes = self._parts, {}, 0
        for name, some in parts.items():
            for run in _runs(some):
                yield name, run


def _runs(slices: Sequence[bytearray]) -> Iterator[bytearray]:
    """Yield whole batches of ``APPENDED_BYTES_MAX`` at most, or one larger batch."""
    run: list[bytearray] = []
    size_bytes = 0
    for piece in (piece for data in slices for piece in _pieces(data)):
        if run and size_bytes + len(piece) > APPENDED_BYTES_MAX:
            yield run[0] if len(run) == 1 else bytearray().join(run)
            run, size_bytes = [], 0
        run.append(piece)
        size_bytes += len(piece)
    if run:
        yield run[0] if len(run) == 1 else bytearray().join(run)


def _pieces(data: bytearray) -> Iterator[bytearray]:
    """Yield the batches of a slice in pieces that are no larger than they have to be."""
    if len(data) <= APPENDED_BYTES_MAX:
        yield data
        return
    start = end = 0
    for position, _ in iter_headers(data):
        # The batch before ends where this one begins.
        if position - start > APPENDED_BYTES_MAX and end > start:
            yield data[start:end]
            start = end
        end = position
    if end > start and len(data) - start > APPENDED_BYTES_MAX:
        yield data[start:end]
        start = end
    yield data[start:]


def _finish(tail: Tail) -> None:
    """Take all of the log for committed. Raises ``StorageError`` if it ends elsewhere."""
    log = tail.replica.log
    if log.log_end_offset != tail.end_offset:
        raise StorageError(
            f"the log of {tail.replica.partition} ends at {log.log_end_offset} instead of"
            f" {tail.end_offset}, where its chains end"
        )
    if log.advance_high_watermark(tail.end_offset):
        tail.replica.note_changed()


def _missing(key: str, name: PartitionName) -> MissingSlice:
    return MissingSlice(key, f"it is missing, and {name} needs it")


def _places(read: ObjectRead) -> list[SlicePlace]:
    return [
        SlicePlace(one.position, one.size_bytes, one.crc32c)
        for slices in read.slices.values()
        for one in slices
    ]


def _size_bytes(read: ObjectRead) -> int:
    """Return the bytes that are read, with what is between slices that one request reads."""
    return sum(end - start for start, end in read_runs(_places(read)))


def _require_unled(replica: Refilled) -> None:
    """Raise ``StorageError`` if the replica leads or follows by now: its log is not ours to cut.

    A late write made the partition replicated, or another node was elected during a long refill.
    """
    if replica.is_leader:
        raise StorageError(f"{replica.partition} is led here already, its log stays as it is")
    if replica.is_follower:
        raise StorageError(f"{replica.partition} is led elsewhere by now, its log stays as it is")


def placed(data: Buffer, one: StoredSlice, *, key: str) -> bytearray:
    """Return a gateway's slice with the offsets and the leader epoch of its reference."""
    return placed_batches(
        data, one.base_offset, key=key, position=one.position, leader_epoch=one.leader_epoch
    )


def _read_files(ranges: Sequence[tuple[Path, int, int]]) -> bytes:
    """Return the bytes of the ranges, one after the other. For any thread."""
    parts: list[bytes] = []
    for path, start, end in ranges:
        with path.open("rb") as file:
            file.seek(start)
            parts.append(file.read(end - start))
    return b"".join(parts)


def _first_batch(data: bytearray, offset: int) -> tuple[int, int] | None:
    """Return position and base offset of the first batch with records at or above the offset."""
    for position, header in iter_headers(data):
        if header.base_offset + header.last_offset_delta >= offset:
            return position, header.base_offset
    return None
