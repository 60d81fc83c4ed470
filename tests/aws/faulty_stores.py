"""Nodes between which and AWS's stores everything may go wrong, and what tests ask of them.

The proxies run in a thread of their own, so that a test may wait for a client meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tidelog_core.metadata import records
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.metadata.stores.dynamodb import DynamoDbMetadataStore
from tidelog_core.objects.s3 import S3ObjectStore
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.integrity import verify_segment
from tidelog_core.tier.keys import segment_keys

from tests.aws.buckets import REGION, make_bucket
from tests.support.node_process import NodeProcess
from tests.support.store_proxy import DYNAMODB, S3, STORE_PASSES, StoreBehaviour, StoreProxy
from tests.support.tier_chain import verify_chain

BUCKET = "tidelog-faults"
SEGMENT_BYTES = 50_000
VALUE_SIZE = 2_500
SETTLE_SECONDS_MAX = 60.0
CONFIG = {
    "remote.task.interval.ms": "100",
    "remote.chunk.bytes": "65536",
    "remote.cache.bytes": "8388608",
    "log.retention.check.interval.ms": "500",
}


@dataclass(frozen=True, slots=True)
class Tiered:
    """What the stores say of one partition."""

    metas: list[SegmentMeta]
    objects: dict[str, bytes]  # of the topic, the manifest left out
    cluster_id: str


@dataclass(slots=True)
class FaultyNode:
    """One node, with its tier worker, and the proxies before its stores."""

    process: NodeProcess
    s3: StoreProxy
    dynamodb: StoreProxy
    table: str
    prefix: str
    dynamodb_endpoint: str  # the store itself
    s3_endpoint: str
    loop: asyncio.AbstractEventLoop
    produced: dict[str, list[bytes]] = field(default_factory=dict)

    def behave(
        self, *, s3: StoreBehaviour = STORE_PASSES, dynamodb: StoreBehaviour = STORE_PASSES
    ) -> None:
        """Treat the node's requests like this from now on."""
        for proxy, behaviour in ((self.s3, s3), (self.dynamodb, dynamodb)):
            self.loop.call_soon_threadsafe(proxy.behave, behaviour)

    def create(self, *, partitions: int = 1, **config: str) -> str:
        """Create a topic that keeps on disk no more than it must, and return its name."""
        name = f"t-{uuid.uuid4().hex[:8]}"
        configs = {"segment.bytes": str(SEGMENT_BYTES), "local.retention.bytes": "1", **config}
        admin = AdminClient({"bootstrap.servers": self.process.address})
        admin.create_topics([NewTopic(name, partitions, 1, config=configs)])[name].result(60)
        return name

    def produce(self, topic: str, count: int, *, partition: int = 0) -> None:
        """Append records, all acknowledged on return, and remember them."""
        known = self.produced.setdefault(f"{topic}-{partition}", [])
        values = [
            b"%s-%d-%06d" % (topic.encode(), partition, len(known) + number)
            + os.urandom(VALUE_SIZE)
            for number in range(count)
        ]
        failures: list[object] = []
        producer = Producer(
            {
                "bootstrap.servers": self.process.address,
                "acks": "all",
                "enable.idempotence": True,
                "batch.size": 10_000,
            }
        )
        for value in values:
            producer.produce(
                topic,
                value,
                partition=partition,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert producer.flush(30) == 0, self.process.log[-3000:]
        assert failures == []
        known += values

    def consume(self, topic: str, *, partition: int = 0, offset: int = 0) -> None:
        """Read to the end and compare with what was produced."""
        expected = self.produced[f"{topic}-{partition}"][offset:]
        consumer = Consumer(
            {
                "bootstrap.servers": self.process.address,
                "group.id": uuid.uuid4().hex,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
            }
        )
        consumer.assign([TopicPartition(topic, partition, offset)])
        found: list[bytes | None] = []
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        try:
            while len(found) < len(expected):
                assert time.monotonic() < deadline, self.process.log[-3000:]
                for message in consumer.consume(len(expected) - len(found), timeout=0.5):
                    assert message.error() is None, message.error()
                    assert message.offset() == offset + len(found)
                    found.append(message.value())
        finally:
            consumer.close()
        assert found == expected

    def local_segments(self, topic: str, *, partition: int = 0) -> list[int]:
        """Return the base offsets of the segments on the node's disk."""
        folder = self.process.data_dir / f"{topic}-{partition}"
        return sorted(int(path.stem) for path in folder.glob("*.log"))

    def wait_drained(self, topic: str, *, partition: int = 0) -> None:
        """Wait until all but the active segment are in the tier and nowhere else."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while len(self.local_segments(topic, partition=partition)) > 1:
            assert time.monotonic() < deadline, self.process.log[-3000:]
            time.sleep(0.05)

    def tiered(self, topic: str, *, partition: int = 0) -> Tiered:
        """Ask the stores themselves what there is of the partition."""
        return asyncio.run(self._tiered(topic, partition))

    async def _tiered(self, topic: str, partition: int) -> Tiered:
        store = DynamoDbMetadataStore(self.table, region=REGION, endpoint=self.dynamodb_endpoint)
        bucket = S3ObjectStore(BUCKET, prefix=self.prefix, endpoint=self.s3_endpoint)
        try:
            view = ClusterView(store)
            await view.refresh()
            topic_id = view.image.topics[topic].topic_id
            items = await store.list(records.segment_collection(topic_id, partition))
            folder = f"{view.image.cluster_id}/{topic}-{topic_id}/{partition}/"
            keys = [meta.key async for meta in bucket.list(folder)]
            return Tiered(
                [SegmentMeta.from_item(item) for item in items],
                {key: await bucket.get(key) for key in keys},
                view.image.cluster_id,
            )
        finally:
            await store.close()
            await bucket.close()

    def check_evicted(self, topic: str, *, partition: int = 0) -> None:
        """Check that what is not on disk is in the bucket, whole."""
        local = self.local_segments(topic, partition=partition)  # before the stores are asked
        tiered = self.tiered(topic, partition=partition)
        end_offset = 0
        for meta in tiered.metas:
            if meta.state is SegmentState.COPY_FINISHED and meta.base_offset == end_offset:
                _verify(tiered, meta, topic)
                end_offset = meta.end_offset
        assert local[0] <= end_offset

    def check_tier(self, topic: str, *, partition: int = 0) -> None:
        """Check that each sealed segment is in the tier once, whole, and nothing besides."""
        tiered = self.tiered(topic, partition=partition)
        assert {meta.state for meta in tiered.metas} == {SegmentState.COPY_FINISHED}
        assert len(tiered.objects) == 2 * len(tiered.metas)
        chain, end_offset = [], 0
        for meta in tiered.metas:
            assert meta.base_offset == end_offset
            end_offset = meta.end_offset
            chain.append(_verify(tiered, meta, topic))
        verify_chain(chain)
        assert self.local_segments(topic, partition=partition)[0] == end_offset


def _verify(tiered: Tiered, meta: SegmentMeta, topic: str) -> tuple[str, IndexFile]:
    keys = segment_keys(tiered.cluster_id, topic, meta)
    index = IndexFile.parse(tiered.objects[keys.index], key=keys.index)
    verify_segment(keys.log, tiered.objects[keys.log], index)
    assert index.chained_hash.hex() == meta.chained_hash
    return keys.index, index


@contextmanager
def running_proxies(
    s3_endpoint: str, dynamodb_endpoint: str
) -> Iterator[tuple[asyncio.AbstractEventLoop, StoreProxy, StoreProxy]]:
    """Run the proxies of both stores in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    proxies = (
        StoreProxy(s3_endpoint, random.Random(1), S3),
        StoreProxy(dynamodb_endpoint, random.Random(2), DYNAMODB),
    )
    try:
        for proxy in proxies:
            asyncio.run_coroutine_threadsafe(proxy.__aenter__(), loop).result()
        yield loop, *proxies
        for proxy in proxies:
            asyncio.run_coroutine_threadsafe(proxy.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def faulty_node(
    folder: Path,
    *,
    s3_endpoint: str,
    dynamodb_endpoint: str,
    config: Mapping[str, str] | None = None,
) -> Iterator[FaultyNode]:
    """Run a node whose metadata lies in DynamoDB and whose tier in S3, each behind a proxy."""
    table, prefix = f"tidelog-{uuid.uuid4().hex}", uuid.uuid4().hex
    asyncio.run(_create_table(table, dynamodb_endpoint))
    make_bucket(s3_endpoint, BUCKET)
    with running_proxies(s3_endpoint, dynamodb_endpoint) as (loop, s3, dynamodb):
        endpoint = quote(dynamodb.url, safe="")
        process = NodeProcess(
            folder / "node",
            metadata_store=f"dynamodb://{table}?region={REGION}&endpoint={endpoint}",
            object_store=f"s3://{BUCKET}/{prefix}",
            config={**CONFIG, **(config or {})},
            environment={"AWS_ENDPOINT_URL": s3.url},
        )
        process.start()
        try:
            yield FaultyNode(
                process, s3, dynamodb, table, prefix, dynamodb_endpoint, s3_endpoint, loop
            )
        finally:
            if process.process is not None:
                process.stop()


async def _create_table(table: str, endpoint: str) -> None:
    store = DynamoDbMetadataStore(table, region=REGION, endpoint=endpoint)
    try:
        await store.create_table()
    finally:
        await store.close()
