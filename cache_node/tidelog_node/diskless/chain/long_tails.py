"""Seals active segments of led partitions whose un-tiered tails are long, so that they are tiered.

An heir reads the footers of objects that no checkpoint has before it leads, and of a short tail
every slice. Of a long tail it reads the slices once it leads, and consumers wait for them. So the
longer the tail is, by objects and by bytes, the longer clients wait. Without this module only
``segment.bytes`` and ``diskless.wal.max.age.ms`` bound the tail: in an hour a chain in a folder
gets hundreds of thousands of objects, and one in a bucket tens of thousands.

What counts is the objects with records of the partition since its segment began, and what the
partition had when it was entered: slices and chains, because each chain is listed, and has some
objects that no checkpoint has.

Short segments cost requests and items, and every node of the cluster reads the items' changes. So
the brokers divide what all of them seal in a second, and each seals the longest tails first. A
visit looks at every led partition, so a node that leads more looks less often, and seals as many
more in one visit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from tidelog_core.errors import StorageError
from tidelog_core.turns import Turn

from tidelog_node.diskless.chain.chain_partition import ChainPartition
from tidelog_node.diskless.chain.owned_chain import OwnedChain

logger = logging.getLogger(__name__)

VISIT_SECONDS = 1.0  # at least, between two visits
LOOKED_AT_PER_S_MAX = 1_000  # partitions: some 3 ms of the event loop


class TailLimits(NamedTuple):
    """The length of a partition's tail at which its segment is sealed."""

    objects_max: int
    size_bytes_max: int = 64 << 20  # of the active segment
    interval_s: float = 0.0  # between two segments of a partition, unless they are large
    large_size_bytes: int = 256 << 20
    sealed_per_s: float = 1.0  # segments, by one node
    cluster_sealed_per_s: float = 10.0  # by all nodes; each is some writes, which all nodes read


# A segment costs two PUTs and 18 write units: one a second is $56 a month. Its item stays as
# long as its records, and heirs read all items of a partition: 2,000 after a week.
PAID = TailLimits(objects_max=1_000, interval_s=300.0)
# Where requests cost nothing objects come as fast as the disk takes them.
FREE = TailLimits(objects_max=2_000, interval_s=180.0, sealed_per_s=4.0)


class LongTails:
    """Seals segments of partitions in the node's chain. For its loop; ``run`` is one task."""

    def __init__(
        self,
        chain: Callable[[], OwnedChain | None],
        limits: TailLimits,
        *,
        broker_count: Callable[[], int] = lambda: 1,
    ) -> None:
        """``broker_count`` returns how many brokers the cluster has."""
        self._chain = chain
        self._limits = limits
        self._broker_count = broker_count
        self._due = 0.0  # segments that may be sealed now

    async def run(self) -> None:
        """Visit the partitions until cancelled."""
        while True:
            seconds = self.interval_s
            await asyncio.sleep(seconds)
            try:
                await self.visit(seconds)
            except Exception:
                logger.exception("search for long tails broke, will retry")

    @property
    def interval_s(self) -> float:
        """The time between two visits."""
        chain = self._chain()
        count = 0 if chain is None else chain.partition_count
        return max(VISIT_SECONDS, count / LOOKED_AT_PER_S_MAX)

    async def visit(self, seconds: float = VISIT_SECONDS) -> None:
        """Seal the segments of the longest tails, if they are too long.

        It seals at most as many as the time allows; seals that were not used before do not count.
        """
        chain = self._chain()
        if chain is None or chain.is_deposed:
            return
        turn = Turn()
        now_s = asyncio.get_running_loop().time()
        long: list[tuple[float, ChainPartition]] = []
        for one in chain.partitions:
            await turn.step()
            length = self._length(one)
            if length >= 1 and self._may_seal(one, now_s):
                long.append((length, one))
        due = seconds * self._sealed_per_s()
        self._due = min(self._due + due, max(due, 1.0))
        long.sort(key=lambda part: (-part[0], part[1].name))
        for _, one in long[: int(self._due)]:
            await turn.step()
            if chain.is_deposed or not self._length(one):
                continue  # It has left since.
            _seal(one)
            one.sealed_s = now_s
            self._due -= 1

    def _sealed_per_s(self) -> float:
        limits = self._limits
        return min(limits.sealed_per_s, limits.cluster_sealed_per_s / max(self._broker_count(), 1))

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
            logger.error("segment could not be rolled", extra=what)
        return
    one.object_count, one.segment_base_offset = 0, replica.log.active_segment_base_offset
    replica.note_changed()
