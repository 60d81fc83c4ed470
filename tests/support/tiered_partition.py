"""A partition's tier in real stores, as a leader copies it."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from tidelog_core.compaction.segment_writer import SegmentWriter
from tidelog_core.config import NodeConfig, topic_config
from tidelog_core.log.producers.producer_snapshot import encode_snapshot
from tidelog_core.metadata import records
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.leadership import advance_log_start, leadership_of
from tidelog_core.metadata.records import (
    Cluster,
    Partition,
    SegmentMeta,
    SegmentState,
    Topic,
)
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.model import TopicPartition
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.objects.store import ObjectStore
from tidelog_core.records.batch import Record, decode_batch, iter_headers, parse_header
from tidelog_core.restoration.selection import Selection
from tidelog_core.restoration.survey import list_clusters, survey
from tidelog_core.tier.index_build import BuiltIndex, SegmentSource, build_index_file
from tidelog_core.tier.integrity import NO_HASH
from tidelog_core.tier.keys import cluster_manifest_key, segment_keys, topic_manifest_key
from tidelog_core.tier.lifecycle import finish_copy, start_copy
from tidelog_core.tier.manifest import ClusterManifest, TopicManifest
from tidelog_core.tier.planning import finished_segments
from tidelog_core.tier_compaction.partition_tier import PartitionTier
from tidelog_core.verification.plan import BucketPlan, MetadataPlan
from tidelog_core.verification.verification import Verification

from tests.support.clock import NOW_MS, Clock
from tests.support.docs_reader import read_all
from tests.support.random_logs import producers_of

CLUSTER_ID = "cluster-1"
TOPIC = "events"


class TieredPartition:
    """One partition, and a leader's operations on its tier."""

    def __init__(
        self,
        store: MetadataStore,
        objects: ObjectStore,
        folder: Path,
        *,
        configs: dict[str, str] | None = None,
    ) -> None:
        self.store = store
        self.objects = objects
        self.folder = folder
        self.clock = Clock(NOW_MS + 1_000_000)
        self.topic = Topic(
            name=TOPIC,
            topic_id=uuid4(),
            partition_count=1,
            configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
            | (configs or {}),
        )
        self.batches: list[bytes] = []  # all that was copied

    async def create(self) -> None:
        """Write the cluster and the topic, in the metadata and in the bucket."""
        partition = Partition(
            topic_id=self.topic.topic_id,
            partition=0,
            replicas=(1,),
            leader=1,
            leader_epoch=3,
            isr=(1,),
        )
        cluster = Cluster(cluster_id=CLUSTER_ID)
        await self.store.commit([records.put(r) for r in (cluster, partition, self.topic)])
        await self.objects.replace(
            cluster_manifest_key(CLUSTER_ID), ClusterManifest(cluster_id=CLUSTER_ID).to_bytes()
        )
        manifest = TopicManifest(
            name=TOPIC,
            topic_id=self.topic.topic_id,
            partition_count=1,
            created_ms=0,
            replication_factor=1,
            configs=self.topic.configs,
        )
        key = topic_manifest_key(CLUSTER_ID, TOPIC, self.topic.topic_id)
        await self.objects.replace(key, manifest.to_bytes())

    async def copy(
        self,
        batches: Sequence[bytes],
        *,
        previous: SegmentMeta | None = None,
        leader_epoch: int = 3,
    ) -> SegmentMeta:
        """Copy one segment of these batches; those that were not copied follow those before.

        ``previous`` replaces the segment before by the one that a stale leader chains to.
        """
        finished = await self.finished()
        meta = self.describe(batches, leader_epoch=leader_epoch)
        leadership = leadership_of(await self.stored_partition())
        started = await start_copy(self.store, leadership, meta)
        log, index = self.build(started, batches, finished, previous=previous)
        keys = segment_keys(CLUSTER_ID, TOPIC, meta)
        await self.objects.put_file(keys.log, log)
        await self.objects.put(keys.index, index.data)
        return await finish_copy(self.store, leadership, described(started, index))

    def describe(self, batches: Sequence[bytes], *, leader_epoch: int = 3) -> SegmentMeta:
        """Return a new attempt to copy a segment of these batches."""
        base = parse_header(batches[0]).base_offset
        return SegmentMeta(
            topic_id=self.topic.topic_id,
            partition=0,
            base_offset=base,
            end_offset=parse_header(batches[-1]).next_offset,
            leader_epoch=leader_epoch,
            segment_id=uuid4(),
            state=SegmentState.COPY_STARTED,
            size_bytes=sum(map(len, batches)),
            index_size_bytes=0,
            max_timestamp_ms=-1,
            leader_epochs=((3, base),),
            chained_hash="",
            created_ms=self.clock(),
        )

    def build(
        self,
        meta: SegmentMeta,
        batches: Sequence[bytes],
        finished: Sequence[SegmentMeta],
        *,
        previous: SegmentMeta | None = None,
    ) -> tuple[Path, BuiltIndex]:
        """Return the segment's log file and its index."""
        self.batches += [batch for batch in batches if batch not in self.batches]
        base, end = meta.base_offset, meta.end_offset
        producers, aborted = producers_of(self.batches)
        earlier = [segment for segment in finished if segment.base_offset < base]
        before = previous or (earlier[-1] if earlier else None)
        folder = self.folder / str(meta.segment_id)
        folder.mkdir()
        interval_bytes = self.tier().config.index_interval_bytes
        writer = SegmentWriter(folder, base, index_interval_bytes=interval_bytes)
        for batch in batches:
            writer.append(batch)
        writer.seal(end)
        snapshot = folder / "snapshot"
        snapshot.write_bytes(encode_snapshot(producers))
        built = build_index_file(
            SegmentSource(
                topic_id=meta.topic_id,
                partition=0,
                segment_id=meta.segment_id,
                leader_epoch=meta.leader_epoch,
                base_offset=base,
                end_offset=end,
                size_bytes=meta.size_bytes,
                path=writer.path,
                offset_index=writer.offset_index,
                time_index=writer.time_index,
                producer_snapshot=snapshot,
                leader_epochs=meta.leader_epochs,
                aborted=[t for t in aborted if t.first_offset < end and t.last_offset >= base],
                previous_hash=NO_HASH if before is None else bytes.fromhex(before.chained_hash),
                key_filter_records_max=1000,
            )
        )
        return writer.path, built

    async def copy_all(self, batches: Sequence[bytes], cuts: Sequence[int]) -> None:
        """Copy segments of ``cuts`` batches each, then one of all that are left."""
        rest = list(batches)
        for count in cuts:
            some, rest = rest[:count], rest[count:]
            if some:
                await self.copy(some)
        if rest:
            await self.copy(rest)

    async def stored_partition(self) -> Partition:
        """Return the partition as the metadata has it."""
        item = await self.store.get(records.partition_key(self.topic.topic_id, 0))
        assert item is not None
        return Partition.from_item(item)

    async def move_log_start(self, offset: int) -> None:
        """Advance the log start as DeleteRecords does."""
        await advance_log_start(self.store, leadership_of(await self.stored_partition()), offset)

    def tier(
        self, *, store: MetadataStore | None = None, objects: ObjectStore | None = None
    ) -> PartitionTier:
        """Return the partition as its rewriters see it."""
        return PartitionTier(
            store=store or self.store,
            objects=objects or self.objects,
            cluster_id=CLUSTER_ID,
            topic=self.topic,
            partition=0,
            config=topic_config(self.topic.configs, NodeConfig()),
            key_filter_records_max=1000,
            clock_ms=self.clock,
        )

    # -- reading --

    async def metas(self) -> list[SegmentMeta]:
        """Return the segments in any state."""
        items = await self.store.list(records.segment_collection(self.topic.topic_id, 0))
        return [SegmentMeta.from_item(item) for item in items]

    async def finished(self) -> list[SegmentMeta]:
        """Return the segments that readers use."""
        return finished_segments(await self.metas())

    async def object_keys(self) -> set[str]:
        """Return the segment objects in the bucket."""
        prefix = f"{CLUSTER_ID}/{TOPIC}-{self.topic.topic_id}/0/"
        return {found.key async for found in self.objects.list(prefix)}

    async def named_keys(self) -> set[str]:
        """Return the objects of finished segments."""
        keys = [segment_keys(CLUSTER_ID, TOPIC, meta) for meta in await self.finished()]
        return {key for pair in keys for key in (pair.log, pair.index)}

    async def stored_records(self) -> list[Record]:
        """Return every record in the bucket's segments, committed or not, by object key."""
        found: list[Record] = []
        for key in sorted(await self.object_keys()):
            if key.endswith(".log"):
                log = await self.objects.get(key)
                for position, header in iter_headers(log):
                    found += decode_batch(log, position, header)
        return found

    def read_bucket(self) -> list[Any]:
        """Return the committed records in the bucket, read by the script in docs."""
        (found,) = read_all(self.folder / "objects").values()
        return found

    async def select(self) -> Selection:
        """Return the segments that a restoration would select from the bucket."""
        clusters, _ = await list_clusters(self.objects, CLUSTER_ID)
        (topic,) = (await survey(self.objects, clusters[CLUSTER_ID])).topics
        return topic.selections[0]

    async def problems(self) -> list[str]:
        """Return the problems that ``tidelog verify`` finds, with the metadata and without it."""
        clusters, _ = await list_clusters(self.objects, CLUSTER_ID)
        image = await ClusterView(self.store).refresh()
        by_metadata = MetadataPlan(self.store, image, self.objects)
        plans = await by_metadata.partitions([TOPIC])
        found = await by_metadata.strays(clusters[CLUSTER_ID], is_all=True)
        by_bucket = BucketPlan(await survey(self.objects, clusters[CLUSTER_ID]), self.objects)
        found += by_bucket.problems
        for truth, planned in ((by_metadata, plans), (by_bucket, by_bucket.partitions([TOPIC]))):
            verification = Verification(
                cluster_id=CLUSTER_ID, truth=truth, objects=self.objects, on_bytes=lambda _: None
            )
            found += [problem async for problem in verification.run(planned)]
        return [f"{problem.object}: {problem.problem}" for problem in found]


def described(segment: SegmentMeta, index: BuiltIndex) -> SegmentMeta:
    """Return the segment with the fields that come from its index object."""
    return dataclasses.replace(
        segment,
        index_size_bytes=len(index.data),
        max_timestamp_ms=index.max_timestamp_ms,
        chained_hash=index.chained_hash.hex(),
    )


@asynccontextmanager
async def tiered_partition(
    folder: Path, *, configs: dict[str, str] | None = None
) -> AsyncIterator[TieredPartition]:
    """Give an empty partition in SQLite and a folder."""
    store = SqliteMetadataStore(folder / "metadata.db")
    objects = FolderObjectStore(folder / "objects")
    try:
        partition = TieredPartition(store, objects, folder, configs=configs)
        await partition.create()
        yield partition
    finally:
        await objects.close()
        await store.close()


PARTITION = TopicPartition(TOPIC, 0)
