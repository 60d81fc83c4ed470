"""Reads the leader epochs and producer state below an offset from the tier's segments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.model import TopicPartition
from tidelog_core.replication.tier_start import TierEnd
from tidelog_core.tier.contents import read_tier
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.keys import segment_keys
from tidelog_core.tier.tiered_segments import TieredSegments


class SegmentIndexes(Protocol):
    """The index objects of tiered segments; ``IndexCache``."""

    async def get(self, segment: SegmentMeta, key: str) -> IndexFile:
        """Return the segment's index. Raises ``CorruptObject`` and the store's errors."""


@dataclass(frozen=True, slots=True)
class LogPast:
    """Leader epochs and producer state of the records before an offset."""

    leader_epochs: tuple[tuple[int, int], ...]  # (epoch, start offset), ascending
    producer_snapshot: bytes | None  # None: no segment ends at the offset, or it has none


class TierHistory:
    """Reads segments' metadata and index objects. For the tasks of one event loop."""

    def __init__(self, *, store: MetadataStore, indexes: SegmentIndexes, view: ClusterView) -> None:
        self._store = store
        self._indexes = indexes
        self._view = view

    async def segments(self, topic_id: UUID, partition: int) -> TieredSegments:
        """Return the finished segments.

        Raises ``StoreUnavailable`` and ``TierRewritten``.
        """
        return (await read_tier(self._store, topic_id, partition)).finished

    async def past(
        self, partition: TopicPartition, segments: TieredSegments, offset: int
    ) -> LogPast:
        """Return the leader epochs and producer state in ``segments`` before ``offset``.

        Raises the errors of ``SegmentIndexes.get``.
        """
        epochs: dict[int, int] = {}
        for segment in segments:
            for epoch, start_offset in segment.leader_epochs:
                if start_offset < offset:
                    epochs.setdefault(epoch, start_offset)
        last = segments.ending_at(offset)
        snapshot: bytes | None = None
        if last is not None:
            keys = segment_keys(self._view.image.cluster_id, partition.topic, last)
            index = await self._indexes.get(last, keys.index)
            snapshot = bytes(index.producer_snapshot)
        return LogPast(tuple(sorted(epochs.items())), snapshot or None)


def tier_end(segments: TieredSegments, log_start_offset: int) -> TierEnd | None:
    """Return the end of the tier's contiguous part, ``None`` if that is empty."""
    end_offset = segments.tiered_end(log_start_offset)
    last = segments.ending_at(end_offset)
    if end_offset <= log_start_offset or last is None:
        return None
    return TierEnd(end_offset, last.leader_epochs[-1][0], log_start_offset)
