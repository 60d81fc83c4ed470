"""Segments and their items as values, and a store of them that changes while it is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID, uuid4

from tidelog_core.log.values import SealedSegment
from tidelog_core.metadata import records
from tidelog_core.metadata.records import Partition, SegmentMeta, SegmentState
from tidelog_core.metadata.rewrite_claims import RewriteClaim
from tidelog_core.metadata.store import (
    ALL_KEYS,
    COMMIT_WRITES_MAX,
    Item,
    KeyRange,
    MetadataStore,
)
from tidelog_core.tier.contents import PAGE_ITEMS_MAX

from tests.support.memory_store import MemoryMetadataStore


def segment_meta(base: int = 42, end: int = 100, **fields: object) -> SegmentMeta:
    """Return the item of a segment of ``[base, end)``; by default its copy is finished."""
    values: dict[str, object] = {
        "topic_id": UUID(int=7),
        "partition": 3,
        "base_offset": base,
        "end_offset": end,
        "leader_epoch": 5,
        "segment_id": uuid4(),
        "state": SegmentState.COPY_FINISHED,
        "size_bytes": 1000,
        "index_size_bytes": 100,
        "max_timestamp_ms": 1,
        "leader_epochs": ((5, base),),
        "chained_hash": "00" * 32,
        "created_ms": 2,
    }
    return SegmentMeta(**{**values, **fields})  # type: ignore[arg-type]


TOPIC_ID, PARTITION = segment_meta().topic_id, segment_meta().partition


async def put_segments(store: MetadataStore, metas: Sequence[SegmentMeta]) -> None:
    """Store the items, in as many commits as needed."""
    for at in range(0, len(metas), COMMIT_WRITES_MAX):
        some = metas[at : at + COMMIT_WRITES_MAX]
        await store.commit([records.put(one, is_logged=False) for one in some])


class SwappingStore(MemoryMetadataStore):
    """Has the first segments replaced by one, as compaction does, behind the back of a reader."""

    def __init__(self, metas: Sequence[SegmentMeta], *, swap_count: int) -> None:
        super().__init__(latency=0)
        self.metas = list(metas)
        self.swap_count = swap_count
        self.claim = RewriteClaim(
            topic_id=TOPIC_ID, partition=PARTITION, rewrite_epoch=1, holder=uuid4(), expires_ms=0
        )

    async def list(
        self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
    ) -> list[Item]:
        found = await super().list(collection, prefix=prefix, keys=keys)
        if not keys.start and self.swap_count:
            self.swap_count -= 1
            await self.swap()
        return found

    async def swap(self) -> None:
        """Replace the last segment of the first page and the first one of the second."""
        # The new one begins where a segment of the page begins that has been read.
        old = self.metas[PAGE_ITEMS_MAX - 1 : PAGE_ITEMS_MAX + 1]
        new = segment_meta(old[0].base_offset, old[1].end_offset)
        self.metas[PAGE_ITEMS_MAX - 1 : PAGE_ITEMS_MAX + 1] = [new]
        gone = [dataclasses.replace(one, state=SegmentState.DELETE_STARTED) for one in old]
        gone = [dataclasses.replace(one, version=1) for one in gone]
        await self.commit([records.put(one) for one in (*gone, new, self.claim)])
        self.claim = dataclasses.replace(self.claim, version=self.claim.version + 1)


def neighbours(count: int) -> list[SegmentMeta]:
    """Return the items of segments of ten offsets each, without a gap."""
    return [segment_meta(10 * number, 10 * number + 10) for number in range(count)]


def sealed_segment(base: int, end: int, *, size: int = 100, newest_ms: int = 0) -> SealedSegment:
    """Return a sealed segment of a local log, which has no files."""
    path = Path(f"/nowhere/{base}")
    return SealedSegment(base, end, size, newest_ms, path, path, path, path, path, (), newest_ms)


def partition_item(**fields: object) -> Partition:
    """Return the item of the segments' partition; by default broker 1 leads it."""
    values: dict[str, object] = {
        "topic_id": UUID(int=7),
        "partition": 3,
        "replicas": (1, 2),
        "leader": 1,
        "leader_epoch": 5,
        "isr": (1, 2),
        "log_start_offset": 10,
    }
    return Partition(**{**values, **fields})  # type: ignore[arg-type]
