"""Collects what a node has counted that costs money, from counters that others increment.

Nothing here is on the path of a request: once a minute the counters are read, and what they have
grown by is added to a tally that only grows. A counter that has become smaller began again, with
a new tier worker or a topic of the same name, and counts from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tidelog_core.cost import counts
from tidelog_core.cost.entries import Tally
from tidelog_core.metadata.image import ClusterImage
from tidelog_core.metadata.usage import StoreUsage
from tidelog_core.tier.keys import split_topic_folder

from tidelog_node.node_context import NodeContext

WORKER_SECONDS_MAX = 2.0  # A worker that takes longer is counted the next time.
READINGS_MAX = 20  # of partitions' segments, each time
MILLI = 1_000
OBJECT_METHODS: Mapping[str, str] = {
    "put": counts.OBJECT_PUT,
    "get": counts.OBJECT_GET,
    "head": counts.OBJECT_GET,
    "list": counts.OBJECT_LIST,
    "delete": counts.OBJECT_DELETE,
}


class Tier(Protocol):
    """The part of ``TierService`` that is counted."""

    async def worker_status(self) -> Mapping[str, Any] | None:
        """Return the worker's counters, ``None`` if none runs or it does not answer."""

    async def stored_bytes(self, *, readings_max: int) -> dict[str, int]:
        """Return the bytes of tiered segments of the partitions led here, by topic."""


class CostCollector:
    """The counts of one node since its process began. For the node's event loop."""

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
        self._last_of_worker: dict[tuple[str, str], int] = {}
        self._worker = ""  # the incarnation of the worker that they are of
        self.tally = Tally()

    async def sample(self) -> Tally:
        """Count what has come since the last time; return all counts of the process."""
        now_ms = self._clock_ms()
        duration_ms, self._sampled_ms = round(now_ms - self._sampled_ms), now_ms
        self._count_machine(now_ms)
        self._count_units()
        self._count_zones()
        await self._count_objects()
        await self._count_storage(duration_ms)
        return self.tally

    def _count_machine(self, now_ms: float) -> None:
        used_ms = int(now_ms - self._begun_ms) // self._nodes_of_machine
        grown_ms = _grown(self._last, ("", self._machine), used_ms)
        self.tally.add(self._machine, grown_ms)
        self.tally.add(counts.MACHINE_VOLUME, grown_ms)

    def _count_units(self) -> None:
        read = sum(usage.costing_read_units for usage in self._usages)
        written = sum(usage.costing_write_units for usage in self._usages)
        for name, units in ((counts.METADATA_READ, read), (counts.METADATA_WRITE, written)):
            self.tally.add(name, _grown(self._last, ("", name), round(units * MILLI)))

    def _count_zones(self) -> None:
        name = counts.ZONE_TRANSFER
        for topic, traffic in self._node.counters.topics.named().items():
            grown = _grown(self._last, (topic, name), traffic.replicated_across_bytes)
            self.tally.add(name, grown, topic=topic)

    async def _count_objects(self) -> None:
        status = await self._tier.worker_status()
        if status is None:
            return
        if status["incarnation"] != self._worker:
            self._worker = status["incarnation"]
            self._last_of_worker = {}
        totals: dict[str, int] = {}
        for method, _, count in status["requests"]:
            totals[method] = totals.get(method, 0) + count
        totals |= {"sent": status["sent_bytes"], "received": status["received_bytes"]}
        image, of_topics = self._node.view.image, dict.fromkeys(totals, 0)
        for folder, requests, sent_bytes, received_bytes in status["topics"]:
            topic = _topic_name(image, folder)
            found = {**requests, "sent": sent_bytes, "received": received_bytes}
            for what, total in found.items():
                grown = _grown(self._last_of_worker, (folder, what), total)
                self.tally.add(_object_item(what), grown, topic=topic)
                of_topics[what] = of_topics.get(what, 0) + total
        for what, total in totals.items():
            rest = _grown(self._last_of_worker, ("", what), total - of_topics[what])
            self.tally.add(_object_item(what), rest)

    async def _count_storage(self, duration_ms: int) -> None:
        """Charge the leader for the bytes that are in the bucket, for the time until now."""
        if not self._node.standing.can_serve():
            return
        for topic, size_bytes in (await self._tier.stored_bytes(readings_max=READINGS_MAX)).items():
            kb_ms = size_bytes // counts.BYTES_PER_KB * duration_ms
            self.tally.add(counts.OBJECT_STORAGE, kb_ms // MILLI, topic=topic)


def _grown(last: dict[tuple[str, str], int], key: tuple[str, str], value: int) -> int:
    """Return by how much a counter has grown since it was read last."""
    before = last.get(key, 0)
    last[key] = value
    return value - before if value >= before else value


def _object_item(what: str) -> str:
    """Return the item of a method, or of ``sent`` or ``received`` bytes."""
    match what:
        case "sent":
            return counts.OBJECT_SENT
        case "received":
            return counts.OBJECT_RECEIVED
    return OBJECT_METHODS[what]


def _topic_name(image: ClusterImage, folder: str) -> str:
    """Return the name of the topic with a folder in the bucket."""
    name, topic_id = split_topic_folder(folder)
    topic = image.topic_by_id(topic_id)
    if topic is not None:
        return topic.name
    deleted = image.deleted_topics.get(topic_id)
    return name if deleted is None else deleted.name
