"""Runs the planner, and loads the index objects that it requests."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

import numpy as np
from tidelog_core.errors import CorruptObject
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.model import TopicPartition
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.index_file import IndexFile

from tidelog_spark.options.read_options import ReadOptions
from tidelog_spark.planning.plan import MissingIndexes, Plan, plan
from tidelog_spark.stores.catalog import Catalog, gather
from tidelog_spark.stores.partition_log import PartitionLog, SegmentIndex

logger = logging.getLogger(__name__)

# A row of the index object's batch table.
_BATCH_ROW = np.dtype(
    [
        ("base_offset", "<i8"),
        ("last_offset", "<i8"),
        ("max_timestamp_ms", "<i8"),
        ("position", "<u4"),
        ("size_bytes", "<u4"),
        ("record_count", "<u4"),
        ("flags", "<u4"),
    ]
)


async def run_plan(
    options: ReadOptions,
    catalog: Catalog,
    logs: Sequence[PartitionLog],
    objects: ObjectStore,
    *,
    problems: Sequence[str] = (),
) -> Plan:
    """Return the splits of the logs; logs a warning for each tolerated loss.

    ``problems`` are losses found before. Raises the errors of ``plan``, and
    ``ObjectNotFound`` and ``CorruptObject`` for index objects.
    """
    indexes: dict[UUID, SegmentIndex] = {}
    while True:
        answer = plan(options, logs, indexes, key_of=catalog.log_key, problems=problems)
        if isinstance(answer, Plan):
            for warning in answer.warnings:
                logger.warning("skipped lost offsets", extra={"reason": warning})
            return answer
        indexes |= await _load_indexes(objects, catalog, answer)


async def _load_indexes(
    objects: ObjectStore, catalog: Catalog, missing: MissingIndexes
) -> dict[UUID, SegmentIndex]:
    async def load(one: tuple[TopicPartition, SegmentMeta]) -> SegmentIndex:
        partition, segment = one
        key = catalog.index_key(partition, segment)
        return parse_index(await objects.get(key), key, segment)

    loaded = await gather(load, missing.segments)
    ids = [segment.segment_id for _, segment in missing.segments]
    return dict(zip(ids, loaded, strict=True))


def parse_index(data: bytes, key: str, segment: SegmentMeta) -> SegmentIndex:
    """Parse an index object for planning.

    Raises ``CorruptObject`` if it is damaged or belongs to another segment.
    """
    index = IndexFile.parse(data, key=key)
    if index.segment_id != segment.segment_id or index.log_size_bytes != segment.size_bytes:
        raise CorruptObject(
            key,
            f"it describes segment {index.segment_id} of {index.log_size_bytes} bytes, not"
            f" {segment.segment_id} of {segment.size_bytes}",
        )
    rows = np.frombuffer(index.batches.buffer, dtype=_BATCH_ROW)
    found = SegmentIndex(
        base_offsets=rows["base_offset"].astype(np.int64),
        last_offsets=rows["last_offset"].astype(np.int64),
        positions=rows["position"].astype(np.int64),
        sizes=rows["size_bytes"].astype(np.int64),
        max_timestamps=rows["max_timestamp_ms"].astype(np.int64),
        aborted=index.aborted,
        key_filter=index.key_filter,
    )
    ends = np.concatenate((found.positions[1:], [segment.size_bytes]))
    if len(rows) and (found.positions[0] != 0 or np.any(found.positions + found.sizes != ends)):
        raise CorruptObject(key, "its batches leave gaps in the segment")
    return found
