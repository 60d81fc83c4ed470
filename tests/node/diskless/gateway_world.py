"""A leader and a gateway in this process, with chains in one faulty store and no sockets."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from kio.index import load_response_schema
from kio.serial import entity_reader
from tidelog.wire.requests import Api
from tidelog_core.config import NodeConfig
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import CoordinatorNotAvailable, ErrorCode
from tidelog_core.metadata import records
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Partition, Topic
from tidelog_core.model import TopicPartition
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.objects.store import ObjectStore
from tidelog_core.records.batch import HEADER_SIZE
from tidelog_core.records.header import iter_headers
from tidelog_node.counters import ChainTraffic
from tidelog_node.diskless.chain.chain_partition import ChainPartition
from tidelog_node.diskless.chain.owned_chain import OwnedChain
from tidelog_node.diskless.chain.wal_client import WalClient
from tidelog_node.diskless.chain.writer_limits import kept_bytes_max
from tidelog_node.diskless.gateway.gateway import Gateway
from tidelog_node.diskless.gateway.leader_log_ends import LeaderLogEnds
from tidelog_node.diskless.gateway.links import NotSent
from tidelog_node.diskless.gateway.spool import GatewaySpool
from tidelog_node.fairness.partition_pace import NotYet
from tidelog_node.handlers.fetch.leader_epoch import LeaderEpochHandler
from tidelog_node.handlers.produce.diskless_admission import DisklessAdmission
from tidelog_node.handlers.produce.gateway_append import GatewayAppends
from tidelog_node.handlers.produce.handler import ProduceHandler
from tidelog_node.inspection.inspector import BatchInspector
from tidelog_node.logs.directories import LogDirectories
from tidelog_node.membership.registration import ensure_cluster, register_broker
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager
from tidelog_node.requests.session import Session
from tidelog_node.transactions.produce_gate import ProduceGate
from tidelog_node.upkeep.flusher import Flusher
from tidelog_node.wire.gateway_append import (
    GatewayAppend,
    GatewayResult,
    encode_answer,
    encode_request,
    header_rest,
    parse_answer,
    parse_request,
)
from tidelog_node.wire.produce import ProduceRequest

from tests.support.log_building import content_of
from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import node_context
from tests.support.request_contexts import context_of
from tests.support.wal_scene import FAST, FaultyStore, WorkerHere

TOPIC = "t"
TOPIC_ID = uuid5(NAMESPACE_OID, TOPIC)
LEADER, GATEWAY = 1, 2
PRODUCE_VERSION = 9
CHAIN_OF = {
    broker_id: ChainName(broker_id, uuid5(NAMESPACE_OID, f"chain {broker_id}"))
    for broker_id in (LEADER, GATEWAY)
}
PLACE = TopicPartition(TOPIC, 0)


def place(index: int) -> TopicPartition:
    """Return the topic's partition with this index."""
    return TopicPartition(TOPIC, index)


class Agreeing:
    """A coordinator to which every partition belongs to the transaction that is asked about."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    async def ask(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: list[TopicPartition],
        *,
        adds: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        await asyncio.sleep(0.005)
        self.asked.append((transactional_id, producer_id))
        return dict.fromkeys(partitions, ErrorCode.none)


class Node:
    """One broker: its replicas, its chain, and how it produces."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.world, self.broker_id = world, broker_id
        self.folder = world.folder / f"node{broker_id}"
        self.traffic = ChainTraffic()
        self.verifier: Any = Agreeing()
        self.hang_count = self.hung_count = 0

    async def get_verifier(self) -> Any:
        return self.verifier

    async def start(self) -> None:
        world = self.world
        self.view = ClusterView(world.metadata)
        await self.view.refresh()
        self.executor = world.executor or ThreadPoolExecutor(2)
        self.directories = LogDirectories(self.folder / "data")
        self.context = node_context(
            world.metadata,
            self.view,
            broker_id=self.broker_id,
            incarnation=self.view.image.brokers[self.broker_id].incarnation,
            static_config=world.config,
            config=lambda: world.config,
            executor=self.executor,
        )
        self.replicas = ReplicaManager(self.context, directories=self.directories)
        await self.replicas.start()
        self.worker = WorkerHere(
            world.store,
            self.folder,
            built_bytes_max=kept_bytes_max(FAST),
            executor=world.executor,
        )
        self.inspector, self.flusher = BatchInspector(), Flusher(self.executor)
        gate = ProduceGate(self.get_verifier)
        self.admission = DisklessAdmission()
        self.produce = ProduceHandler(
            self.context,
            replicas=self.replicas,
            flusher=self.flusher,
            inspector=self.inspector,
            admission=self.admission,
            gate=gate,
        )
        self.appends = GatewayAppends(
            self.context,
            replicas=self.replicas,
            gate=gate,
            unknown_producers=self.produce.unknown_producers,
        )
        # Tests have it hang.
        self.appends.reads.read_range = lambda *range_: self.worker.get_range(*range_)  # noqa: PLW0108
        self.gateway = Gateway(
            self.context,
            spool=GatewaySpool(self.folder / "gateway"),
            own_chain=self._own_chain,
            send=self.world.send,
            append_here=self.appends.append,
            log_ends=LeaderLogEnds(self.context, self.world, self.replicas).of,
        )
        self.produce.gateway = self.gateway
        self.leader_epochs = LeaderEpochHandler(self.context, replicas=self.replicas)
        self.chains = [self._open_chain(CHAIN_OF[self.broker_id])]

    async def stop(self) -> None:
        self.produce.close()
        for chain in self.chains:
            await chain.close(1.0)
        await self.gateway.close()
        await self.appends.close()
        await self.worker.close()
        await self.inspector.close()
        await self.flusher.close()
        await self.replicas.close()
        self.directories.close()
        self.executor.shutdown()

    def _open_chain(self, name: ChainName) -> OwnedChain:
        chain = OwnedChain(
            WalClient(self.worker, self.view.image.cluster_id, name),
            limits=FAST,
            traffic=self.traffic,
        )
        chain.deposed.subscribe(self.gateway.on_deposed)
        return chain

    async def _own_chain(self) -> OwnedChain:
        if self.chain.is_deposed:
            name = uuid5(NAMESPACE_OID, f"chain {self.broker_id} {len(self.chains)}")
            self.chains.append(self._open_chain(ChainName(self.broker_id, name)))
        return self.chain

    def hang_next_read(self) -> None:
        """Have the next read of this node's store never end."""
        self.hang_count += 1
        store = self.worker
        read = store.get_range

        async def hang(key: str, start: int, end: int) -> bytes:
            store.get_range = read  # type: ignore[method-assign]
            self.hung_count += 1
            await asyncio.Event().wait()
            raise AssertionError("it is cancelled")

        store.get_range = hang  # type: ignore[method-assign]

    def hold_reads(self) -> asyncio.Event:
        """Have reads of this node's store wait for the event that is returned."""
        store, held = self.worker, asyncio.Event()
        read = store.get_range

        async def wait(key: str, start: int, end: int) -> bytes:
            await held.wait()
            return await read(key, start, end)

        store.get_range = wait  # type: ignore[method-assign]
        return held

    @property
    def chain(self) -> OwnedChain:
        return self.chains[-1]

    @property
    def replica(self) -> Replica:
        return self.replica_of(0)

    def replica_of(self, index: int) -> Replica:
        found = self.replicas.get(place(index))
        assert found is not None
        return found

    def send(
        self,
        batch: bytes,
        *,
        acks: int = -1,
        timeout_ms: int = 30_000,
        transactional_id: bytes | None = None,
        partition: int = 0,
        session: Session | None = None,
    ) -> Any:
        """Produce the batch; return the future of the partition's answer, ``None`` with acks=0."""
        records = memoryview(bytearray(batch))
        topics = [(TOPIC.encode(), [(partition, records)])]
        request = ProduceRequest(transactional_id, acks, timeout_ms, topics)
        context = context_of(PRODUCE_VERSION, api_key=0, session=session)
        reply = self.produce.handle(request, context)
        return asyncio.ensure_future(_decoded(reply)) if acks else None


async def refused(node: Node, batch: bytes, session: Session | None = None) -> Any:
    """Produce the batch while the node admits none; return the answer that comes in the end."""
    request = ProduceRequest(None, -1, 20, [(TOPIC.encode(), [(0, memoryview(bytearray(batch)))])])
    context = context_of(PRODUCE_VERSION, api_key=0, session=session)
    node.admission.set_full(True)
    while True:
        try:
            reply = node.produce.handle(request, context)
        except NotYet as held:
            turn = asyncio.Event()
            held.wait(turn.set)
            await turn.wait()
        else:
            node.admission.set_full(False)
            return await _decoded(reply)


async def _decoded(reply: Any) -> Any:
    if not isinstance(reply, list):
        reply = await reply
    data = b"".join(bytes(segment) for segment in reply)
    schema: Any = load_response_schema(0, PRODUCE_VERSION)
    response, _ = entity_reader(schema)(memoryview(data), 9)
    return response.responses[0].partition_responses[0]


class World:
    """Broker 1 leads, broker 2 is a gateway."""

    def __init__(
        self,
        folder: Path,
        *,
        objects: ObjectStore | None = None,
        executor: Executor | None = None,
        chance: Random | None = None,
        overlaps: bool = False,
        **topic_configs: str,
    ) -> None:
        """For virtual time ``objects`` and ``executor`` have no threads.

        ``overlaps``: the leader reads batches while it stores references to them.
        """
        self.folder = folder
        self.executor = executor
        self.configs = {"diskless.enable": "true", **topic_configs}
        self.config = NodeConfig(
            diskless_gateways_enable=True, diskless_gateways_overlap_enable=overlaps
        )
        self.partition_count = 1
        self.metadata = MemoryMetadataStore(latency=0)
        self.objects = objects or FolderObjectStore(folder / "objects")
        self.store = FaultyStore(self.objects, chance or Random(1))
        self.is_leader_reachable = True
        self.is_leader_silent = False  # when it is asked where its log ends
        self.ask_count = 0
        self.is_answer_lost = False
        self.is_hanging = False  # requests get nowhere until ``break_connection``
        self.tickets: asyncio.Semaphore | None = None  # one for each request that gets on
        self._hanging: list[asyncio.Future[list[GatewayResult]]] = []
        self.attempt_count = 0  # requests that the gateway has tried to send
        self.forwarded: list[GatewayAppend] = []
        self._tasks: dict[asyncio.Future[Any], None] = {}  # in order

    async def start(self) -> None:
        await ensure_cluster(self.metadata)
        for broker_id in (LEADER, GATEWAY):
            await self._register(broker_id, f"process {broker_id}")
        count = self.partition_count
        topic = Topic(name=TOPIC, topic_id=TOPIC_ID, partition_count=count, configs=self.configs)
        partitions = [
            Partition(
                topic_id=TOPIC_ID,
                partition=index,
                replicas=(LEADER, GATEWAY),
                leader=LEADER,
                leader_epoch=0,
                isr=(LEADER, GATEWAY),
                wal=(EpochChain(0, CHAIN_OF[LEADER], 0),),
            )
            for index in range(count)
        ]
        await self.metadata.commit([*map(records.put, partitions), records.put(topic)])
        self.leader, self.gateway = Node(self, LEADER), Node(self, GATEWAY)
        for node in (self.leader, self.gateway):
            await node.start()
            for index in range(count):
                node.replica_of(index).open()
        for index in range(count):
            self.lead(index)

    def lead(self, index: int = 0) -> None:
        """Have the leader enter the partition, as its item says."""
        leader = self.leader
        replica, item = leader.replica_of(index), leader.view.image.partition(place(index))
        assert item is not None
        leader.chain.enter(replica, item.wal, end_offset=replica.log.log_end_offset)
        leader.replicas.confirm_lead(replica, item.leader_epoch)

    async def kill_leader(self, process: str) -> None:
        """Have another process lead, in its own chain: what was not committed is gone.

        It reads what the chain has committed and the dead one has not read.
        """
        leader = self.leader
        replica = leader.replica
        committed = await self._unread_tail(replica)
        item = leader.view.image.partition(PLACE)
        assert item is not None
        for task in tuple(self._tasks):
            task.cancel()  # What it was asked dies with it.
        await asyncio.gather(*self._tasks, return_exceptions=True)
        leader.chain.abandon("killed")
        leader.replicas.end_lead(replica)
        replica.log.truncate_to(replica.log.high_watermark)
        if committed:
            replica.log.append_as_follower(committed)
            replica.log.advance_high_watermark(replica.log.log_end_offset)
        end_offset = replica.log.log_end_offset
        chain, epoch = await leader._own_chain(), item.leader_epoch + 1
        wal = (*item.wal, EpochChain(epoch, chain.name, end_offset))
        await self.metadata.commit(
            [records.put(dataclasses.replace(item, leader_epoch=epoch, wal=wal))]
        )
        await self._register(LEADER, process)
        for node in (leader, self.gateway):
            await node.view.refresh()
        self.lead()

    async def _unread_tail(self, replica: Replica) -> bytearray:
        """Return what the chain has committed of the partition, from the first unread batch on."""
        tail, chain = bytearray(), replica.chain
        if not isinstance(chain, ChainPartition) or not chain.unread:
            return tail
        content = self.log_content()
        for position, header in iter_headers(content):
            if replica.log.high_watermark <= header.base_offset < chain.chain_end:
                one = content[position : position + header.size_bytes]
                tail += await self._read_again(one) if header.base_offset in chain.unread else one
        return tail

    async def _read_again(self, zeros: bytes) -> bytes:
        """Return the batch of which a log has the header, from the gateway's object."""
        rest = header_rest(zeros)
        found = (
            (wal_key(self.leader.view.image.cluster_id, gateway, request.sequence), one.position)
            for request in self.forwarded
            for gateway in [ChainName(GATEWAY, request.chain_id)]
            for one in request.slices
            if one.header_rest == rest
        )
        key, position = next(found)
        read = (await self.objects.get(key))[position : position + len(zeros)]
        return zeros[:HEADER_SIZE] + read[HEADER_SIZE:]

    async def set_isr(self, *isr: int) -> None:
        """Store the partition's ISR, and have both nodes see it."""
        item = self.leader.view.image.partition(PLACE)
        assert item is not None
        await self.metadata.commit([records.put(dataclasses.replace(item, isr=isr))])
        for node in (self.leader, self.gateway):
            await node.view.refresh()

    async def delete_topic(self) -> None:
        """Remove the topic, and have the gateway see it."""
        image = self.gateway.view.image
        gone = [
            image.topics[TOPIC],
            *(image.partition(place(n)) for n in range(self.partition_count)),
        ]
        await self.metadata.commit([records.delete(one) for one in gone if one is not None])
        await self.gateway.view.refresh()

    async def begin_epoch(self) -> None:
        """Have the leader lead once more, in the next epoch."""
        item = self.leader.view.image.partition(PLACE)
        assert item is not None
        epoch = item.leader_epoch + 1
        begun = EpochChain(epoch, CHAIN_OF[LEADER], self.leader.replica.log.log_end_offset)
        stored = dataclasses.replace(item, leader_epoch=epoch, wal=(*item.wal, begun))
        await self.metadata.commit([records.put(stored)])
        for node in (self.leader, self.gateway):
            await node.view.refresh()
        self.lead()

    async def stop(self) -> None:
        for node in (self.gateway, self.leader):
            await node.stop()

    def send(self, broker_id: int, request: GatewayAppend) -> asyncio.Future[list[GatewayResult]]:
        """Carry a gateway's request to the leader, as bytes; the other way as well."""
        assert broker_id == LEADER
        self.attempt_count += 1
        results: asyncio.Future[list[GatewayResult]] = asyncio.get_running_loop().create_future()
        if not self.is_leader_reachable:
            results.set_exception(NotSent("the leader is away"))
            return results
        version = 1 if request.has_headers else 0
        received = parse_request(memoryview(encode_request(request, 1)), 14, version)
        self.forwarded.append(received)
        if self.is_hanging:
            self._hanging.append(results)
            return results
        task = asyncio.ensure_future(self._append(received))

        def on_done(done: asyncio.Future[list[GatewayResult]]) -> None:
            self._tasks.pop(done, None)
            if results.done():
                return
            if self.is_answer_lost or done.cancelled():
                results.set_exception(ConnectionResetError("lost"))
                return
            answer = b"".join(encode_answer(1, done.result()))
            results.set_result(parse_answer(memoryview(answer)[8:], len(received.slices)))

        self._tasks[task] = None
        task.add_done_callback(on_done)
        return results

    async def request(self, broker_id: int, api: Api, message: Any, *, timeout_s: float) -> Any:
        """Answer OffsetForLeaderEpoch, as ``Peers``."""
        assert (broker_id, api.key) == (LEADER, 23)
        self.ask_count += 1
        if self.is_leader_silent:
            raise CoordinatorNotAvailable(f"the leader does not answer within {timeout_s} s")
        return await self.leader.leader_epochs.handle(message, context_of(4, api_key=23))

    async def _append(self, request: GatewayAppend) -> list[GatewayResult]:
        if self.tickets is not None:
            await self.tickets.acquire()
        return await self.leader.appends.append(GATEWAY, request)

    def break_connection(self) -> None:
        """Lose the requests that hang: the leader has not seen them."""
        self.is_hanging = False
        for results in self._hanging:
            results.set_exception(ConnectionResetError("lost"))
        self._hanging.clear()

    async def restart_leader(self) -> None:
        """Have another process of the leader's broker registered."""
        await self._register(LEADER, "the next process")
        for node in (self.leader, self.gateway):
            await node.view.refresh()

    async def _register(self, broker_id: int, process: str) -> None:
        await register_broker(
            self.metadata,
            broker_id=broker_id,
            incarnation=uuid5(NAMESPACE_OID, process),
            endpoints=plaintext_endpoints("127.0.0.1", broker_id),
            rack=f"rack{broker_id}",
        )

    def log_content(self) -> bytes:
        """Return all bytes of the leader's log."""
        return content_of(self.leader.replica.log)


@asynccontextmanager
async def gateway_world(
    folder: Path, *, overlaps: bool = False, **topic_configs: str
) -> AsyncIterator[World]:
    world = World(folder, overlaps=overlaps, **topic_configs)
    await world.start()
    try:
        yield world
    finally:
        await world.stop()
