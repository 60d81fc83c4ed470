"""Sealed segments on disk, made without a log."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from struct import Struct
from uuid import UUID, uuid4

from tidelog_core.log.values import AbortedTransaction
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.records.batch import CompressionType, Record, build_batch
from tidelog_core.tier.index_build import BuiltIndex, RewriteFacts, SegmentSource, build_index_file
from tidelog_core.tier.integrity import NO_HASH
from tidelog_core.tier.keys import segment_keys, topic_manifest_key
from tidelog_core.tier.manifest import TopicManifest

TOPIC_ID = UUID("5f6dc6a4-35d9-4f1c-9d6c-1f0a3d3a9d11")
SEGMENT_ID = UUID("0a3b7b4e-6f8e-4a53-93f1-0d8a8d2f7c22")
BASE_TIMESTAMP_MS = 1_700_000_000_000
RECORDS_PER_BATCH = 10


def numbered_batch(
    base_offset: int,
    *,
    count: int = RECORDS_PER_BATCH,
    value_size: int = 20,
    compression: CompressionType = CompressionType.NONE,
    timestamp_ms: int | None = None,
) -> bytes:
    """Return a batch whose record at offset n has key ``k<n>`` and timestamp base + n."""
    records = [
        Record(
            offset=offset,
            timestamp_ms=BASE_TIMESTAMP_MS + offset if timestamp_ms is None else timestamp_ms,
            key=f"k{offset}".encode(),
            value=bytes([offset % 251]) * value_size,
            headers=(),
        )
        for offset in range(base_offset, base_offset + count)
    ]
    return build_batch(records, base_offset=base_offset, compression=compression, leader_epoch=3)


def write_source(
    folder: Path,
    batches: list[bytes],
    *,
    base_offset: int,
    end_offset: int,
    aborted: tuple[AbortedTransaction, ...] = (),
    previous_hash: bytes = NO_HASH,
    key_filter_records_max: int = 1_000_000,
    segment_id: UUID = SEGMENT_ID,
    time_index: bytes | None = None,
    rewrite: RewriteFacts | None = None,
) -> SegmentSource:
    """Write the files of a sealed segment; the time index has an entry per batch."""
    stem = folder / f"{base_offset:020d}"
    log, index, times, snapshot = (
        stem.with_suffix(suffix) for suffix in (".log", ".index", ".timeindex", ".snapshot")
    )
    log.write_bytes(b"".join(batches))
    index.write_bytes(Struct(">II").pack(0, 0))
    if time_index is None:
        entry = Struct(">qI")
        time_index = b"".join(
            entry.pack(
                BASE_TIMESTAMP_MS + base_offset + (n + 1) * RECORDS_PER_BATCH - 1,
                n * RECORDS_PER_BATCH,
            )
            for n in range(len(batches))
        )
    times.write_bytes(time_index)
    snapshot.write_bytes(b"producers")
    return SegmentSource(
        topic_id=TOPIC_ID,
        partition=4,
        segment_id=segment_id,
        leader_epoch=3,
        base_offset=base_offset,
        end_offset=end_offset,
        size_bytes=log.stat().st_size,
        path=log,
        offset_index=index,
        time_index=times,
        producer_snapshot=snapshot,
        leader_epochs=((1, base_offset), (3, base_offset + 5)),
        aborted=aborted,
        previous_hash=previous_hash,
        key_filter_records_max=key_filter_records_max,
        rewrite=rewrite,
    )


def put_segment(
    objects: Path,
    bases: range,
    *,
    previous: bytes = NO_HASH,
    leader_epoch: int = 3,
    value_size: int = 20,
    epochs: tuple[tuple[int, int], ...] | None = None,
    end_offset: int | None = None,
    rewrite: RewriteFacts | None = None,
) -> BuiltIndex:
    """Put a segment with a batch of ten records at each of the offsets; return its index."""
    sources = objects.parent / f"source-{uuid4()}"
    sources.mkdir()
    end_offset = bases[-1] + 10 if end_offset is None else end_offset
    source = write_source(
        sources,
        [numbered_batch(base, value_size=value_size) for base in bases],
        base_offset=bases[0],
        end_offset=end_offset,
        previous_hash=previous,
        segment_id=uuid4(),
        aborted=(AbortedTransaction(1, 0, 1, 1),),
        rewrite=rewrite,
    )
    source = dataclasses.replace(
        source,
        leader_epoch=leader_epoch,
        leader_epochs=((1, bases[0]),) if epochs is None else epochs,
    )
    built = build_index_file(source)
    meta = SegmentMeta(
        topic_id=TOPIC_ID,
        partition=4,
        base_offset=bases[0],
        end_offset=end_offset,
        leader_epoch=leader_epoch,
        segment_id=source.segment_id,
        state=SegmentState.COPY_FINISHED,
        size_bytes=source.size_bytes,
        index_size_bytes=len(built.data),
        max_timestamp_ms=built.max_timestamp_ms,
        leader_epochs=source.leader_epochs,
        chained_hash=built.chained_hash.hex(),
        created_ms=0,
    )
    keys = segment_keys("cluster", "t", meta)
    (objects / keys.log).parent.mkdir(parents=True, exist_ok=True)
    (objects / keys.log).write_bytes(source.path.read_bytes())
    (objects / keys.index).write_bytes(built.data)
    manifest = TopicManifest(
        name="t", topic_id=TOPIC_ID, partition_count=5, created_ms=0, replication_factor=None
    )
    (objects / topic_manifest_key("cluster", "t", TOPIC_ID)).write_bytes(manifest.to_bytes())
    return built
