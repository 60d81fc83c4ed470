"""Makes a local log what the tier and the chains have, before its partition is led.

    below the high watermark     this process has seen it committed
    up to the chains' end        kept where the local bytes have the CRC of the chain's slice
    the rest                     cut, and fetched from the chains' objects

After an unclean stop a diskless log proves nothing: it was never flushed, and a machine that lost
power may give back other bytes than it took. So every slice is compared, and the log is cut at the
first one that differs. Slices are fetched ahead, by count and by bytes, and appended in order like
a leader's: producers, transactions and leader epochs follow from the batches.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path

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
)
from tidelog_core.log.local_log import LocalLog
from tidelog_core.model import FileSlice
from tidelog_core.objects.store import ObjectStore
from tidelog_core.records.header import Buffer, iter_headers

from tidelog_node.diskless.recovery.chain_slices import StoredSlice
from tidelog_node.node_context import NodeContext
from tidelog_node.replica import Replica

logger = logging.getLogger(__name__)

SLICES_AT_ONCE_MAX = 64
BYTES_AHEAD_MAX = 64 << 20  # of all partitions together; one slice may always be fetched
READ_BYTES = 1 << 20


class LogRefill:
    """Refills logs from chains. For the tasks of one event loop."""

    def __init__(self, node: NodeContext, store: ObjectStore) -> None:
        self._node = node
        self._store = store
        self._slots = asyncio.Semaphore(SLICES_AT_ONCE_MAX)
        self._bytes_ahead = 0

    async def refill(
        self, replica: Replica, name: PartitionName, slices: Sequence[StoredSlice], end_offset: int
    ) -> None:
        """Make the replica's log end at ``end_offset`` with the slices' bytes.

        The log holds, or begins at, the offset where the first slice is wanted. Nobody appends to
        it meanwhile. Raises ``CorruptObject`` with object and partition, and the store's errors.
        """
        log = replica.log
        kept_count = await self.count_kept(log, slices)
        _require_unled(replica)
        valid_end = slices[kept_count].base_offset if kept_count < len(slices) else end_offset
        valid_end = max(valid_end, log.high_watermark)
        if log.log_end_offset > valid_end:
            logger.warning(
                "local log has other records than its chain, cut",
                extra={
                    "partition": str(replica.partition),
                    "offset": valid_end,
                    "log_end_offset": log.log_end_offset,
                },
            )
            log.truncate_to(valid_end)
        missing = [one for one in slices if one.end_offset > log.log_end_offset]
        if missing:
            await self._fetch(replica, name, missing)
        if log.log_end_offset != end_offset:
            raise StorageError(
                f"the log of {replica.partition} ends at {log.log_end_offset} instead of"
                f" {end_offset}, where its chains end"
            )
        if log.advance_high_watermark(end_offset):
            replica.note_changed()

    # -- the local bytes --

    async def count_kept(self, log: LocalLog, slices: Sequence[StoredSlice]) -> int:
        """Return how many of the first slices the log has, byte for byte.

        What is below the high watermark is right.
        """
        for number, one in enumerate(slices):
            if one.end_offset <= log.high_watermark:
                continue
            if one.base_offset < log.local_log_start_offset or one.end_offset > log.log_end_offset:
                return number
            has = self._has_reference if one.is_reference else self._has
            if not await has(log, one):
                return number
        return len(slices)

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

    async def _has(self, log: LocalLog, one: StoredSlice) -> bool:
        loop = asyncio.get_running_loop()
        offset, size_bytes, crc = one.base_offset, 0, 0
        try:
            while offset < one.end_offset:
                wanted = one.size_bytes - size_bytes
                if wanted <= 0:
                    return False
                found = log.read(offset, max_bytes=wanted, up_to=one.end_offset)
                if found.slice is None or found.start_offset != offset:
                    return False
                taken = found.slice
                crc = await loop.run_in_executor(self._node.executor, _crc_of, taken, crc)
                size_bytes += taken.size_bytes
                if size_bytes == one.size_bytes:
                    break
                if found.end_offset <= offset:
                    return False
                offset = found.end_offset
        except (OffsetOutOfRange, OSError):
            return False
        return size_bytes == one.size_bytes and crc == one.crc32c

    # -- the chains' bytes --

    async def _fetch(
        self, replica: Replica, name: PartitionName, slices: Sequence[StoredSlice]
    ) -> None:
        """Append the slices in order; some are fetched ahead."""
        ahead: deque[tuple[StoredSlice, asyncio.Task[bytearray]]] = deque()
        left = iter(slices)
        following = next(left, None)
        try:
            while following is not None or ahead:
                while following is not None and (not ahead or self._has_room(following)):
                    self._bytes_ahead += following.size_bytes
                    task = asyncio.create_task(self.read_slice(name, following))
                    ahead.append((following, task))
                    following = next(left, None)
                one, task = ahead.popleft()
                try:
                    data = await task
                finally:
                    self._bytes_ahead -= one.size_bytes
                _require_unled(replica)
                self.append_slice(replica, data)
        finally:
            for one, task in ahead:
                self._bytes_ahead -= one.size_bytes
                task.cancel()
            await asyncio.gather(*(task for _, task in ahead), return_exceptions=True)

    def _has_room(self, one: StoredSlice) -> bool:
        return self._bytes_ahead + one.size_bytes <= BYTES_AHEAD_MAX

    async def read_slice(self, name: PartitionName, one: StoredSlice) -> bytearray:
        """Return the slice's bytes. Raises ``CorruptObject``, and the store's errors."""
        key = wal_key(self._node.view.image.cluster_id, one.chain, one.sequence)
        async with self._slots:
            try:
                data = await self._store.get_range(key, one.position, one.position + one.size_bytes)
            except ObjectNotFound:
                raise CorruptObject(key, f"it is missing, and {name} needs it") from None
        if len(data) != one.size_bytes or crc32c(data) != one.crc32c:
            raise CorruptObject(
                key,
                f"the slice of {name} with offsets [{one.base_offset}, {one.end_offset}) at"
                f" {one.position} has {len(data)} of {one.size_bytes} bytes, or its CRC does"
                " not match",
            )
        return placed(data, one, key=key) if one.is_reference else bytearray(data)

    def append_slice(self, replica: Replica, data: bytearray) -> None:
        """Append the slice's batches that have records at or above the log's end.

        Raises ``StorageError`` if the log ends before the slice begins.
        """
        log = replica.log
        position, base_offset = _first_batch(data, log.log_end_offset)
        if base_offset > log.log_end_offset:  # It was cut or replaced meanwhile.
            raise StorageError(f"{replica.partition} lacks the offsets before {base_offset}")
        is_empty = log.log_end_offset == log.local_log_start_offset
        if base_offset < log.log_end_offset and is_empty:
            # The log start is within a batch: the log has to begin with all of it.
            log.truncate_fully_and_start_at(base_offset, leader_epochs=log.leader_epochs)
        replica.append_as_follower(memoryview(data)[position:])


def _require_unled(replica: Replica) -> None:
    """Raise ``StorageError`` if this node leads: a late write made the partition replicated."""
    if replica.is_leader:
        raise StorageError(f"{replica.partition} is led here already, its log stays as it is")


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


def _first_batch(data: bytearray, offset: int) -> tuple[int, int]:
    """Return position and base offset of the first batch with records at or above the offset."""
    for position, header in iter_headers(data):
        if header.base_offset + header.last_offset_delta >= offset:
            return position, header.base_offset
    raise ValueError(f"no batch of the slice has offset {offset}")


def _crc_of(taken: FileSlice, crc: int) -> int:
    """Return the CRC of what came before and these bytes of a file. For any thread."""
    at, end = taken.position, taken.position + taken.size_bytes
    while at < end:
        some = os.pread(taken.file.fileno(), min(READ_BYTES, end - at), at)
        if not some:
            raise OSError("the segment file is shorter than its log says")
        crc = crc32c(some, crc)
        at += len(some)
    return crc
