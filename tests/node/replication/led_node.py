"""One node's logs and data handlers in this process, with peers that only the store knows."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from kio.index import load_response_schema
from kio.serial import entity_reader
from tidelog_core.config import NodeConfig
from tidelog_core.metadata import records
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import AckedBy, Partition, Topic
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.model import TopicPartition
from tidelog_core.replication.placement.heirs import wants_diskless
from tidelog_node.answers import Reply
from tidelog_node.handlers.admin.delete_records import DeleteRecordsHandler
from tidelog_node.handlers.fetch.handler import FetchHandler
from tidelog_node.handlers.fetch.list_offsets import ListOffsetsHandler
from tidelog_node.handlers.produce.diskless_admission import DisklessAdmission
from tidelog_node.handlers.produce.handler import ProduceHandler
from tidelog_node.inspection.inspector import BatchInspector
from tidelog_node.logs.directories import LogDirectories
from tidelog_node.membership.registration import ensure_cluster, register_broker
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.replication.closest import RackAwareness
from tidelog_node.upkeep.flusher import Flusher
from tidelog_node.wire.fetch import FetchPartition, FetchRequest
from tidelog_node.wire.produce import ProduceRequest

from tests.support.batches import batch_of
from tests.support.node_context import Alone, node_context
from tests.support.request_contexts import context_of

TOPIC = "t"
FETCH_VERSION, PRODUCE_VERSION = 12, 9
CONSUMER = -1


class LedNode:
    """Broker 1 of 3. Made by ``led_node``."""

    def __init__(self, folder: Path, config: NodeConfig) -> None:
        self.folder = folder
        self.config = config
        self.now_ms = 1_000_000.0
        self.may_serve = True

    async def start(self) -> None:
        self.store = SqliteMetadataStore(self.folder / "metadata.db")
        await ensure_cluster(self.store)
        for broker_id in (1, 2, 3):
            await register_broker(
                self.store,
                broker_id=broker_id,
                incarnation=uuid4(),
                endpoints=plaintext_endpoints("127.0.0.1", broker_id),
                rack=f"rack{broker_id}",
            )
        self.view = ClusterView(self.store)
        await self.view.refresh()
        self.executor = ThreadPoolExecutor(2)
        self.directories = LogDirectories(self.folder / "data")
        self.context = node_context(
            self.store,
            self.view,
            incarnation=self.view.image.brokers[1].incarnation,
            config=lambda: self.config,
            static_config=self.config,
            membership=Alone(can_serve=self.can_serve, now_ms=lambda: self.now_ms),
            executor=self.executor,
        )
        self.replicas = ReplicaManager(self.context, directories=self.directories)
        await self.replicas.start()
        self.flusher = Flusher(self.executor)
        self.inspector = BatchInspector()
        self.admission = DisklessAdmission()
        self.produce = ProduceHandler(
            self.context,
            replicas=self.replicas,
            flusher=self.flusher,
            inspector=self.inspector,
            admission=self.admission,
        )
        self.fetch = FetchHandler(
            self.context, replicas=self.replicas, closest=RackAwareness(self.context)
        )
        self.list_offsets = ListOffsetsHandler(
            self.context, replicas=self.replicas, inspector=self.inspector
        )
        self.delete_records = DeleteRecordsHandler(self.context, replicas=self.replicas)

    async def stop(self) -> None:
        self.produce.close()
        await self.fetch.close()
        await self.inspector.close()
        await self.flusher.close()
        await self.replicas.close()
        self.directories.close()
        await self.store.close()
        self.executor.shutdown()

    def can_serve(self) -> bool:
        return self.may_serve

    # -- the cluster --

    async def create_topic(
        self,
        *,
        leader: int = 1,
        replicas: tuple[int, ...] = (1, 2, 3),
        partition_count: int = 1,
        **configs: str,
    ) -> Replica:
        """Create the topic and return its first partition's replica."""
        topic = Topic(
            name=TOPIC, topic_id=uuid4(), partition_count=partition_count, configs=configs
        )
        partitions = [
            Partition(
                topic_id=topic.topic_id,
                partition=number,
                replicas=replicas,
                leader=leader,
                leader_epoch=0,
                isr=replicas,
                acked_by=AckedBy.CHAIN if wants_diskless(topic) else None,
            )
            for number in range(partition_count)
        ]
        await self.store.commit([*map(records.put, partitions), records.put(topic)])
        await self.view.refresh()
        return self.replica()

    async def configure(self, **configs: str) -> None:
        topic = self.view.image.topics[TOPIC]
        await self.store.commit([records.put(dataclasses.replace(topic, configs=configs))])
        await self.view.refresh()

    async def delete_topic(self) -> None:
        await self.store.commit([records.delete(self.view.image.topics[TOPIC])])
        await self.view.refresh()

    def replica(self, partition: int = 0) -> Replica:
        found = self.replicas.get(TopicPartition(TOPIC, partition))
        assert found is not None
        return found

    async def change_partition(self, index: int = 0, **changes: Any) -> None:
        partition = self.view.image.partition(TopicPartition(TOPIC, index))
        assert partition is not None
        await self.store.commit([records.put(dataclasses.replace(partition, **changes))])
        await self.view.refresh()

    async def move(self, broker_id: int, rack: str | None) -> None:
        """Register the broker as being in another zone."""
        broker = self.view.image.brokers[broker_id]
        await self.store.commit([records.put(dataclasses.replace(broker, rack=rack))])
        await self.view.refresh()

    def epoch_of(self, broker_id: int) -> int:
        return self.view.image.brokers[broker_id].version

    # -- requests --

    def send(self, *values: bytes, acks: int = -1, timeout_ms: int = 30_000) -> Any:
        """Produce one batch; return the partition's answer, or the future of it."""
        return self.send_batch(batch_of(*values), acks=acks, timeout_ms=timeout_ms)

    def send_batch(self, batch: bytes, *, acks: int = -1, timeout_ms: int = 30_000) -> Any:
        """Produce the batch; return the partition's answer, or the future of it.

        With acks=0 there is none, and ``None`` is returned.
        """
        records = memoryview(bytearray(batch))
        request = ProduceRequest(None, acks, timeout_ms, [(TOPIC.encode(), [(0, records)])])
        reply = self.produce.handle(request, context_of(PRODUCE_VERSION, api_key=0))
        return _answer(0, PRODUCE_VERSION, reply) if acks else None

    def read(
        self,
        offset: int,
        *,
        replica_id: int = CONSUMER,
        replica_epoch: int | None = None,
        leader_epoch: int = 0,
        last_fetched_epoch: int = -1,
        max_wait_ms: int = 0,
        rack: bytes = b"",
        isolation_level: int = 0,
        client_id: bytes | None = None,
    ) -> Any:
        """Fetch the partition; return its answer, or the future of it."""
        is_fed = replica_id >= 0 and self.replica().is_diskless
        bytes_max = 0 if is_fed else 1 << 20
        wanted = FetchPartition(0, leader_epoch, offset, last_fetched_epoch, 0, bytes_max)
        if replica_epoch is None:
            replica_epoch = self.epoch_of(replica_id) if replica_id >= 0 else -1
        request = FetchRequest(
            replica_id,
            max_wait_ms,
            1,
            1 << 20,
            isolation_level,
            0,
            -1,
            [(TOPIC.encode(), [wanted])],
            rack,
            replica_epoch,
        )
        context = context_of(FETCH_VERSION, node_id=replica_id, client_id=client_id)
        return _answer(1, FETCH_VERSION, self.fetch.handle(request, context))


def _answer(api_key: int, version: int, reply: Any) -> Any:
    if isinstance(reply, list):
        return _decode(api_key, version, reply)

    async def later() -> Any:
        return _decode(api_key, version, await reply)

    return asyncio.ensure_future(later())


def _decode(api_key: int, version: int, reply: Reply) -> Any:
    data = b"".join(bytes(segment) for segment in reply)  # type: ignore[arg-type]
    schema: Any = load_response_schema(api_key, version)
    response, _ = entity_reader(schema)(memoryview(data), 9)
    topic = response.responses[0]
    return topic.partition_responses[0] if api_key == 0 else topic.partitions[0]


@asynccontextmanager
async def led_node(folder: Path, config: NodeConfig | None = None) -> AsyncIterator[LedNode]:
    node = LedNode(folder, config or NodeConfig())
    await node.start()
    try:
        yield node
    finally:
        await node.stop()
