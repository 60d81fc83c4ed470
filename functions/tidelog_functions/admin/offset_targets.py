"""Offsets for a reset of a group, as far as they can be found without a broker.

The metadata store has a log's start, the tier its records from there up to some offset
without a gap. Only the leader knows the log's end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tidelog_core.errors import ErrorCode, InvalidRequest, TidelogError
from tidelog_core.metadata.records import Partition, SegmentMeta
from tidelog_core.model import TopicPartition
from tidelog_core.objects.store import ObjectStore
from tidelog_core.records.batch import find_record
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.keys import segment_keys
from tidelog_core.tier.tiered_segments import TieredSegments
from tidelog_core.tier.time_search import find_tiered_offset, parse_index_of

from tidelog_functions.admin.cluster import AdminCluster

TargetKind = Literal["earliest", "latest", "offset", "timestamp"]


class OnlyLeaderKnows(TidelogError):
    """The answer depends on records that are not tiered yet."""

    code = ErrorCode.invalid_request


class BelowLogStart(TidelogError):
    """The offset is below the log start offset."""

    code = ErrorCode.offset_out_of_range


@dataclass(frozen=True, slots=True)
class Target:
    """A target; ``number`` is the offset, or the time in Unix milliseconds."""

    kind: TargetKind
    number: int = 0


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """The target's offset in one partition."""

    offset: int
    is_verified: bool  # False: it may be beyond the log's end


def parse_target(body: Mapping[str, Any]) -> Target:
    """Parse the body of a reset. Raises ``InvalidRequest``."""
    kind: TargetKind = body["to"]
    needed = {"offset": "offset", "timestamp": "timestamp_ms"}.get(kind)
    for name in ("offset", "timestamp_ms"):
        if (name in body) != (name == needed):
            raise InvalidRequest(
                f"A reset to {kind} {'needs' if name == needed else 'takes no'} '{name}'."
            )
    return Target(kind, 0 if needed is None else body[needed])


async def find_offset(
    cluster: AdminCluster, name: TopicPartition, partition: Partition, target: Target
) -> FoundOffset:
    """Return the target's offset in the partition.

    Raises ``OnlyLeaderKnows``, ``BelowLogStart``, and for damaged or missing objects
    ``CorruptObject`` and ``ObjectNotFound``.
    """
    start = partition.log_start_offset
    if target.kind == "earliest":
        return FoundOffset(start, is_verified=True)
    if target.kind == "latest":
        raise _only_leader(cluster, name, partition, "where the log ends")
    segments = TieredSegments(await cluster.segments(partition))
    tiered_end = segments.tiered_end(start)
    if target.kind == "offset":
        if target.number < start:
            raise BelowLogStart(
                f"Offset {target.number} of {name} is before the log start offset {start}."
            )
        return FoundOffset(target.number, is_verified=target.number <= tiered_end)
    found = await _TierReader(
        cluster.objects(), cluster.view.image.cluster_id, name.topic, target.number, start
    ).find(segments)
    if found is None or found >= tiered_end:
        which = f"the first record at or after {target.number}, which is not below {tiered_end}"
        raise _only_leader(cluster, name, partition, which)
    return FoundOffset(found, is_verified=True)


@dataclass(frozen=True, slots=True)
class _TierReader:
    """Reads index objects, and the batches that may contain the record."""

    objects: ObjectStore
    cluster_id: str
    topic: str
    timestamp_ms: int
    start_offset: int

    async def find(self, segments: TieredSegments) -> int | None:
        found = await find_tiered_offset(
            segments,
            self.timestamp_ms,
            start_offset=self.start_offset,
            index_of=self._index,
            search_batch=self._search,
        )
        return None if found is None else found[1]

    async def _index(self, segment: SegmentMeta) -> IndexFile:
        key = segment_keys(self.cluster_id, self.topic, segment).index
        return parse_index_of(segment, await self.objects.get(key), key=key)

    async def _search(
        self, segment: SegmentMeta, index: IndexFile, row: int
    ) -> tuple[int, int] | None:
        key = segment_keys(self.cluster_id, self.topic, segment).log
        batch = index.batches[row]
        end = batch.position + batch.size_bytes
        data = await self.objects.get_range(key, batch.position, end)
        return find_record(data, self.timestamp_ms, self.start_offset)


def _only_leader(
    cluster: AdminCluster, name: TopicPartition, partition: Partition, what: str
) -> OnlyLeaderKnows:
    broker = cluster.view.image.brokers.get(partition.leader)
    leader = "none at the moment" if broker is None else f"broker {broker.broker_id}"
    at = "" if broker is None else f" at {broker.endpoint}"
    return OnlyLeaderKnows(
        f"Only the leader of {name} ({leader}{at}) knows {what}. Ask it with any Kafka client,"
        " such as `tidelog group reset-offsets`, or reset to earliest or to an offset."
    )
