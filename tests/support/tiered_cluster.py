"""A cluster's tiered side on this machine, built from batches: no node is involved."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tidelog_core.log.values import AbortedTransaction, SealedSegment
from tidelog_core.metadata.records import (
    Cluster,
    Partition,
    SegmentMeta,
    SegmentState,
    Topic,
    partition_key,
    put,
)
from tidelog_core.metadata.store import ANY_VERSION, Body, Item, ItemKey, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.records.batch import iter_headers
from tidelog_core.tier.index_build import SegmentSource, build_index_file
from tidelog_core.tier.keys import SegmentKeys, segment_keys

CLUSTER_ID = "tiered-test"


class TieredCluster:
    """Topics whose segments lie in a folder, described in a SQLite file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects = folder / "objects"
        self.objects.mkdir(parents=True)  # as nodes do
        self._topics: dict[str, Topic] = {}
        self._hashes: dict[tuple[str, int], dict[int, bytes]] = {}  # by base offset
        asyncio.run(self._commit(put(Cluster(cluster_id=CLUSTER_ID))))

    @property
    def options(self) -> dict[str, str]:
        """The options that name the stores."""
        return {"metadata": f"sqlite:///{self.database}", "objects": self.objects.as_uri()}

    def create_topic(
        self,
        name: str,
        *,
        partition_count: int = 1,
        is_internal: bool = False,
        configs: Mapping[str, str] | None = None,
    ) -> Topic:
        """Store a topic with empty partitions."""
        topic = Topic(
            name=name,
            topic_id=uuid.uuid4(),
            partition_count=partition_count,
            is_internal=is_internal,
            configs=configs or {},
        )
        self._topics[name] = topic
        writes = [put(topic)]
        writes += [put(_partition(topic, number, 0)) for number in range(partition_count)]
        asyncio.run(self._commit(*writes))
        return topic

    def add_partitions(self, name: str, partition_count: int) -> None:
        """Give a topic more partitions, empty ones."""
        before = self._topics[name]
        topic = self._topics[name] = replace(before, partition_count=partition_count)
        added = range(before.partition_count, partition_count)
        writes = [put(_partition(topic, number, 0)) for number in added]
        asyncio.run(self._commit(*writes, Write(topic.item_id, topic.to_body(), ANY_VERSION)))

    def delete_topic(self, name: str) -> None:
        """Remove the topic's item, as the first step of a deletion does."""
        asyncio.run(self._commit(Write(self._topics[name].item_id, None, ANY_VERSION)))

    def damage(self, key: ItemKey) -> Item:
        """Overwrite a metadata item with nonsense; return it as it was."""
        before = asyncio.run(self._get(key))
        assert before is not None
        self.put_item(key, {"nonsense": 1})
        return before

    def put_item(self, key: ItemKey, body: Body) -> None:
        """Overwrite a metadata item."""
        asyncio.run(self._commit(Write(key, body, ANY_VERSION)))

    def remove_item(self, key: ItemKey) -> None:
        """Delete an item of the metadata."""
        asyncio.run(self._commit(Write(key, None, ANY_VERSION)))

    def set_log_start_offset(self, topic: str, partition: int, offset: int) -> None:
        """Move the start of a partition's log."""
        record = _partition(self._topics[topic], partition, offset)
        key = partition_key(record.topic_id, partition)
        asyncio.run(self._commit(Write(key, record.to_body(), ANY_VERSION)))

    def add_segment(
        self,
        topic: str,
        batches: Sequence[bytes],
        *,
        partition: int = 0,
        end_offset: int | None = None,
        leader_epoch: int = 0,
        aborted: Sequence[AbortedTransaction] = (),
        state: SegmentState = SegmentState.COPY_FINISHED,
        key_filter_records_max: int = 0,
    ) -> SegmentMeta:
        """Store a segment of the batches, its index object and its metadata."""
        log = b"".join(batches)
        headers = [header for _, header in iter_headers(log)]
        path = self.folder / f"{uuid.uuid4()}.log"
        path.write_bytes(log)
        nothing = self.folder / "nothing"
        sealed = SealedSegment(
            base_offset=headers[0].base_offset,
            end_offset=headers[-1].next_offset if end_offset is None else end_offset,
            size_bytes=len(log),
            max_timestamp_ms=max(header.max_timestamp_ms for header in headers),
            path=path,
            offset_index=nothing,
            time_index=nothing,
            txn_index=nothing,
            producer_snapshot=nothing,
            leader_epochs=((leader_epoch, headers[0].base_offset),),
            last_modified_ms=0,
        )
        return self.add_sealed(
            topic,
            sealed,
            partition=partition,
            leader_epoch=leader_epoch,
            aborted=aborted,
            state=state,
            key_filter_records_max=key_filter_records_max,
        )

    def add_sealed(
        self,
        topic: str,
        sealed: SealedSegment,
        *,
        partition: int = 0,
        leader_epoch: int = 0,
        aborted: Sequence[AbortedTransaction] = (),
        state: SegmentState = SegmentState.COPY_FINISHED,
        key_filter_records_max: int = 0,
    ) -> SegmentMeta:
        """Store a sealed segment as it lies on disk, its index object and its metadata."""
        hashes = self._hashes.setdefault((topic, partition), {})
        before = max((base for base in hashes if base < sealed.base_offset), default=None)
        source = SegmentSource.of_sealed(
            sealed,
            topic_id=self._topics[topic].topic_id,
            partition=partition,
            segment_id=uuid.uuid4(),
            leader_epoch=leader_epoch,
            aborted=aborted,
            previous_hash=bytes(32) if before is None else hashes[before],
            key_filter_records_max=key_filter_records_max,
        )
        index = build_index_file(source)
        hashes[sealed.base_offset] = index.chained_hash
        meta = SegmentMeta(
            topic_id=source.topic_id,
            partition=partition,
            base_offset=source.base_offset,
            end_offset=source.end_offset,
            leader_epoch=leader_epoch,
            segment_id=source.segment_id,
            state=state,
            size_bytes=source.size_bytes,
            index_size_bytes=len(index.data),
            max_timestamp_ms=index.max_timestamp_ms,
            leader_epochs=tuple(source.leader_epochs),
            chained_hash=index.chained_hash.hex(),
            created_ms=0,
        )
        asyncio.run(self._upload(self.keys(topic, meta), sealed.path, index.data))
        asyncio.run(self._commit(put(meta)))
        return meta

    def keys(self, topic: str, meta: SegmentMeta) -> SegmentKeys:
        """Return where the segment's objects lie."""
        return segment_keys(CLUSTER_ID, topic, meta)

    @property
    def database(self) -> Path:
        """The file of the metadata."""
        return self.folder / "metadata.db"

    async def _get(self, key: ItemKey) -> Item | None:
        store = SqliteMetadataStore(self.database)
        try:
            return await store.get(key)
        finally:
            await store.close()

    async def _commit(self, *writes: Write) -> None:
        store = SqliteMetadataStore(self.database)
        try:
            await store.commit(writes)
        finally:
            await store.close()

    async def _upload(self, keys: SegmentKeys, log: Path, index: bytes) -> None:
        store = FolderObjectStore(self.objects)
        try:
            await store.put_file(keys.log, log)
            await store.put(keys.index, index)
        finally:
            await store.close()


def _partition(topic: Topic, number: int, log_start_offset: int) -> Partition:
    return Partition(
        topic_id=topic.topic_id,
        partition=number,
        replicas=(1,),
        leader=1,
        leader_epoch=0,
        isr=(1,),
        log_start_offset=log_start_offset,
    )
