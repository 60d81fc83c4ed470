"""Ranges of objects in memory that is used again, from a folder and from a worker."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tidelog_core.errors import (
    InvalidObjectKey,
    ObjectNotFound,
    StoreUnavailable,
    TidelogError,
    WrongObjectStore,
)
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_node.tier.client import TierClient
from tidelog_node.tier.lent_memory import LentMemory
from tidelog_node.tier.lent_ranges import (
    READS_AT_ONCE_MAX,
    FolderLender,
    RangeLender,
    WorkerLender,
)
from tidelog_node.tier.worker_command import WorkerCommand

from tests.support.tier_node import CONFIG, READY_TIMEOUT_S
from tests.support.waiting import eventually_async

SIZE_BYTES = 1 << 20
OBJECT = Random(0).randbytes(300_000)
KEY = "some/object"


def is_whole(memory: LentMemory) -> bool:
    loan = memory.lend(memory.size_bytes)
    if loan is not None:
        loan.give_back()
    return loan is not None


@pytest.fixture
async def objects(tmp_path: Path) -> Path:
    folder = tmp_path / "objects"
    store = FolderObjectStore(folder)
    await store.put(KEY, OBJECT)
    await store.close()
    return folder


@pytest.fixture
def memory() -> LentMemory:
    return LentMemory(SIZE_BYTES, is_shared=True)


@pytest.fixture
async def client(objects: Path, memory: LentMemory, tmp_path: Path) -> AsyncIterator[TierClient]:
    client = TierClient(
        WorkerCommand(
            socket=tmp_path / "wal.sock",
            objects=f"file://{objects}",
            cache_dir=tmp_path / "cache",
            node_config=CONFIG,
            memory=memory,
        )
    )
    client.start()
    await client.wait_ready(READY_TIMEOUT_S)
    yield client
    await client.close()


@pytest.fixture(params=["folder", "worker"])
async def lender(
    request: pytest.FixtureRequest, objects: Path, memory: LentMemory, client: TierClient
) -> AsyncIterator[RangeLender]:
    with ThreadPoolExecutor(2) as executor:
        if request.param == "folder":
            yield FolderLender(objects, memory, executor, store=client)
        else:
            yield WorkerLender(client, memory)


async def test_a_range_is_lent_until_it_is_released(
    lender: RangeLender, memory: LentMemory
) -> None:
    for start, end in ((0, 10), (0, len(OBJECT)), (299_990, 300_000), (5, 123_456)):
        found = await lender.lend(KEY, start, end)
        assert found.data == OBJECT[start:end]
        assert not found.data.readonly
        assert not is_whole(memory)
        found.release()
        found.release()
        assert is_whole(memory)
        with pytest.raises(ValueError, match="released"):
            bytes(found.data)


async def test_a_range_ends_with_its_object(lender: RangeLender, memory: LentMemory) -> None:
    for start in (299_000, 300_000, 400_000):
        found = await lender.lend(KEY, start, start + 100_000)
        assert found.data == OBJECT[start:]
        found.release()
    assert is_whole(memory)


async def test_an_object_that_is_missing_takes_no_memory(
    lender: RangeLender, memory: LentMemory
) -> None:
    with pytest.raises(ObjectNotFound, match="other"):
        await lender.lend("some/other", 0, 1_000)
    assert is_whole(memory)


async def test_a_key_outside_of_the_store_is_refused(lender: RangeLender) -> None:
    with pytest.raises(InvalidObjectKey):
        await lender.lend("../object", 0, 10)


async def test_the_store_decides_that_an_object_of_a_folder_is_missing(
    objects: Path, memory: LentMemory
) -> None:
    """A file system that is not mounted does not look like the end of a chain."""
    store = FolderObjectStore(objects)
    assert await store.get(KEY) == OBJECT
    with ThreadPoolExecutor(1) as executor:
        lender = FolderLender(objects, memory, executor, store=store)
        objects.rename(objects.with_name("elsewhere"))
        objects.mkdir()
        with pytest.raises(WrongObjectStore):
            await lender.lend(KEY, 0, 10)
    assert is_whole(memory)
    await store.close()


async def test_ranges_at_once_have_their_own_bytes(lender: RangeLender, memory: LentMemory) -> None:
    """Those for which there is no room are read elsewhere."""
    chance = Random(1)
    starts = [chance.randrange(200_000) for _ in range(40)]
    found = await asyncio.gather(*(lender.lend(KEY, at, at + 99_000) for at in starts))
    assert [bytes(one.data) for one in found] == [OBJECT[at : at + 99_000] for at in starts]
    assert not any(one.data.readonly for one in found)
    for one in found:
        one.release()
    assert is_whole(memory)


async def test_without_shared_memory_ranges_are_read_elsewhere(client: TierClient) -> None:
    found = await WorkerLender(client, None).lend(KEY, 10, 20)
    assert found.data == OBJECT[10:20]
    assert not found.data.readonly
    found.release()


async def test_the_place_of_a_reader_that_gave_up_is_not_lent_before_the_worker_has_answered(
    client: TierClient, memory: LentMemory
) -> None:
    assert client.worker_pid is not None
    lender = WorkerLender(client, memory)
    os.kill(client.worker_pid, signal.SIGSTOP)
    reading = asyncio.create_task(lender.lend(KEY, 0, 1_000))
    await asyncio.sleep(0.05)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not is_whole(memory)
    os.kill(client.worker_pid, signal.SIGCONT)
    await eventually_async(lambda: is_whole(memory))


async def test_a_worker_that_is_killed_keeps_no_memory(
    client: TierClient, memory: LentMemory
) -> None:
    assert client.worker_pid is not None
    lender = WorkerLender(client, memory)
    os.kill(client.worker_pid, signal.SIGSTOP)
    reading = asyncio.create_task(lender.lend(KEY, 0, 1_000))
    await asyncio.sleep(0.05)
    os.kill(client.worker_pid, signal.SIGKILL)
    with pytest.raises(TidelogError):
        await reading
    assert is_whole(memory)
    await client.wait_ready(READY_TIMEOUT_S)
    found = await lender.lend(KEY, 0, 1_000)
    assert found.data == OBJECT[:1_000]
    found.release()


class OneAnswer(Executor):
    """An executor whose calls all have the answer that a test gives."""

    def __init__(self) -> None:
        self.answer: Future[Any] = Future()

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        return self.answer


@pytest.mark.parametrize("has_room", [True, False], ids=["lent", "elsewhere"])
@pytest.mark.parametrize("turns", range(6))
async def test_a_failure_that_nobody_waits_for_any_more_is_no_fault_of_the_program(
    objects: Path, memory: LentMemory, turns: int, *, has_room: bool
) -> None:
    """The reader gives up before the read fails, at the same time, or afterwards."""
    loop, executor, said = asyncio.get_running_loop(), OneAnswer(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: said.append(context))
    store = FolderObjectStore(objects)
    others = None if has_room else memory.lend(SIZE_BYTES)
    lender = FolderLender(objects, memory, executor, store=store)
    reading = asyncio.create_task(lender.lend(KEY, 0, 10))
    await asyncio.sleep(0)
    loop.call_soon(executor.answer.set_exception, StoreUnavailable("away"))
    for _ in range(turns):
        await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises((StoreUnavailable, asyncio.CancelledError)):
        await reading
    for _ in range(6):
        await asyncio.sleep(0)
    if others is not None:
        others.give_back()
    assert is_whole(memory)
    del reading
    executor.answer = Future()
    gc.collect()
    assert said == []
    await store.close()


class CountedThreads(ThreadPoolExecutor):
    """Counts the calls that its threads get."""

    count = 0

    def submit(self, *arguments: Any, **keywords: Any) -> Future[Any]:
        self.count += 1
        return super().submit(*arguments, **keywords)


@pytest.mark.parametrize("has_room", [True, False], ids=["lent", "elsewhere"])
async def test_reads_of_a_folder_that_hangs_take_a_limited_part_of_memory(
    objects: Path, memory: LentMemory, client: TierClient, *, has_room: bool
) -> None:
    """Readers give up, and try again: each try would keep as many bytes as it wants to read."""
    os.mkfifo(objects / "hanging")
    others = None if has_room else memory.lend(SIZE_BYTES)
    with CountedThreads(READS_AT_ONCE_MAX) as threads:
        lender = FolderLender(objects, memory, threads, store=client)
        reads = [asyncio.create_task(lender.lend("hanging", 0, 10)) for _ in range(50)]
        await eventually_async(lambda: threads.count >= READS_AT_ONCE_MAX)
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        assert threads.count == READS_AT_ONCE_MAX
        # The file system goes on.
        descriptor = os.open(objects / "hanging", os.O_WRONLY)
        assert bytes((await lender.lend(KEY, 0, 10)).data) == OBJECT[:10]
        os.close(descriptor)
    if others is not None:
        others.give_back()
