"""Collects a node's counts that cost money, from counters that others increment.

Nothing here is on the path of a request: once a minute the counters are read, and what they have
grown by since the last time is a sample. A counter that has become smaller began again, with a new
tier worker or a topic of the same name, and counts from 0. Of topics that are gone nothing is kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from tidelog_core.cost import counts
from tidelog_core.cost.collecting import milliunits
from tidelog_core.cost.entries import Tally
from tidelog_core.metadata.stores.usage import StoreUsage

from tidelog_node.costs.worker_counts import WorkerCounts, grown
from tidelog_node.node_context import NodeContext

READINGS_MAX = 20  # of partitions' segments, each time
SECOND_MS = 1_000
WorkerStatus = Callable[[], Awaitable[Mapping[str, Any] | None]]


class Tier(Protocol):
    """The part of ``TierService`` that is counted."""

    async def worker_status(self) -> Mapping[str, Any] | None:
        """Return the worker's counters, ``None`` if none runs or it does not answer."""

    async def stored_bytes(self, *, readings_max: int) -> dict[str, int]:
        """Return the bytes of tiered segments of the partitions led here, by topic."""


class CostCollector:
    """Takes samples of one node's counts. For the node's event loop."""

    def __init__(
        self,
        node: NodeContext,
        tier: Tier,
        *,
        usages: Sequence[StoreUsage],
        clock_ms: Callable[[], float],
    ) -> None:
        """``usages`` are of all metadata stores of the node; ``clock_ms`` never goes back."""
        config = node.static_config
        self._node = node
        self._tier = tier
        self._usages = usages
        self._clock_ms = clock_ms
        self._machine = counts.machine(config.cost_machine_type)
        self._nodes_of_machine = config.cost_machine_nodes
        self._begun_ms = self._sampled_ms = clock_ms()
        # Counters as they were read last, by topic or nothing, and what they count.
        self._last: dict[tuple[str, str], int] = {}
        self._last_of_topics: dict[tuple[str, str], int] = {}
        self._workers: list[tuple[WorkerStatus, WorkerCounts]] = []
        self.count_worker(tier.worker_status)
        # Of the sample that is being taken; one that is cancelled is part of the next.
        self._tally = Tally()

    def count_worker(self, status: WorkerStatus) -> None:
        """Count the requests of this worker too. ``None``: it has no counters this time."""
        self._workers.append((status, WorkerCounts()))

    async def sample(self) -> Tally:
        """Return the counts since the last call, or since the process began."""
        now_ms = self._clock_ms()
        duration_ms, self._sampled_ms = round(now_ms - self._sampled_ms), now_ms
        self._count_machine(now_ms)
        self._count_units()
        self._count_zones()
        await self._count_objects()
        await self._count_storage(duration_ms)
        tally, self._tally = self._tally, Tally()
        return tally

    def _count_machine(self, now_ms: float) -> None:
        used_ms = int(now_ms - self._begun_ms) // self._nodes_of_machine
        grown_ms = grown(self._last, ("", self._machine), used_ms)
        self._tally.add(self._machine, grown_ms)
        self._tally.add(counts.MACHINE_VOLUME, grown_ms)

    def _count_units(self) -> None:
        read = sum(usage.costing_read_units for usage in self._usages)
        written = sum(usage.costing_write_units for usage in self._usages)
        for name, units in ((counts.METADATA_READ, read), (counts.METADATA_WRITE, written)):
            self._tally.add(name, grown(self._last, ("", name), milliunits(units)))

    def _count_zones(self) -> None:
        name, before, now = counts.ZONE_TRANSFER, self._last_of_topics, {}
        for topic, traffic in self._node.counters.topics.named().items():
            key, value = (topic, name), traffic.replicated_across_bytes
            self._tally.add(name, grown(before, key, value), topic=topic)
            now[key] = value
        self._last_of_topics = now

    async def _count_objects(self) -> None:
        for read, counted in self._workers:
            status = await read()
            if status is not None:
                await counted.count(self._tally, status, self._node.view.image)

    async def _count_storage(self, duration_ms: int) -> None:
        """Charge the leader for the bytes that are in the bucket, for the time until now."""
        if not self._node.membership.can_serve():
            return
        for topic, size_bytes in (await self._tier.stored_bytes(readings_max=READINGS_MAX)).items():
            kb_ms = size_bytes // counts.BYTES_PER_KB * duration_ms
            self._tally.add(counts.OBJECT_STORAGE, kb_ms // SECOND_MS, topic=topic)
