"""The parts of a node that the tier uses, all real: logs, metadata, worker, folders."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from tidelog_core.config import NodeConfig
from tidelog_core.errors import ObjectNotFound
from tidelog_core.log.record_source import ReadLimits
from tidelog_core.log.unified_log import RemoteRead
from tidelog_core.log.values import LogRead
from tidelog_core.metadata import records
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Partition, SegmentMeta, SegmentState, Topic
from tidelog_core.metadata.store import ANY_VERSION, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.model import FileSlice, TopicPartition
from tidelog_core.objects.location import open_object_store
from tidelog_core.records.batch import iter_headers, patch
from tidelog_core.replication.placement.heirs import wants_diskless
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.integrity import verify_segment
from tidelog_core.tier.keys import segment_keys
from tidelog_node.erasure.evicting_eraser import EvictingEraser
from tidelog_node.inspection.inspector import BatchInspector
from tidelog_node.logs.directories import LogDirectories
from tidelog_node.membership.registration import ensure_cluster, register_broker
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.tier.service import TierService
from tidelog_node.upkeep.log_changes import LogChanges

from tests.support.clock import Clock
from tests.support.node_context import node_context
from tests.support.tier_chain import verify_chain
from tests.support.tier_segments import BASE_TIMESTAMP_MS, numbered_batch

BROKER_ID = 1
TOPIC = "events"
START_MS = BASE_TIMESTAMP_MS + 10_000  # a little after the records
READY_TIMEOUT_S = 30.0
SETTLE_TIMEOUT_S = 120.0
PUBLISH_SECONDS = 0.02

CONFIG = NodeConfig(
    remote_chunk_bytes=4096,
    remote_cache_bytes=1 << 20,
    remote_task_interval_ms=20,
    log_retention_check_interval_ms=3_600_000,  # tests call it themselves
)


class TierNode:
    """One broker's logs and tier in a folder. Made by ``running_node``."""

    def __init__(self, folder: Path, config: NodeConfig, objects_url: str | None = None) -> None:
        self.folder = folder
        self.config = config
        self.clock = Clock(START_MS)
        self.is_clock_trusted = True
        self.objects_folder = folder / "objects"
        self.objects_url = objects_url or f"file://{self.objects_folder}"
        self.run_folder = Path(tempfile.mkdtemp(prefix="tl-"))  # sockets need short paths

    async def start(self) -> None:
        self.store = SqliteMetadataStore(self.folder / "metadata.db")
        await ensure_cluster(self.store)
        await register_broker(
            self.store,
            broker_id=BROKER_ID,
            incarnation=uuid4(),
            endpoints=plaintext_endpoints("127.0.0.1", 1),
            rack=None,
        )
        self.view = ClusterView(self.store)
        await self.view.refresh()
        self.executor = ThreadPoolExecutor(2)
        self.directories = LogDirectories(self.folder / "data")
        self.context = node_context(
            self.store,
            self.view,
            broker_id=BROKER_ID,
            config=lambda: self.config,
            executor=self.executor,
            clock_ms=self.clock,
            may_expire=lambda: self.is_clock_trusted,
        )
        self.replicas = ReplicaManager(self.context, directories=self.directories)
        self.tier = TierService(
            self.context,
            replicas=self.replicas,
            inspector=BatchInspector(),
            objects_url=self.objects_url,
            socket=self.run_folder / "tier.sock",
            cache_dir=self.folder / "cache",
            honour_erasures=EvictingEraser(self.context, replicas=self.replicas).honour,
        )
        await self.replicas.start(remote_of=self.tier.remote_log)
        for replica in self.replicas.replicas():
            replica.log.advance_high_watermark(replica.log.log_end_offset)
        self.changes = LogChanges(self.replicas, unchanged_count=0, interval_s=PUBLISH_SECONDS)
        self.changes.subscribe(self.tier.on_changed)
        self.telling = asyncio.create_task(self.changes.run())
        await self.tier.start()
        await self.tier.client.wait_ready(READY_TIMEOUT_S)
        with contextlib.suppress(ObjectNotFound):  # Calls wait until the store is recognized.
            await self.tier.client.head("none")

    async def stop(self) -> None:
        self.telling.cancel()
        await self.tier.close()
        await self.replicas.close()
        self.directories.close()
        await self.store.close()
        self.executor.shutdown()
        shutil.rmtree(self.run_folder)

    # -- the cluster --

    async def create_topic(
        self, name: str = TOPIC, *, configs: Mapping[str, str] | None = None
    ) -> Replica:
        topic = Topic(name=name, topic_id=uuid4(), partition_count=1, configs=dict(configs or {}))
        partition = Partition(
            topic_id=topic.topic_id,
            partition=0,
            replicas=(BROKER_ID,),
            leader=BROKER_ID,
            leader_epoch=0,
            isr=(BROKER_ID,),
            acked_by=records.AckedBy.CHAIN if wants_diskless(topic) else None,
        )
        await self.store.commit([records.put(partition), records.put(topic)])
        await self.view.refresh()
        return self.replica(name)

    async def configure(self, configs: Mapping[str, str], name: str = TOPIC) -> None:
        topic = self.view.image.topics[name]
        await self.store.commit([records.put(dataclasses.replace(topic, configs=dict(configs)))])
        await self.view.refresh()

    async def delete_topic(self, name: str = TOPIC) -> None:
        await self.store.commit([records.delete(self.view.image.topics[name])])
        await self.view.refresh()

    async def change_partition(self, replica: Replica, **changes: object) -> None:
        """Change the partition's item without telling this node's view."""
        key = records.partition_key(replica.topic_id, replica.partition.partition)
        item = await self.store.get(key)
        assert item is not None
        changed = dataclasses.replace(Partition.from_item(item), **changes)  # type: ignore[arg-type]
        await self.store.commit([Write(key, changed.to_body(), ANY_VERSION)])

    def replica(self, name: str = TOPIC) -> Replica:
        found = self.replicas.get(TopicPartition(name, 0))
        assert found is not None
        return found

    # -- records --

    def produce(self, replica: Replica, batch_count: int, *, value_size: int = 50) -> bytes:
        """Append batches of 10 records; return their bytes as the log has them."""
        start = replica.log.log_end_offset
        produced = b""
        for number in range(batch_count):
            data = bytearray(numbered_batch(start + 10 * number, value_size=value_size))
            patch(data, 0, base_offset=0, leader_epoch=-1)  # as a client sends it
            replica.append(data)
            produced += data
        return produced

    def produce_segments(
        self, replica: Replica, count: int, *, batch_count: int = 5, flushes: bool = True
    ) -> list[bytes]:
        """Append and seal segments; return the bytes of each."""
        segments = []
        for _ in range(count):
            segments.append(self.produce(replica, batch_count))
            replica.log.roll()
        if flushes:
            replica.log.flush()
        return segments

    # -- the tier --

    async def metas(self, replica: Replica) -> list[SegmentMeta]:
        collection = records.segment_collection(replica.topic_id, 0)
        return [SegmentMeta.from_item(item) for item in await self.store.list(collection)]

    async def finished(self, replica: Replica) -> list[SegmentMeta]:
        return [
            meta for meta in await self.metas(replica) if meta.state is SegmentState.COPY_FINISHED
        ]

    async def wait_copied(self, replica: Replica, count: int) -> list[SegmentMeta]:
        """Wait until ``count`` segments are tiered and no copy is in progress."""
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while True:
                metas = await self.metas(replica)
                finished = await self.finished(replica)
                if (
                    len(finished) == len(metas) == count
                    and not self.tier.status["copying_partition_count"]
                ):
                    return finished
                await asyncio.sleep(0.01)

    async def objects(self) -> dict[str, bytes]:
        """Return the segment objects that are in the store."""
        store = open_object_store(self.objects_url)
        try:
            keys = [meta.key async for meta in store.list("")]
            found = {}
            for key in keys:
                with contextlib.suppress(ObjectNotFound):  # It is removed at this moment.
                    found[key] = await store.get(key)
            return {key: content for key, content in found.items() if not key.endswith(".json")}
        finally:
            await store.close()

    async def verify(self, replica: Replica) -> list[bytes]:
        """Check the tiered segments with nothing but the bucket; return their bytes."""
        objects, chain, logs = await self.objects(), [], []
        for meta in await self.finished(replica):
            keys = segment_keys(self.view.image.cluster_id, replica.partition.topic, meta)
            index = IndexFile.parse(objects[keys.index], key=keys.index)
            verify_segment(keys.log, objects[keys.log], index)
            assert index.chained_hash.hex() == meta.chained_hash
            chain.append((keys.index, index))
            logs.append(objects[keys.log])
        verify_chain(chain)
        return logs

    async def read(self, replica: Replica, offset: int, **limits: Any) -> LogRead:
        """Read within ``ReadLimits`` from the tier, even if the local log has the records."""
        log = replica.log
        remote = self.tier.remote_log(replica)
        read = RemoteRead(log, remote, offset, ReadLimits(**limits), log.high_watermark)
        return read.found or await read.wait()

    async def read_all(self, replica: Replica, offset: int, end: int, *, max_bytes: int) -> bytes:
        """Read from the tier as a consumer does, from one response to the next."""
        data = b""
        while offset < end:
            read = await self.read(replica, offset, max_bytes=max_bytes)
            assert read.slice is not None
            part = slice_bytes(read.slice)
            headers = [header for _, header in iter_headers(part)]
            assert headers[0].base_offset == read.start_offset <= offset
            assert len(part) <= max_bytes or len(headers) == 1
            offset = headers[-1].next_offset
            data += part
        return data


def slice_bytes(found: FileSlice) -> bytes:
    return os.pread(found.file.fileno(), found.size_bytes, found.position)


@asynccontextmanager
async def running_node(
    folder: Path, config: NodeConfig = CONFIG, objects_url: str | None = None
) -> AsyncIterator[TierNode]:
    node = TierNode(folder, config, objects_url)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()
