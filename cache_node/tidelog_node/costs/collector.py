"""Collects what a node has counted that costs money, from counters that others increment.

Nothing here is on the path of a request: once a minute the counters are read, and what they have
grown by since the last time is a sample. A counter that has become smaller began again, with a new
tier worker or a topic of the same name, and counts from 0. Of topics that are gone nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from tidelog_core.cost import counts
from tidelog_core.cost.collecting import add_bytes, add_requests, milliunits
from tidelog_core.cost.entries import Tally
from tidelog_core.metadata.image import ClusterImage
from tidelog_core.metadata.usage import StoreUsage
from tidelog_core.tier.keys import split_topic_folder
from tidelog_core.turns import Turn

from tidelog_node.node_context import NodeContext

K = TypeVar("K")

READINGS_MAX = 20  # of partitions' segments, each time
SECOND_MS = 1_000
SENT, RECEIVED = "sent", "received"  # bytes, beside requests by method


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
        self._last_of_worker: dict[str, dict[str, int]] = {}  # by folder; "" for all others
        self._worker = ""  # the incarnation of the worker that they are of
        # Of the sample that is being taken; one that is cancelled is part of the next.
        self._tally = Tally()

    async def sample(self) -> Tally:
        """Return what has come since the last time, or since the process began."""
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
        grown_ms = _grown(self._last, ("", self._machine), used_ms)
        self._tally.add(self._machine, grown_ms)
        self._tally.add(counts.MACHINE_VOLUME, grown_ms)

    def _count_units(self) -> None:
        read = sum(usage.costing_read_units for usage in self._usages)
        written = sum(usage.costing_write_units for usage in self._usages)
        for name, units in ((counts.METADATA_READ, read), (counts.METADATA_WRITE, written)):
            self._tally.add(name, _grown(self._last, ("", name), milliunits(units)))

    def _count_zones(self) -> None:
        name, before, now = counts.ZONE_TRANSFER, self._last_of_topics, {}
        for topic, traffic in self._node.counters.topics.named().items():
            key, value = (topic, name), traffic.replicated_across_bytes
            self._tally.add(name, _grown(before, key, value), topic=topic)
            now[key] = value
        self._last_of_topics = now

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
        totals |= {SENT: status["sent_bytes"], RECEIVED: status["received_bytes"]}
        image, rest, turn = self._node.view.image, dict(totals), Turn()
        for folder, requests, sent_bytes, received_bytes in status["topics"]:
            await turn.step()
            found = {**requests, SENT: sent_bytes, RECEIVED: received_bytes}
            for what, count in found.items():
                rest[what] -= count
            last = self._last_of_worker.get(folder, {})
            if any(found.get(what, 0) < count for what, count in last.items()):
                self._join_rest(folder)
            _add_objects(self._tally, self._grown_of(folder, found), _topic_name(image, folder))
        kept = {"", *(folder for folder, *_ in status["topics"])}
        for folder in self._last_of_worker.keys() - kept:
            self._join_rest(folder)
        _add_objects(self._tally, self._grown_of("", rest), None)

    def _join_rest(self, folder: str) -> None:
        """Note that a folder's counters made room: the rest has what they had counted."""
        rest = self._last_of_worker.setdefault("", {})
        for what, count in self._last_of_worker.pop(folder).items():
            rest[what] = rest.get(what, 0) + count

    def _grown_of(self, folder: str, found: Mapping[str, int]) -> dict[str, int]:
        last = self._last_of_worker.setdefault(folder, {})
        return {what: _grown(last, what, count) for what, count in found.items()}

    async def _count_storage(self, duration_ms: int) -> None:
        """Charge the leader for the bytes that are in the bucket, for the time until now."""
        if not self._node.standing.can_serve():
            return
        for topic, size_bytes in (await self._tier.stored_bytes(readings_max=READINGS_MAX)).items():
            kb_ms = size_bytes // counts.BYTES_PER_KB * duration_ms
            self._tally.add(counts.OBJECT_STORAGE, kb_ms // SECOND_MS, topic=topic)


def _grown(last: dict[K, int], key: K, value: int) -> int:
    """Return by how much a counter has grown since it was read last."""
    before = last.get(key, 0)
    last[key] = value
    return value - before if value >= before else value


def _add_objects(tally: Tally, grown: Mapping[str, int], topic: str | None) -> None:
    """Count requests by method, and the bytes that were sent and received."""
    for what, count in grown.items():
        if what not in (SENT, RECEIVED):
            add_requests(tally, what, count, topic=topic)
    add_bytes(tally, sent=grown[SENT], received=grown[RECEIVED], topic=topic)


def _topic_name(image: ClusterImage, folder: str) -> str:
    """Return the name of the topic with a folder in the bucket."""
    name, topic_id = split_topic_folder(folder)
    topic = image.topic_by_id(topic_id)
    if topic is not None:
        return topic.name
    deleted = image.deleted_topics.get(topic_id)
    return name if deleted is None else deleted.name
