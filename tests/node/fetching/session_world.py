"""One node's Fetch in this process, clients with sessions, and what may happen to partitions.

A client here knows only what the answers have told it. ``Everything`` is the judge: the same
handler asked for every partition by a request without a session.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from kio.index import load_response_schema
from kio.serial import entity_reader
from tidelog_core.config import NodeConfig
from tidelog_core.log.values import AppendOrigin
from tidelog_core.metadata import records
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Partition, Topic
from tidelog_core.model import TopicPartition
from tidelog_core.records.batch import parse_header
from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
)
from tidelog_node.answers import Answer
from tidelog_node.handlers.fetch.fetch_sessions import FetchSession
from tidelog_node.handlers.fetch.full_fetch import FullFetch
from tidelog_node.handlers.fetch.handler import FetchHandler
from tidelog_node.logs.directories import LogDirectories
from tidelog_node.membership.registration import ensure_cluster, register_broker
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.wire.fetch import FetchPartition, FetchRequest
from tidelog_node.wire.fetch_answer import FetchResult

from tests.support.batches import batch_of
from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import Alone, node_context
from tests.support.request_contexts import context_of

NAME_VERSION, ID_VERSION = 12, 17
LIMIT_BYTES = 1 << 24
Key = tuple[bytes, int]


class FetchWorld:
    """Broker 1 of 3: its replicas, its Fetch handler and its clock. Made by ``fetch_world``."""

    def __init__(self, folder: Path, config: NodeConfig) -> None:
        self.folder = folder
        self.config = config
        self.now_ms = 1_000_000.0
        self.may_serve = True

    async def start(self) -> None:
        self.store = MemoryMetadataStore(latency=0)
        await ensure_cluster(self.store)
        self.view = ClusterView(self.store)
        for broker_id in (1, 2, 3):
            await self.register(broker_id)
        self.executor = ThreadPoolExecutor(2)
        self.directories = LogDirectories(self.folder)
        context = node_context(
            self.store,
            self.view,
            config=lambda: self.config,
            membership=Alone(can_serve=lambda: self.may_serve, now_ms=lambda: self.now_ms),
            executor=self.executor,
        )
        self.replicas = ReplicaManager(context, directories=self.directories)
        await self.replicas.start()
        self.handler = FetchHandler(context, replicas=self.replicas)

    async def stop(self) -> None:
        await self.handler.close()
        await self.replicas.close()
        self.directories.close()
        self.executor.shutdown()

    # -- the cluster --

    async def register(self, broker_id: int) -> None:
        await register_broker(
            self.store,
            broker_id=broker_id,
            incarnation=uuid4(),
            endpoints=plaintext_endpoints("h", 1),
            rack=None,
        )
        await self.view.refresh()

    async def create_topic(
        self,
        name: str,
        *,
        replicas: tuple[int, ...] = (1, 2, 3),
        partitions: int = 1,
        is_open: bool = True,
    ) -> None:
        topic = Topic(name=name, topic_id=uuid4(), partition_count=partitions)
        made = [
            Partition(
                topic_id=topic.topic_id,
                partition=index,
                replicas=replicas,
                leader=1,
                leader_epoch=0,
                isr=replicas,
            )
            for index in range(partitions)
        ]
        await self.store.commit([*map(records.put, made), records.put(topic)])
        await self.view.refresh()
        await self._led(name, partitions)
        for index in range(partitions if is_open else 0):
            self.replica(name, index).open()

    async def _led(self, name: str, count: int) -> None:
        """Wait for the logs of many replicated partitions, which threads open."""
        for _ in range(10_000):
            if len(self.replicas.led_by_name[name.encode()]) == count:
                return
            await asyncio.sleep(0.001)
        raise TimeoutError(name)

    async def delete_topic(self, name: str) -> None:
        await self.store.commit([records.delete(self.view.image.topics[name])])
        await self.view.refresh()

    async def change_partition(self, name: str, index: int, **changes: Any) -> None:
        partition = self.view.image.partition(TopicPartition(name, index))
        assert partition is not None
        await self.store.commit([records.put(dataclasses.replace(partition, **changes))])
        await self.view.refresh()

    def partition(self, name: str, index: int) -> Partition:
        found = self.view.image.partition(TopicPartition(name, index))
        assert found is not None
        return found

    def replica(self, name: str, index: int = 0) -> Replica:
        found = self.replicas.get(TopicPartition(name, index))
        assert found is not None
        return found

    def key(self, name: str, index: int, *, by_id: bool) -> Key:
        return (self.view.image.topics[name].topic_id.bytes if by_id else name.encode()), index

    # -- the judge --

    def everything(self, client: SessionClient, wanted: dict[Key, FetchPartition]) -> Everything:
        """Return what a request without a session finds now; it notes nothing."""
        topics = [(name, [partition]) for (name, _), partition in wanted.items()]
        request = client.request(topics, [], session=(0, -1))
        served = FullFetch(
            self.handler.serving, request, context_of(client.version), opens_session=False
        )
        reading = served.read(is_new=False)
        return {
            (name, result.partition): result
            for name, results in reading.topics
            for result in results
        }

    def check_settled(self, clients: list[SessionClient]) -> None:
        """Nothing that a session does not look at has news: this looks at all of it.

        But for a node that may not serve, which looks at everything itself.
        """
        may_serve, self.may_serve = self.may_serve, True
        for client in clients:
            session = self.handler.sessions.find(client.session_id)
            if session is None:
                continue
            settled = {
                key: partition.wanted
                for key, partition in session.partitions.items()
                if not partition.is_dirty
            }
            for key, result in self.everything(client, settled).items():
                partition = session.partitions[key]
                assert not partition.has_news(result), (key, result, partition.wanted)
                if client.replica_id >= 0:
                    assert self._is_in_sync(client, key), key
        self.may_serve = may_serve
        assert self.handler.sessions.partition_count == sum(
            session.size for session in _sessions(self)
        )

    def _is_in_sync(self, client: SessionClient, key: Key) -> bool:
        led = self.handler.serving.reader.led(has_ids=client.by_id)
        leader = led[key[0]][key[1]].leader
        return leader is not None and client.replica_id in leader.partition.isr


Everything = dict[Key, FetchResult]


def _sessions(world: FetchWorld) -> list[FetchSession]:
    return list(world.handler.sessions._sessions.values())


class SessionClient:
    """A consumer or follower that believes what it is told, and names what has changed."""

    def __init__(
        self, world: FetchWorld, *, replica_id: int = -1, isolation: int = 0, by_id: bool = False
    ) -> None:
        self.world = world
        self.replica_id = replica_id
        self.isolation = isolation
        self.by_id = by_id
        self.version = ID_VERSION if by_id else NAME_VERSION
        self.rack = b""
        self.replica_epoch: int | None = None  # that it claims; ``None``: its registration's
        self.session_id, self.epoch = 0, 0
        self.wanted: dict[Key, FetchPartition] = {}
        self.sent: dict[Key, FetchPartition] = {}  # what the session has
        self.told: dict[Key, tuple[int, int]] = {}  # high watermark and log start
        self.errors: dict[Key, int] = {}
        self.answered: dict[Key, Any] = {}  # by the last answer

    def want(self, key: Key, offset: int, *, leader_epoch: int = -1) -> None:
        """Read the partition from the offset on."""
        self.wanted[key] = FetchPartition(key[1], leader_epoch, offset, -1, 0, 1 << 20)

    def request(
        self,
        topics: list[tuple[bytes, list[FetchPartition]]],
        forgotten: list[tuple[bytes, list[int]]],
        *,
        session: tuple[int, int],
        max_bytes: int = LIMIT_BYTES,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
    ) -> FetchRequest:
        replica_epoch = -1
        if self.replica_epoch is not None:
            replica_epoch = self.replica_epoch
        elif self.replica_id >= 0:
            replica_epoch = self.world.view.image.brokers[self.replica_id].version
        return FetchRequest(
            self.replica_id,
            max_wait_ms,
            min_bytes,
            max_bytes,
            self.isolation,
            *session,
            topics,
            self.rack,
            replica_epoch,
            forgotten=forgotten,
        )

    def next_request(self, **limits: int) -> FetchRequest:
        """Return the next request of the session; the first names everything."""
        if self.session_id == 0:
            self.sent = {}
        named = [(k[0], [w]) for k, w in self.wanted.items() if self.sent.get(k) != w]
        forgotten = [(k[0], [k[1]]) for k in self.sent if k not in self.wanted]
        self.sent = dict(self.wanted)
        return self.request(named, forgotten, session=(self.session_id, self.epoch), **limits)

    async def fetch(self, **limits: int) -> int:
        """Send the next request and take its answer; return the error of the whole."""
        reply = self.world.handler.handle(
            self.next_request(**limits), context_of(self.version, node_id=self.replica_id)
        )
        return self.take(reply if isinstance(reply, list) else await reply)

    def take(self, reply: Any) -> int:
        """Take an answer."""
        data = reply_bytes(reply)
        schema: Any = load_response_schema(1, self.version)
        response, _ = entity_reader(schema)(memoryview(data), 9)
        self.answered = {}
        if response.error_code != 0:
            self.session_id = self.epoch = 0
            return int(response.error_code)
        self.session_id = response.session_id
        self.epoch = self.epoch + 1 if response.session_id else 0
        for topic in response.responses:
            name = topic.topic_id.bytes if self.by_id else topic.topic.encode()
            for answer in topic.partitions:
                self._take_partition((name, answer.partition_index), answer)
        return 0

    def _take_partition(self, key: Key, answer: Any) -> None:
        self.answered[key] = answer
        if answer.error_code != 0:
            self.errors[key] = int(answer.error_code)
            self.told.pop(key, None)
            return
        self.errors.pop(key, None)
        self.told[key] = (answer.high_watermark, answer.log_start_offset)
        wanted = self.wanted.get(key)
        data = bytes(answer.records or b"")
        if wanted is None or not data:
            return
        position, offset = 0, wanted.offset
        while position + 12 <= len(data):
            size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
            if position + size > len(data):
                break
            offset = parse_header(memoryview(data)[position:]).next_offset
            position += size
        self.wanted[key] = wanted._replace(offset=max(offset, wanted.offset))


def reply_bytes(reply: Any) -> bytes:
    """Return what a connection would send."""
    return b"".join(_bytes_of(segment) for segment in reply)


def _bytes_of(segment: Any) -> bytes:
    if isinstance(segment, bytes | bytearray | memoryview):
        return bytes(segment)
    with segment.file.path.open("rb") as file:
        file.seek(segment.position)
        return file.read(segment.size_bytes)


class Happenings:
    """What may happen to partitions, at random."""

    def __init__(self, world: FetchWorld, rng: random.Random, names: list[str]) -> None:
        self.world = world
        self.rng = rng
        self.names = names
        self.in_transaction: set[str] = set()

    def _led(self) -> list[Replica]:
        return [
            replica
            for replica in self.world.replicas.replicas()
            if replica.is_leader and not replica.is_in_trouble
        ]

    def _any(self) -> Replica | None:
        replicas = list(self.world.replicas.replicas())
        return self.rng.choice(replicas) if replicas else None

    def _followed(self) -> list[Replica]:
        return [r for r in self.world.replicas.replicas() if r.is_follower and not r.is_in_trouble]

    async def one(self) -> str:
        """Let something happen; return what."""
        kind = self.rng.choice(
            ["append"] * 6
            + ["transaction"] * 3
            + ["start", "leader", "isr", "topic", "follow", "cut", "offline", "serve"]
        )
        await getattr(self, f"_{kind}")()
        return kind

    async def _append(self) -> None:
        for replica in self.rng.sample(self._led(), min(len(self._led()), 2)):
            batch = batch_of(*[b"v"] * self.rng.randint(1, 3))
            replica.append(memoryview(bytearray(batch)))

    async def _transaction(self) -> None:
        led = self._led()
        if not led:
            return
        replica = self.rng.choice(led)
        producer_id = 7
        if replica.log.producers.has_ongoing_transaction(producer_id):
            marker = EndTransactionMarker(self.rng.choice([*ControlType]), 0)
            data = build_end_transaction_marker(
                marker, producer_id=producer_id, producer_epoch=0, timestamp_ms=1
            )
            replica.append(memoryview(bytearray(data)), AppendOrigin.COORDINATOR)
            return
        known = dict(replica.log.producers.items()).get(producer_id)
        last = -1 if known is None else known.last_sequence
        data = batch_of(
            b"t",
            producer=(producer_id, 0, last + 1),
            is_transactional=True,
        )
        replica.append(memoryview(bytearray(data)))

    async def _start(self) -> None:
        led = self._led()
        if led:
            log = self.rng.choice(led).log
            log.advance_log_start_offset(self.rng.randint(log.log_start_offset, log.high_watermark))

    async def _leader(self) -> None:
        replica = self._any()
        if replica is None:
            return
        known = self.world.partition(*replica.partition)
        if len(known.replicas) == 1:
            changes: dict[str, Any] = {"leader_epoch": known.leader_epoch + 1}
        else:
            leader = self.rng.choice([1, 1, 2, -1])
            changes = {"leader": leader, "leader_epoch": known.leader_epoch + 1, "isr": (1, 2)}
        await self.world.change_partition(*replica.partition, **changes)

    async def _isr(self) -> None:
        replica = self._any()
        known = None if replica is None else self.world.partition(*replica.partition)
        if replica is not None and known is not None and len(known.replicas) > 1:
            isr = self.rng.choice([(1,), (1, 2), (1, 2, 3), (1, 3)])
            await self.world.change_partition(*replica.partition, isr=isr)

    async def _topic(self) -> None:
        name = self.rng.choice(self.names)
        if name in self.world.view.image.topics:
            if self.rng.random() < 0.5:
                await self.world.delete_topic(name)
        else:
            replicas = self.rng.choice([(1,), (1, 2, 3)])
            await self.world.create_topic(name, replicas=replicas, partitions=2)

    async def _follow(self) -> None:
        for replica in self._followed():
            log = replica.log
            batch = bytearray(
                batch_of(b"f", base_offset=log.log_end_offset, leader_epoch=replica.leader_epoch)
            )
            replica.append_as_follower(memoryview(batch))
            end = log.log_end_offset
            replica.follow_leader(
                high_watermark=self.rng.randint(log.high_watermark, end),
                log_start_offset=self.rng.randint(log.log_start_offset, end),
            )

    async def _cut(self) -> None:
        for replica in self._followed():
            log = replica.log
            if self.rng.random() < 0.8:
                log.truncate_to(self.rng.randint(log.log_start_offset, log.log_end_offset))
            else:
                log.truncate_fully_and_start_at(self.rng.randint(0, log.log_end_offset + 2))

    async def _offline(self) -> None:
        replicas = [r for r in self.world.replicas.replicas() if not r.is_in_trouble]
        if not replicas or self.rng.random() < 0.7:
            return
        replica = self.rng.choice(replicas)
        if self.rng.random() < 0.5:
            replica.log.take_offline()
            return
        replica.log._segments.go_offline()  # as an error of the disk does
        await asyncio.sleep(0)  # Everyone is told in another turn of the loop.

    async def _serve(self) -> None:
        self.world.may_serve = self.rng.random() < 0.8


def is_waiting(reply: Answer) -> bool:
    """Whether the request has not been answered yet."""
    return not isinstance(reply, list)


def topic_id_of(key: Key) -> UUID:
    """Return the id of a key by id."""
    return UUID(bytes=key[0])


@asynccontextmanager
async def fetch_world(folder: Path, **config: int) -> AsyncIterator[FetchWorld]:
    world = FetchWorld(folder, dataclasses.replace(NodeConfig(), **config))  # type: ignore[arg-type]
    await world.start()
    try:
        yield world
    finally:
        await world.stop()
