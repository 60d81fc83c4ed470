"""A chain's owner with real logs, its worker in this process, and a store with seeded faults."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from tidelog_core.config import NodeConfig, TopicConfig
from tidelog_core.diskless.chain.chain_writer import WriterLimits
from tidelog_core.diskless.chain.put_pace import PaceLimits
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.wal.build import ObjectName, build_seal
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import parse_object
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import (
    ObjectExists,
    OutcomeUnknown,
    StoreUnavailable,
    TidelogError,
    TierUnavailable,
)
from tidelog_core.log.local_log import LocalLog
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain
from tidelog_core.model import TopicPartition
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.objects.payload import Payload
from tidelog_core.objects.store import ObjectMeta, ObjectStore
from tidelog_node.counters import ChainTraffic
from tidelog_node.diskless.chain.owned_chain import OwnedChain
from tidelog_node.diskless.chain.wal_client import WalClient
from tidelog_node.diskless.chain.writer_limits import kept_bytes_max
from tidelog_node.tier.client import TierClient
from tidelog_node.tier.protocol import (
    Fields,
    OnEvent,
    Request,
    StoreRequest,
    error_from_fields,
    error_to_fields,
    request_from_fields,
    request_to_fields,
)
from tidelog_node.tier.store_calls import call_store
from tidelog_node.tier.wal_messages import (
    WalBuildPutRequest,
    WalBuildRequest,
    WalDropRequest,
    WalIndexRequest,
    WalPutRequest,
    WalStoreRequest,
)
from tidelog_node.tier.wal_objects import WalObjects
from tidelog_node.tier.worker_command import WorkerCommand
from tidelog_node.tier.worker_store import WorkerAway

from tests.support.batches import batch
from tests.support.chain_model.survey import partition_tails
from tests.support.wal_objects import CLUSTER, HEIR
from tests.support.worker_messages import as_received

FAST = WriterLimits(
    flush_bytes=20_000,
    flush_ms=3.0,
    idle_flush_ms=1.0,
    object_bytes_max=30_000,
    buffer_bytes_max=200_000,
    pace=PaceLimits(
        in_flight_max=4,
        first_hedge_ms=15.0,
        hedge_ms_min=5.0,
        puts_per_second_max=0,
        retry_ms_first=1.0,
        retry_ms_max=20.0,
    ),
)


@dataclass(slots=True)
class Faults:
    """What a store does with PUTs, each with a part of them, 0 to 1."""

    refused: float = 0.0  # 503
    lost: float = 0.0  # carried out, and the answer is lost
    vanished: float = 0.0  # not carried out, and the answer is lost
    late: float = 0.0  # carried out after the answer was lost
    conflict: float = 0.0  # 409, nothing is written
    slow_s: float = 0.0  # the longest time of an answer
    slow_read_s: float = 0.0  # the same of a read


class FaultyStore:
    """An ``ObjectStore`` that does to PUTs what a bucket does now and then."""

    def __init__(self, store: ObjectStore, chance: random.Random) -> None:
        self.store = store
        self.faults = Faults()
        self.put_count = 0
        self.held = asyncio.Event()  # cleared: PUTs wait
        self.held.set()
        self._chance = chance
        self._late: set[asyncio.Task[None]] = set()

    async def put_once(self, key: str, data: Payload, *, timeout_s: float) -> None:
        self.put_count += 1
        whole = bytes(data)
        faults, draw = self.faults, self._chance.random()
        await self.held.wait()
        if faults.slow_s:
            await asyncio.sleep(self._chance.random() * faults.slow_s)
        for part, fate in (
            (faults.refused, self._refuse),
            (faults.vanished, self._vanish),
            (faults.conflict, self._conflict),
            (faults.late, self._write_later),
        ):
            if draw < part:
                await fate(key, whole)
                return
            draw -= part
        await self.store.put(key, whole)
        if draw < faults.lost:
            raise OutcomeUnknown("the answer was lost")

    async def _refuse(self, key: str, data: bytes) -> None:
        raise StoreUnavailable("slow down")

    async def _vanish(self, key: str, data: bytes) -> None:
        raise OutcomeUnknown("nothing came of it")

    async def _conflict(self, key: str, data: bytes) -> None:
        raise ObjectExists(key)

    async def _write_later(self, key: str, data: bytes) -> None:
        async def write() -> None:
            await asyncio.sleep(self._chance.random() * 0.02)
            try:
                await self.store.put(key, data)
            except TidelogError:
                return

        task = asyncio.create_task(write())
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        raise OutcomeUnknown("no answer yet")

    async def put(self, key: str, data: bytes, *, kms_key_id: str = "") -> None:
        await self.store.put(key, data, kms_key_id=kms_key_id)

    async def put_file(self, key: str, path: Path, *, kms_key_id: str = "") -> None:
        await self.store.put_file(key, path, kms_key_id=kms_key_id)

    async def replace(self, key: str, data: bytes) -> None:
        await self.store.replace(key, data)

    async def get(self, key: str) -> bytes:
        return await self.store.get(key)

    async def get_range(self, key: str, start: int, end: int) -> bytes | memoryview:
        if self.faults.slow_read_s:
            await asyncio.sleep(self._chance.random() * self.faults.slow_read_s)
        return await self.store.get_range(key, start, end)

    async def head(self, key: str) -> ObjectMeta:
        return await self.store.head(key)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        async for found in self.store.list(prefix, start_after=start_after):
            yield found

    async def delete(self, keys: Sequence[str]) -> None:
        await self.store.delete(keys)

    async def close(self) -> None:
        await asyncio.gather(*self._late)
        await self.store.close()


class WorkerHere(TierClient):
    """Answers in this process what the worker's process would; ``kill`` loses what it keeps.

    Events come a turn of the loop later, when the PUT has begun, and not at all after a kill.
    """

    def __init__(
        self,
        store: ObjectStore,
        folder: Path,
        *,
        built_bytes_max: int,
        executor: Executor | None = None,
    ) -> None:
        super().__init__(
            WorkerCommand(
                socket=folder / "wal.sock", objects="", cache_dir=folder, node_config=NodeConfig()
            )
        )
        self._objects = store
        self._built_bytes_max = built_bytes_max
        self._executor = executor or ThreadPoolExecutor(2)
        self._calls: set[asyncio.Task[Fields]] = set()
        self._restart: asyncio.TimerHandle | None = None
        self.greatest_built_bytes = 0
        self.kill_count = 0
        self._start()

    def _start(self) -> None:
        self.wal: WalObjects | None = WalObjects(
            self._objects, built_bytes_max=self._built_bytes_max, executor=self._executor
        )

    def kill(self, down_s: float) -> None:
        """End the worker with SIGKILL; another one is there after so many seconds."""
        self.kill_count += 1
        self.wal = None
        for call in self._calls:
            call.cancel()
        if self._restart is not None:
            self._restart.cancel()  # It would replace the one that starts now, without a kill.
        self._restart = asyncio.get_running_loop().call_later(down_s, self._start)

    async def call(self, request: Request, on_event: OnEvent | None = None) -> Fields:
        request = request_from_fields(json.loads(json.dumps(request_to_fields(request))))
        wal = self.wal
        if wal is None:
            raise WorkerAway("the worker is down")

        def send_event(event: Fields) -> None:
            asyncio.get_running_loop().call_soon(receive, json.loads(json.dumps(event)))

        def receive(event: Fields) -> None:
            if self.wal is wal and on_event is not None and not call.done():
                on_event(event)

        call = asyncio.create_task(self._do(wal, request, send_event))
        self._calls.add(call)
        try:
            await asyncio.wait([call])
        finally:
            self._calls.discard(call)
            call.cancel()
        self.greatest_built_bytes = max(self.greatest_built_bytes, wal.built_bytes)
        if call.cancelled():
            raise TierUnavailable("the worker ended during the request")
        answer = await as_received(call.result())
        if "error" in answer:
            raise error_from_fields(answer["error"])
        return answer

    async def _do(self, wal: WalObjects, request: Request, send_event: OnEvent) -> Fields:
        try:
            match request:
                case StoreRequest():
                    return await call_store(self._objects, request)
                case (
                    WalBuildRequest()
                    | WalBuildPutRequest()
                    | WalStoreRequest()
                    | WalPutRequest()
                    | WalDropRequest()
                    | WalIndexRequest()
                ):
                    return await wal.answer(request, send_event)
        except TidelogError as error:
            return {"error": error_to_fields(error)}
        raise AssertionError(request)

    async def close(self) -> None:
        await self._objects.close()
        self._executor.shutdown()


class LedLog:
    """The replica of a diskless partition, as far as a chain knows it."""

    def __init__(self, folder: Path, number: int, **settings: Any) -> None:
        self.partition = TopicPartition("topic", number)
        self.topic_id = UUID(int=77)
        self.is_dropped = False
        self.is_diskless = self.is_leader = True
        self.changed_count = 0
        self.chain: Any = None
        self.log = LocalLog.open(
            folder / f"topic-{number}", self.partition, config=TopicConfig(**settings)
        )
        self.content = b""  # all batches of the log
        self.committed: list[int] = []
        self.on_committed: Callable[[], None] | None = None

    @property
    def name(self) -> PartitionName:
        return PartitionName(self.topic_id, self.partition.partition)

    @property
    def opened_log(self) -> LocalLog:
        return self.log

    def note_changed(self) -> None:
        self.changed_count += 1

    def append(self, count: int = 1, value_size_bytes: int = 10) -> None:
        data = batch(count, value_size_bytes=value_size_bytes)
        info = self.log.append_as_leader(data, leader_epoch=0)
        self.content += data
        if self.chain is not None:
            self.chain.on_append(self, info.base_offset, info.last_offset + 1, info.size_bytes)

    def on_chain_committed(self, end_offset: int) -> None:
        assert not self.committed or end_offset > self.committed[-1]
        self.committed.append(end_offset)
        if self.on_committed is not None:
            self.on_committed()
        self.log.advance_high_watermark(end_offset)

    @property
    def committed_end(self) -> int:
        return self.committed[-1] if self.committed else 0


class WalScene:
    """One chain, its logs and its store."""

    def __init__(
        self,
        folder: Path,
        *,
        seed: int = 0,
        limits: WriterLimits = FAST,
        chain_id: UUID | None = None,
        is_local: bool = False,
    ) -> None:
        """``is_local``: the worker builds and puts an object by one request."""
        self.folder = folder
        self.chance = random.Random(seed)
        self.limits = limits
        self.store = FaultyStore(FolderObjectStore(folder / "objects"), random.Random(seed + 1))
        self.worker = WorkerHere(self.store, folder, built_bytes_max=kept_bytes_max(limits))
        self.name = ChainName(1, chain_id or uuid4())
        self.traffic = ChainTraffic()
        self.chain = OwnedChain(
            WalClient(self.worker, CLUSTER, self.name, is_local=is_local),
            limits=limits,
            traffic=self.traffic,
        )
        self.logs: list[Any] = []
        self._checked_end = 0
        self.running = asyncio.create_task(self.chain.run())

    def lead(self, count: int, **settings: Any) -> list[Any]:
        """Let new partitions in."""
        for number in range(len(self.logs), len(self.logs) + count):
            log: Any = LedLog(self.folder, number, **settings)
            self.chain.enter(log, (EpochChain(0, self.name, 0),), end_offset=0)
            log.on_committed = self._check_predecessors
            self.logs.append(log)
        return self.logs[-count:]

    def _check_predecessors(self) -> None:
        for sequence in range(self._checked_end, self.chain.committed_end):
            key = wal_key(CLUSTER, self.name, sequence)
            assert (self.folder / "objects" / key).exists(), "committed before its predecessors"
        self._checked_end = self.chain.committed_end

    async def committed_content(self) -> dict[PartitionName, bytes]:
        """Return what the bucket alone says is committed; check every object."""
        chains = ChainStore(self.store, CLUSTER)
        footers, objects = [], {}
        for listed in await chains.list(self.name):
            key = wal_key(CLUSTER, self.name, listed.sequence)
            objects[listed.sequence] = await self.store.get(key)
            footers.append(parse_object(objects[listed.sequence], key=key))
        found: dict[PartitionName, bytes] = {}
        for name, slices in partition_tails([footers]).items():
            end_offset = 0
            for one in slices:
                assert one.base_offset == end_offset, "a gap"
                end_offset = one.end_offset
                data = objects[one.sequence][one.position : one.position + one.size_bytes]
                found[name] = found.get(name, b"") + data
        return found

    async def seal(self, sequence: int) -> None:
        """Put a seal, as an heir does."""
        place = ObjectName(CLUSTER, self.name, sequence, sequence, 0, 0)
        key = wal_key(CLUSTER, self.name, sequence)
        await self.store.put(key, build_seal(place, HEIR).data)

    async def close(self, seconds_max: float = 10.0) -> None:
        await self.chain.close(seconds_max)
        await self.running
        await self.worker.close()
        for log in self.logs:
            if not log.is_dropped:
                log.log.close()
