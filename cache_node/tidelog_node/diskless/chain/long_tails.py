"""Seals active segments of led partitions whose un-tiered tails are long, so that they are tiered.

An heir reads what the tier lacks of a partition before it leads: the footers of objects that no
checkpoint has, then every slice. So producers wait longer the longer the tail is, by objects and by
bytes. Else only ``segment.bytes`` and ``diskless.wal.max.age.ms`` bound it: in an hour a chain in
a folder gets hundreds of thousands of objects, and one in a bucket tens of thousands.

What counts is the objects with records of the partition since its segment began, and what the
partition had when it was entered: slices and chains, because each chain is listed, and has some
objects that no checkpoint has. Short segments cost requests and items, so few are sealed in one
visit, those with the longest tails first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from tidelog_core.errors import StorageError

from tidelog_node.diskless.chain.chain_partition import ChainPartition
from tidelog_node.diskless.chain.owned_chain import OwnedChain

logger = logging.getLogger(__name__)

VISIT_SECONDS = 1.0


class TailLimits(NamedTuple):
    """How long the tail of a partition may be before its segment is sealed."""

    objects_max: int
    size_bytes_max: int = 64 << 20  # of the active segment
    interval_s: float = 0.0  # between two segments of a partition, unless they are large
    large_size_bytes: int = 256 << 20
    sealed_max: int = 1  # segments in one visit


# A segment costs two PUTs and 18 write units: one a second is $56 a month. Its item stays as
# long as its records, and heirs read all items of a partition: 2,000 after a week.
PAID = TailLimits(objects_max=1_000, interval_s=300.0)
# Where requests cost nothing objects come as fast as the disk takes them.
FREE = TailLimits(objects_max=2_000, interval_s=180.0, sealed_max=4)


class LongTails:
    """Seals segments of partitions in the node's chain. For its loop; ``run`` is one task."""

    def __init__(self, chain: Callable[[], OwnedChain | None], limits: TailLimits) -> None:
        self._chain = chain
        self._limits = limits

    async def run(self) -> None:
        """Visit the partitions until cancelled."""
        while True:
            await asyncio.sleep(VISIT_SECONDS)
            try:
                self.visit()
            except Exception:
                logger.exception("search for long tails broke, will retry")

    def visit(self) -> None:
        """Seal the segments of the longest tails, if they are too long."""
        chain = self._chain()
        if chain is None or chain.is_deposed:
            return
        now_s = asyncio.get_running_loop().time()
        found = [(self._length(one), one) for one in chain.partitions]
        long = [part for part in found if part[0] >= 1 and self._may_seal(part[1], now_s)]
        long.sort(key=lambda part: (-part[0], part[1].name))
        for _, one in long[: self._limits.sealed_max]:
            _seal(one)
            one.sealed_s = now_s

    def _length(self, one: ChainPartition) -> float:
        """Return how long the tail is that the active segment has: 1 is too long."""
        replica, log = one.replica, one.replica.opened_log
        if log is None or log.is_offline or not (replica.is_diskless and replica.is_leader):
            return 0.0
        base_offset, size_bytes = log.active_segment_base_offset, log.active_segment_size_bytes
        if one.segment_base_offset not in (-1, base_offset) or not size_bytes:
            one.object_count = 0  # What came before is in sealed segments.
        one.segment_base_offset = base_offset
        limits = self._limits
        return max(one.object_count / limits.objects_max, size_bytes / limits.size_bytes_max)

    def _may_seal(self, one: ChainPartition, now_s: float) -> bool:
        if one.sealed_s is None or now_s - one.sealed_s >= self._limits.interval_s:
            return True
        return one.replica.log.active_segment_size_bytes >= self._limits.large_size_bytes


def _seal(one: ChainPartition) -> None:
    replica = one.replica
    try:
        replica.log.roll()
    except StorageError as error:
        if not replica.note_failure(error):
            what = {"partition": str(replica.partition), "reason": str(error)}
            logger.error("roll failed", extra=what)
        return
    one.object_count, one.segment_base_offset = 0, replica.log.active_segment_base_offset
    replica.note_changed()
