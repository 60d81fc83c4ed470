"""A cluster of real node processes, each behind a proxy of ours, for faults to be done to.

    <directory>/metadata.db       the metadata store, if it is SQLite
    <directory>/objects/          the object store; of one in S3 a copy, once the run is over
    <directory>/node-<id>/        a node's data directory
    <directory>/logs/             what each node says
    <directory>/clock-<id>        how far the node's wall clock is off
    <directory>/disk-<id>         which of the node's file calls fail, while it is there

Nodes are told to advertise their proxy, so clients and other nodes alike reach them
through it. With DynamoDB every node has a proxy of its own to the store, too, and another one with
S3, which takes as long as S3 does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import psutil
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.location import open_metadata_store
from tidelog_core.metadata.store import MetadataStore

from tests.chaos.bucket import NAME as BUCKET
from tests.chaos.bucket import S3Pace, copy_bucket, make_bucket
from tests.chaos.proxy import ByteProxy
from tests.faults.disk_faults import DiskFaults
from tests.faults.wall_clock import WallClock
from tests.support.node_process import NodeProcess
from tests.support.store_proxy import S3, StoreProxy

START_ATTEMPTS_MAX = 5
WATCH_SECONDS = 0.2
LOG_TAIL_CHARACTERS = 2000
TABLE = "chaos"
REGION = "us-east-1"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_REGION": REGION,
}


def rack_of(node_id: int) -> str:
    """Return the zone of a node."""
    return f"zone-{node_id}"


class NodeWontStart(Exception):
    """A node was started again and again, and ended each time before it served."""


class NodeState(StrEnum):
    """What we have done to a node's process."""

    UP = "up"
    PAUSED = "paused"
    DOWN = "down"


class ChaosNode:
    """One node and all that stands between it and the world."""

    def __init__(
        self,
        node_id: int,
        process: NodeProcess,
        proxy: ByteProxy,
        disk: DiskFaults,
        clock: WallClock,
        store: StoreProxy | None,
        objects: StoreProxy | None,
    ) -> None:
        self.node_id = node_id
        self.process = process
        self.proxy = proxy
        self.disk = disk  # of a node of a cluster that ``has_disk_faults``
        self.store_proxy = store
        self.object_proxy = objects
        self._paused_workers: list[psutil.Process] = []
        self.state = NodeState.DOWN
        self.clock = clock

    @property
    def name(self) -> str:
        """What reports and links call it."""
        return node_name(self.node_id)

    async def start(self) -> None:
        """Start the process; a store that fails just then may need several attempts."""
        for attempt in range(START_ATTEMPTS_MAX):
            try:
                await asyncio.to_thread(self.process.start)
            except (RuntimeError, TimeoutError) as error:
                if attempt == START_ATTEMPTS_MAX - 1:
                    raise NodeWontStart(f"{self.name} does not start: {_tail(self)}") from error
                await asyncio.sleep(1.0)
            else:
                self.state = NodeState.UP
                return

    async def kill(self) -> None:
        """``kill -9``."""
        self.state = NodeState.DOWN
        await asyncio.to_thread(self.process.kill)

    async def stop(self) -> int:
        """SIGTERM; return the exit status."""
        self.state = NodeState.DOWN
        return await asyncio.to_thread(self.process.stop)

    def pause(self) -> None:
        """SIGSTOP."""
        self.state = NodeState.PAUSED
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.process.pid, signal.SIGCONT)
        self.state = NodeState.UP

    def pause_workers(self) -> int:
        """SIGSTOP all processes that the node has started; return their number."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for worker in psutil.Process(self.process.pid).children(recursive=True):
                worker.suspend()
                self._paused_workers.append(worker)
        return len(self._paused_workers)

    def resume_workers(self) -> None:
        """SIGCONT those that were paused and still run."""
        for worker in self._paused_workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.resume()
        self._paused_workers.clear()

    def limit_files(self, size_bytes: int | None) -> None:
        """Let no file of the process grow past the size; None takes the limit away.

        A write that crosses it is cut short there, and the next one fails: what a full
        disk does, without one.
        """
        _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
        soft = resource.RLIM_INFINITY if size_bytes is None else size_bytes
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (soft, hard))

    def partition_dirs(self) -> list[Path]:
        """Return the directories of the node's logs."""
        return sorted(p.parent for p in self.process.data_dir.glob("*/topic-*"))


class ChaosCluster:
    """``async with``: the nodes run. ``died`` has those that ended by themselves."""

    def __init__(
        self,
        directory: Path,
        *,
        node_count: int,
        chance: random.Random,
        config: Mapping[str, str],
        dynamodb_url: str | None = None,  # None: SQLite
        s3_url: str | None = None,  # None: a folder
        has_racks: bool = False,  # each node is in a zone of its own
        has_disk_faults: bool = False,  # which take a C compiler
    ) -> None:
        self.directory = directory
        self.nodes: dict[int, ChaosNode] = {}
        self.died: list[str] = []
        self._node_count = node_count
        self._chance = chance
        self._config = dict(config)
        self._dynamodb_url = dynamodb_url
        self._s3_url = s3_url
        self._has_racks = has_racks
        self._has_disk_faults = has_disk_faults
        self._stack = AsyncExitStack()
        self._watcher: asyncio.Task[None] | None = None

    @property
    def bootstrap(self) -> str:
        """What clients are given."""
        return ",".join(f"127.0.0.1:{node.proxy.port}" for node in self.nodes.values())

    @property
    def metadata_path(self) -> Path | None:
        """The SQLite file, or None where the store is DynamoDB."""
        return None if self._dynamodb_url is not None else self.directory / "metadata.db"

    @property
    def objects_dir(self) -> Path:
        """The folder of the object store, or of ``copy_objects``."""
        return self.directory / "objects"

    async def copy_objects(self) -> None:
        """Copy what is in S3 into ``objects_dir``; nothing writes any more."""
        if self._s3_url is not None:
            await copy_bucket(self._s3_url, self.objects_dir)

    def open_store(self) -> MetadataStore:
        """Return the metadata store as an outsider sees it, around all proxies."""
        return open_metadata_store(self._store_url(self._dynamodb_url))

    async def image(self) -> ClusterImage:
        """Return the cluster as the metadata store has it now."""
        store = self.open_store()
        try:
            view = ClusterView(store)
            await view.refresh()
            return view.image
        finally:
            await store.close()

    async def __aenter__(self) -> ChaosCluster:
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            if self._dynamodb_url is not None or self._s3_url is not None:
                os.environ.update(CREDENTIALS)  # for our own calls; no server looks at them
            if self._dynamodb_url is not None:
                await self._create_table()
            if self._s3_url is not None:
                await asyncio.to_thread(make_bucket, self._s3_url, region=REGION)
            for node_id in range(1, self._node_count + 1):
                await self._add(node_id)
            # One after the other where it matters: the first writes the cluster's item.
            await asyncio.gather(*(node.start() for node in self.nodes.values()))
            self._watcher = asyncio.create_task(self._watch())
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close()

    async def stop_all(self) -> None:
        """Stop every node in order. Nothing is watched any more."""
        await self._stop_watching()
        running = [node for node in self.nodes.values() if node.process.process is not None]
        statuses = await asyncio.gather(*(node.stop() for node in running))
        for node, status in zip(running, statuses, strict=True):
            if status != 0:
                self.died.append(f"{node.name} stopped with status {status}: {_tail(node)}")

    async def _close(self) -> None:
        await self._stop_watching()
        for node in self.nodes.values():
            if node.process.process is not None:
                await node.kill()
        await self._stack.aclose()

    async def _stop_watching(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)

    async def _add(self, node_id: int) -> None:
        process = NodeProcess(
            self.directory / f"node-{node_id}",
            broker_id=node_id,
            config=self._config,
            object_store=f"file://{self.objects_dir}" if self._s3_url is None else f"s3://{BUCKET}",
            arguments=("--rack", rack_of(node_id)) if self._has_racks else (),
        )
        store_proxy, store_url, object_proxy = None, self._store_url(None), None
        if self._dynamodb_url is not None:
            chance = random.Random(self._chance.random())
            store_proxy = StoreProxy(self._dynamodb_url, chance)
            await self._stack.enter_async_context(store_proxy)
            store_url = self._store_url(store_proxy.url)
        process.log_path = self.directory / "logs" / f"node-{node_id}.log"
        process.metadata_store = store_url
        proxy = ByteProxy(process.port, pids=self._pids)
        await self._stack.enter_async_context(proxy)
        process.arguments = ("--advertised-port", str(proxy.port))
        clock = WallClock(self.directory / f"clock-{node_id}")
        process.environment = {**clock.environment(), **CREDENTIALS}
        if self._s3_url is not None:
            chance = random.Random(self._chance.random())
            object_proxy = StoreProxy(self._s3_url, chance, S3, pace_s=S3Pace(chance).draw_s)
            await self._stack.enter_async_context(object_proxy)
            process.environment["AWS_ENDPOINT_URL"] = object_proxy.url
        disk = DiskFaults(self.directory / f"disk-{node_id}")
        if self._has_disk_faults:
            process.environment.update(disk.environment())
        self.nodes[node_id] = ChaosNode(
            node_id, process, proxy, disk, clock, store_proxy, object_proxy
        )

    def _pids(self) -> dict[int, str]:
        running = [node for node in self.nodes.values() if node.process.process is not None]
        return {node.process.pid: node.name for node in running}

    def _store_url(self, endpoint: str | None) -> str:
        if endpoint is None:
            return f"sqlite://{self.directory}/metadata.db"
        return f"dynamodb://{TABLE}?region={REGION}&endpoint={quote(endpoint, safe='')}"

    async def _create_table(self) -> None:
        from tidelog_core.metadata.stores.dynamodb import DynamoDbMetadataStore

        store = DynamoDbMetadataStore(TABLE, region=REGION, endpoint=self._dynamodb_url)
        try:
            await store.create_table()
        finally:
            await store.close()

    async def _watch(self) -> None:
        """Note nodes that end without being told to, and start them again."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for node in self.nodes.values():
                running = node.process.process
                if (
                    node.state is NodeState.UP
                    and running is not None
                    and running.poll() is not None
                ):
                    self.died.append(f"{node.name} ended by itself: {_tail(node)}")
                    await node.kill()
                    try:
                        await node.start()
                    except NodeWontStart as error:
                        self.died.append(str(error))


def node_name(node_id: int) -> str:
    """Return what a node is called in reports and as the source of a link."""
    return f"node {node_id}"


def _tail(node: ChaosNode) -> str:
    return node.process.log[-LOG_TAIL_CHARACTERS:]
