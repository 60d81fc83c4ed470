"""Finds the slices of a tail that its log already has, byte for byte.

After an unclean stop a diskless log proves nothing: it was never flushed, and after a power loss
its files may have other bytes than were written. So every slice is compared with the CRC in its
chain, even if the CRCs of its batches match.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from crc32c import crc32c
from tidelog_core.diskless.wal.slice_bytes import foreign_batches, placed_batches
from tidelog_core.errors import CorruptRecordBatch, OffsetOutOfRange, StorageError
from tidelog_core.log.local_log import LocalLog

from tidelog_node.diskless.recovery.chain_slices import StoredSlice
from tidelog_node.diskless.recovery.slice_checksums import count_equal, run_of


class SliceComparison:
    """Compares logs with slices. For the tasks of one event loop."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def count(self, log: LocalLog, slices: Sequence[StoredSlice]) -> int:
        """Return how many slices the log has, from the first on, byte for byte.

        Slices below the high watermark are not compared: this process has seen them committed.
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
        """Whether the log has a gateway's slice, with the offsets and epoch of its reference."""
        loop = asyncio.get_running_loop()
        try:
            ranges = log.file_ranges(one.base_offset, one.end_offset)
            if sum(end - start for _, start, end in ranges) != one.size_bytes:
                return False
            data = await loop.run_in_executor(self._executor, _read_files, ranges)
            foreign = await loop.run_in_executor(self._executor, foreign_batches, data)
        except (OffsetOutOfRange, StorageError, CorruptRecordBatch, OSError):
            return False
        placed = placed_batches(
            foreign, one.base_offset, key="", position=0, leader_epoch=one.leader_epoch
        )
        return crc32c(foreign) == one.crc32c and placed == data

    async def _count_equal(self, log: LocalLog, run: Sequence[StoredSlice]) -> int:
        """Return how many slices of a run the log has, from the first on."""
        loop = asyncio.get_running_loop()
        first = run[0].base_offset
        try:
            if log.read(first, max_bytes=1, up_to=run[-1].end_offset).start_offset != first:
                return 0
            ranges = log.file_ranges(first, run[-1].end_offset)
            return await loop.run_in_executor(self._executor, count_equal, ranges, run)
        except (OffsetOutOfRange, StorageError, OSError):
            return 0


def _read_files(ranges: Sequence[tuple[Path, int, int]]) -> bytes:
    """Return the bytes of the ranges, one after the other. For any thread."""
    parts: list[bytes] = []
    for path, start, end in ranges:
        with path.open("rb") as file:
            file.seek(start)
            parts.append(file.read(end - start))
    return b"".join(parts)
