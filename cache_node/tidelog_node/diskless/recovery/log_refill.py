"""Completes local logs from the chains, before their partitions are led.

    below the high watermark     kept: this process has seen it committed
    up to the chains' end        kept where the local bytes have the CRC of the chain's slice
    the rest                     truncated, and fetched from the chains' objects

The log is truncated at the first slice that differs (``slice_comparison``). Each object is read for
all partitions that need it (``object_reads``); some objects are read ahead. Slices are appended in
order, as on a leader: producers, transactions and leader epochs follow from the batches.

Producers wait for some refills and consumers for others (``tail_fills``). The latter give way while
partitions without a leader are recovered: they read little at once, and pause between appends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from crc32c import crc32c
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import CorruptObject, ObjectNotFound, TidelogError

from tidelog_node.diskless.recovery.chain_slices import StoredSlice
from tidelog_node.diskless.recovery.log_tail import LogTail, MissingSlice, finish, require_unled
from tidelog_node.diskless.recovery.object_reads import ObjectRead, plan_reads
from tidelog_node.diskless.recovery.range_reader import RangeReader
from tidelog_node.diskless.recovery.slice_appends import GatheredSlices, append_slice, placed
from tidelog_node.diskless.recovery.slice_comparison import SliceComparison
from tidelog_node.diskless.recovery.slice_reads import SlicePlace, read_runs, read_unchecked
from tidelog_node.node_context import NodeContext

logger = logging.getLogger(__name__)

READS_AHEAD_MAX = 256  # of one refill
GATHERED_BYTES_MAX = 8 << 20  # of one refill, and an object
COMPARED_AT_ONCE_MAX = 16  # logs
PAUSE_BEHIND_SECONDS = 0.1  # between two appends, while others come first


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
        """``read`` reads the objects of chains. Urgent refills of ``behind`` come first."""
        self._node = node
        self.executor = node.executor
        self.comparison = SliceComparison(node.executor)
        self._read = read
        self._limits = limits
        self._behind = behind
        self._read_slots = asyncio.Semaphore(limits.reads_at_once)
        self._slots_behind = asyncio.Semaphore(limits.reads_behind_others)
        self._log_slots = asyncio.Semaphore(COMPARED_AT_ONCE_MAX)
        self._bytes_ahead = 0
        self._urgent_count = 0  # refills and other urgent work that is under way
        self._has_nothing_urgent = asyncio.Event()
        self._has_nothing_urgent.set()

    @property
    def is_busy(self) -> bool:
        """Whether any refill, or anything else that is urgent, is under way."""
        return self._urgent_count > 0

    @contextmanager
    def urgent(self) -> Iterator[None]:
        """Have the refills behind this one give way within the context."""
        self._urgent_count += 1
        self._has_nothing_urgent.clear()
        try:
            yield
        finally:
            self._urgent_count -= 1
            if not self._urgent_count:
                self._has_nothing_urgent.set()

    async def urgent_ends_within(self, seconds: float) -> None:
        """Return when nothing is urgent any more, or after this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._has_nothing_urgent.wait()

    async def refill(
        self, tails: Mapping[PartitionName, LogTail]
    ) -> dict[PartitionName, TidelogError | OSError]:
        """Complete the logs up to the ends of their tails; return the failures.

        A log has, or begins at, the offset of its first missing slice. Nothing else may append to
        it during the call. A failure is ``CorruptObject`` with object and partition, or one of the
        store or the log; a log that failed has some of the slices.
        """
        with self.urgent():
            return await self._refill(tails)

    async def _refill(
        self, tails: Mapping[PartitionName, LogTail]
    ) -> dict[PartitionName, TidelogError | OSError]:
        failures: dict[PartitionName, TidelogError | OSError] = {}
        missing: dict[PartitionName, Sequence[StoredSlice]] = {}

        async def begin(name: PartitionName, tail: LogTail) -> None:
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
                    finish(tail)
                except (TidelogError, OSError) as error:
                    failures[name] = error
        return failures

    # -- the local bytes --

    async def _keep(self, tail: LogTail) -> list[StoredSlice]:
        """Truncate the log behind its last matching slice; return the slices that it lacks."""
        log, slices = tail.replica.log, tail.slices
        kept_count = await self.comparison.count(log, slices)
        require_unled(tail.replica)
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

    # -- the chains' bytes --

    async def _fetch(
        self,
        tails: Mapping[PartitionName, LogTail],
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
        gathered = GatheredSlices()
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
        gathered: GatheredSlices,
        failures: dict[PartitionName, TidelogError | OSError],
    ) -> None:
        """Check and gather the slices that were read, except for partitions that have failed."""
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
        tails: Mapping[PartitionName, LogTail],
        gathered: GatheredSlices,
        failures: dict[PartitionName, TidelogError | OSError],
    ) -> None:
        """Append the gathered slices, in as few appends as the event loop can bear."""
        failed: set[PartitionName] = set()  # here; of others, what came before is right
        for name, data in gathered.take():
            if name in failed:
                continue
            try:
                require_unled(tails[name].replica)
                append_slice(tails[name].replica, data)
            except (TidelogError, OSError) as error:
                failures[name] = error
                failed.add(name)
            await self._give_way()

    async def _give_way(self) -> None:
        """Let other tasks run, and pause while urgent refills are under way."""
        if self._behind is None or not self._behind.is_busy:
            await asyncio.sleep(0)
        else:
            await self._behind.urgent_ends_within(PAUSE_BEHIND_SECONDS)

    async def read_slice(self, name: PartitionName, stored: StoredSlice) -> bytearray:
        """Return the slice's bytes. Raises ``CorruptObject``, and the store's errors."""
        key = self._key(stored)
        try:
            data = await self._get_range(key, stored.position, stored.position + stored.size_bytes)
        except ObjectNotFound:
            raise _missing(key, name) from None
        return self._checked(name, stored, data)

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


def _missing(key: str, name: PartitionName) -> MissingSlice:
    return MissingSlice(key, f"it is missing, and {name} needs it")


def _places(read: ObjectRead) -> list[SlicePlace]:
    return [
        SlicePlace(one.position, one.size_bytes, one.crc32c)
        for slices in read.slices.values()
        for one in slices
    ]


def _size_bytes(read: ObjectRead) -> int:
    """Return the number of bytes to read, with the gaps between slices of one request."""
    return sum(end - start for start, end in read_runs(_places(read)))
