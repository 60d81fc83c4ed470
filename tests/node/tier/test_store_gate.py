"""A worker serves nothing before the cluster's object store is recognized through it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tidelog_core.errors import StoreUnavailable, TidelogError, TierUnavailable, WrongObjectStore
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.tier.store_identity import StoreIdentity, accept_store
from tidelog_node.node_health import NodeHealth
from tidelog_node.tier import store_gate
from tidelog_node.tier.client import TierClient
from tidelog_node.tier.protocol import ByteRange
from tidelog_node.tier.store_gate import WRONG_STORE, StoreGate
from tidelog_node.tier.worker_store import WorkerAway

from tests.node.tier.test_client import command
from tests.support.tier_node import READY_TIMEOUT_S
from tests.support.waiting import eventually_async

CLUSTER = "c"


@asynccontextmanager
async def checked_client(folder: Path, health: NodeHealth) -> AsyncIterator[TierClient]:
    metadata = SqliteMetadataStore(folder / "metadata.db")
    identity = StoreIdentity(metadata, lambda: ClusterImage(cluster_id=CLUSTER))
    client = TierClient(command(folder), health=health, identity=identity)
    client.start()
    try:
        yield client
    finally:
        await client.close()
        await metadata.close()


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_gate, "CHECK_PAUSE_S", 0.02)


async def kill_worker(client: TierClient) -> None:
    """Kill the worker and wait until another one is connected."""
    pid = client.worker_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await eventually_async(lambda: client.worker_pid not in (None, pid))
    await client.wait_ready(READY_TIMEOUT_S)


async def test_a_worker_that_restarts_without_the_mounted_folder_writes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    objects, health = tmp_path / "objects", NodeHealth()
    async with checked_client(tmp_path, health) as client:
        await client.put("c/a", b"1")
        objects.rename(tmp_path / "unmounted")
        await kill_worker(client)
        for call in (
            client.put("c/b", b"2"),
            client.get("c/a"),
            client.read(ByteRange("c/a", 0, 1)),
            client.delete(["c/a"]),
        ):
            with pytest.raises(WrongObjectStore, match="not the object store of cluster c"):
                await call
        assert await client.status()
        await client.forget(("c/a",))
        (fault,) = health.reasons
        assert (fault.name, "tidelog tier accept-store" in fault.detail) == (WRONG_STORE, True)
        assert not objects.exists()
        (tmp_path / "unmounted").rename(objects)
        await eventually_async(lambda: health.is_well)  # Nobody needs to call.
        await client.put("c/b", b"2")
        assert [await client.get(key) for key in ("c/a", "c/b")] == [b"1", b"2"]
        assert client.restart_count == 1
    said = [one.message for one in caplog.records if one.name == store_gate.__name__]
    assert said == [
        "object store is not the cluster's, nothing is written to it",
        "object store recognized again",
    ]


@pytest.mark.parametrize("is_empty", [False, True], ids=["gone", "empty"])
async def test_a_folder_that_is_replaced_under_a_worker_takes_nothing(
    tmp_path: Path, *, is_empty: bool
) -> None:
    """The worker ends, and the next one is checked."""
    objects, health = tmp_path / "objects", NodeHealth()
    async with checked_client(tmp_path, health) as client:
        await client.put("c/a", b"1")
        objects.rename(tmp_path / "unmounted")
        if is_empty:
            (objects / ".staging").mkdir(parents=True)
        with pytest.raises(TidelogError):
            await client.put("c/b", b"2")
        await eventually_async(lambda: not health.is_well)
        with pytest.raises((WrongObjectStore, TierUnavailable)):
            await client.get("c/a")
        assert [path.name for path in objects.rglob("*")] == [".staging"] * is_empty
        if is_empty:
            (objects / ".staging").rmdir()
            objects.rmdir()
        (tmp_path / "unmounted").rename(objects)
        await eventually_async(lambda: health.is_well)
        await client.put("c/b", b"2")
        assert await client.get("c/a") == b"1"


async def test_an_accepted_store_is_written_without_a_restart_of_the_node(tmp_path: Path) -> None:
    objects, health = tmp_path / "objects", NodeHealth()
    async with checked_client(tmp_path, health) as client:
        await client.put("c/a", b"1")
        objects.rename(tmp_path / "lost")
        await kill_worker(client)
        await eventually_async(lambda: not health.is_well)
        metadata = SqliteMetadataStore(tmp_path / "metadata.db")
        store = FolderObjectStore(objects)
        await accept_store(store, metadata, CLUSTER)
        await store.close()
        await metadata.close()
        await eventually_async(lambda: health.is_well)
        await client.put("c/b", b"2")


async def test_a_first_worker_makes_the_folder_of_a_new_cluster(tmp_path: Path) -> None:
    async with checked_client(tmp_path, NodeHealth()) as client:
        await asyncio.gather(*(client.put(f"c/{number}", b"1") for number in range(5)))
        assert {path.name for path in (tmp_path / "objects" / "c").iterdir()} == {
            *("0", "1", "2", "3", "4", "object-store.json")
        }


class Check:
    """A check that a test ends."""

    def __init__(self) -> None:
        self.count = 0
        self.result: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __call__(self) -> None:
        self.count += 1
        await asyncio.shield(self.result)


@asynccontextmanager
async def running(check: Callable[[], object], health: NodeHealth) -> AsyncIterator[StoreGate]:
    gate = StoreGate(check, health=health, worker="tier")  # type: ignore[arg-type]
    task = asyncio.create_task(gate.run())
    try:
        yield gate
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_calls_share_one_check_and_a_cancelled_one_does_not_end_it() -> None:
    check = Check()
    async with running(check, NodeHealth()) as gate:
        calls = [asyncio.create_task(gate.opened()) for _ in range(3)]
        await asyncio.sleep(0)
        calls[0].cancel()
        await asyncio.sleep(0)
        check.result.set_result(None)
        await asyncio.gather(*calls[1:])
        assert (check.count, gate.is_open) == (1, True)


async def test_calls_of_a_worker_that_ends_during_its_check_were_not_sent() -> None:
    async with running(Check(), NodeHealth()) as gate:
        call = asyncio.create_task(gate.opened())
        await asyncio.sleep(0)
    with pytest.raises(WorkerAway):
        await call


async def test_a_store_that_cannot_be_asked_is_no_fault_and_is_asked_again() -> None:
    health, answers = NodeHealth(), [StoreUnavailable("away"), ValueError("our fault"), None]

    async def check() -> None:
        if (answer := answers[0]) is not None:
            raise answer

    async with running(check, health) as gate:
        with pytest.raises(StoreUnavailable, match="away"):
            await gate.opened()
        del answers[0]
        await asyncio.sleep(2 * store_gate.CHECK_PAUSE_S)
        with pytest.raises(StoreUnavailable, match="our fault"):
            await gate.opened()
        assert health.is_well
        del answers[0]
        await eventually_async(lambda: gate.is_open)
        await gate.opened()
