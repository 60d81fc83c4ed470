"""The cache of ranges on disk."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tidelog_core.errors import CorruptObject, ObjectNotFound, StorageError
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_node.tier import chunk_cache
from tidelog_node.tier.chunk_cache import ChunkCache
from tidelog_node.tier.protocol import ByteRange

KEY = "c/t/0/segment.log"


class SlowStore(MemoryObjectStore):
    """Holds every range GET back until the gate is opened, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.running = self.running_max = self.get_count = 0
        self.asked: list[int] = []  # where the ranges start

    async def get_range(self, key: str, start: int, end: int) -> bytes | memoryview:
        self.get_count += 1
        self.asked.append(start)
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        try:
            await self.gate.wait()
            return await super().get_range(key, start, end)
        finally:
            self.running -= 1


def check_length(wanted: ByteRange, data: bytes | memoryview) -> None:
    if len(data) != wanted.end - wanted.start:
        raise CorruptObject(wanted.key, f"it ends at {wanted.start + len(data)}")


@asynccontextmanager
async def new_cache(
    folder: Path,
    *,
    size_bytes_max: int = 1000,
    fetch_concurrency: int = 4,
    check: Callable[[ByteRange, bytes | memoryview], None] = check_length,
) -> AsyncIterator[tuple[ChunkCache, SlowStore]]:
    store = SlowStore()
    await store.put(KEY, bytes(n % 256 for n in range(5000)))
    with ThreadPoolExecutor(2) as executor:
        cache = ChunkCache(
            store,
            folder,
            size_bytes_max=size_bytes_max,
            fetch_concurrency=fetch_concurrency,
            executor=executor,
            check=check,
        )
        yield cache, store
        await cache.close()


def chunk(number: int) -> ByteRange:
    return ByteRange(KEY, 100 * number, 100 * number + 100)


def cached(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name != chunk_cache.BOOT_ID_FILE}


async def test_a_range_is_fetched_once_and_then_served_from_disk(tmp_path: Path) -> None:
    async with new_cache(tmp_path) as (cache, store):
        path = await cache.fetch(chunk(3))
        assert path.read_bytes() == bytes(n % 256 for n in range(300, 400))
        assert await cache.fetch(chunk(3)) == path
        assert store.get_count == 1


async def test_concurrent_askers_share_one_get(tmp_path: Path) -> None:
    async with new_cache(tmp_path) as (cache, store):
        store.gate.clear()
        asking = [asyncio.create_task(cache.fetch(chunk(0))) for _ in range(20)]
        await asyncio.sleep(0.01)
        asking[0].cancel()  # one who gives up does not fail the others
        await asyncio.sleep(0)
        store.gate.set()
        paths = await asyncio.gather(*asking[1:])
        assert len(set(paths)) == 1
        assert store.get_count == 1


async def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    async with new_cache(tmp_path) as (cache, _):
        for number in range(10):
            await cache.fetch(chunk(number))
        await cache.fetch(chunk(0))
        await cache.fetch(chunk(10))
        assert cache.size_bytes == 1000
        kept = {name.rpartition(".")[2] for name in cached(tmp_path)}
        assert "0-100" in kept
        assert "100-200" not in kept


async def test_a_range_larger_than_the_cache_is_still_served(tmp_path: Path) -> None:
    async with new_cache(tmp_path) as (cache, _):
        await cache.fetch(chunk(1))
        path = await cache.fetch(ByteRange(KEY, 0, 3000))
        assert path.stat().st_size == 3000
        assert len(cached(tmp_path)) == 1


def chunks(start: int, end: int) -> tuple[ByteRange, ...]:
    return tuple(chunk(number) for number in range(start, end))


async def settle() -> None:
    """Let everything happen that needs no GET to end."""
    await asyncio.sleep(0.02)


async def test_what_is_read_ahead_comes_together_with_what_is_wanted(tmp_path: Path) -> None:
    async with new_cache(tmp_path) as (cache, store):
        store.gate.clear()
        asking = asyncio.create_task(cache.fetch(chunk(0), chunks(1, 3)))
        await settle()
        assert store.asked == [0, 100, 200]
        store.gate.set()
        await asking


async def test_gets_are_bounded_and_reading_ahead_leaves_a_quarter_of_them(tmp_path: Path) -> None:
    async with new_cache(tmp_path, size_bytes_max=100_000) as (cache, store):
        await cache.fetch(chunk(0))
        store.gate.clear()
        await cache.fetch(chunk(0), chunks(10, 30))
        await settle()
        assert store.running == 3
        asking = [asyncio.create_task(cache.fetch(chunk(n))) for n in range(1, 9)]
        await settle()
        assert store.running == 4
        store.gate.set()
        await asyncio.gather(*asking)
        assert store.running_max == 4


async def test_a_range_that_someone_waits_for_is_no_longer_read_ahead(tmp_path: Path) -> None:
    """Its place is free for another, so that readers have their GETs and the half of all."""
    async with new_cache(tmp_path) as (cache, store):
        await cache.fetch(chunk(0))
        store.gate.clear()
        await cache.fetch(chunk(0), chunks(1, 10))
        asking = [asyncio.create_task(cache.fetch(chunk(number))) for number in (1, 2)]
        await settle()
        assert store.asked == [0, 100, 200, 300, 400]
        store.gate.set()
        await asyncio.gather(*asking)


async def test_reading_ahead_goes_on_while_its_reader_has_what_it_wants(tmp_path: Path) -> None:
    """As many GETs run as while readers wait: a reader of four partitions is busy half the time."""
    async with new_cache(tmp_path, size_bytes_max=100_000, fetch_concurrency=16) as (cache, store):
        for number in range(4):
            await cache.fetch(chunk(number))
        store.gate.clear()
        for number in range(4):
            await cache.fetch(chunk(number), chunks(10 + 3 * number, 13 + 3 * number))
        await settle()
        assert store.running == 12
        asking = [asyncio.create_task(cache.fetch(chunk(10 + 3 * number))) for number in range(4)]
        await settle()
        assert store.running == 12
        store.gate.set()
        await asyncio.gather(*asking)


async def test_reading_ahead_goes_on_when_a_wanted_range_has_come(tmp_path: Path) -> None:
    async with new_cache(tmp_path, size_bytes_max=100_000) as (cache, store):
        store.gate.clear()
        asking = [asyncio.create_task(cache.fetch(chunk(n))) for n in range(3)]
        await settle()
        last = asyncio.create_task(cache.fetch(chunk(3), chunks(10, 12)))
        await settle()
        assert store.asked == [0, 100, 200, 300]
        store.gate.set()
        await asyncio.gather(*asking, last)
        await settle()
        assert sorted(store.asked[4:]) == [1000, 1100]


async def test_who_needs_a_range_that_waits_to_be_read_ahead_gets_it_now(tmp_path: Path) -> None:
    async with new_cache(tmp_path, size_bytes_max=100_000) as (cache, store):
        await cache.fetch(chunk(0))
        store.gate.clear()
        await cache.fetch(chunk(0), chunks(10, 30))
        asking = asyncio.create_task(cache.fetch(chunk(29)))
        await settle()
        assert store.running == 4
        store.gate.set()
        await asking


async def test_of_what_several_readers_will_need_the_nearest_comes_first(tmp_path: Path) -> None:
    async with new_cache(tmp_path, size_bytes_max=100_000) as (cache, store):
        await cache.fetch(chunk(0))
        await cache.fetch(chunk(1))
        store.gate.clear()
        await cache.fetch(chunk(0), chunks(10, 14))
        await cache.fetch(chunk(1), chunks(20, 24))
        await settle()
        store.gate.set()

        async def all_have_come() -> None:
            while store.get_count < 10:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

        await asyncio.wait_for(all_have_come(), 60)
        assert [start // 100 for start in store.asked[2:]] == [10, 11, 12, 20, 21, 22, 13, 23]


async def test_what_is_read_ahead_takes_half_of_the_cache_until_it_is_asked_for(
    tmp_path: Path,
) -> None:
    async with new_cache(tmp_path, size_bytes_max=1000) as (cache, store):
        await cache.fetch(chunk(0), chunks(1, 20))
        await settle()
        assert store.get_count == 1 + 5
        await cache.fetch(chunk(1))
        await cache.fetch(chunk(2), chunks(3, 20))
        await settle()
        assert store.get_count == 1 + 7


async def test_what_nobody_comes_for_holds_up_reading_ahead_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with new_cache(tmp_path, size_bytes_max=1000) as (cache, store):
        await cache.fetch(chunk(0), chunks(1, 6))
        await settle()
        await cache.fetch(chunk(20), chunks(21, 24))
        assert store.get_count == 7
        monkeypatch.setattr(chunk_cache, "AHEAD_STALE_S", 0.0)
        await asyncio.sleep(0.01)
        await cache.fetch(chunk(20), chunks(21, 24))
        await settle()
        assert store.get_count == 10


async def test_what_is_cached_of_an_object_can_be_forgotten(tmp_path: Path) -> None:
    async with new_cache(tmp_path) as (cache, store):
        gone = await cache.fetch(chunk(0), chunks(1, 3))
        await settle()
        other = "c/t/0/segment.log2"
        await store.put(other, bytes(100))
        kept = await cache.fetch(ByteRange(other, 0, 100))
        cache.forget([KEY])
        assert (gone.exists(), kept.exists(), cache.size_bytes) == (False, True, 100)
        assert (await cache.fetch(chunk(0))).exists()


async def test_the_next_get_does_not_wait_for_a_range_to_be_checked_and_written(
    tmp_path: Path,
) -> None:
    may_go_on = threading.Event()

    def check(_: ByteRange, __: bytes | memoryview) -> None:
        may_go_on.wait(60)

    async with new_cache(tmp_path, fetch_concurrency=1, check=check) as (cache, store):
        asking = [asyncio.create_task(cache.fetch(chunk(n))) for n in range(3)]
        await settle()
        assert store.asked == [0, 100, 200]
        may_go_on.set()
        for number, path in enumerate(await asyncio.gather(*asking)):
            assert path.read_bytes()[0] == 100 * number


async def test_trouble_reaches_everyone_and_is_not_remembered(tmp_path: Path) -> None:
    async with new_cache(tmp_path) as (cache, store):
        absent = ByteRange("c/t/0/other.log", 0, 10)
        found = await asyncio.gather(
            *(cache.fetch(absent) for _ in range(3)), return_exceptions=True
        )
        assert {type(error) for error in found} == {ObjectNotFound}
        await store.put(absent.key, b"0123456789")
        assert (await cache.fetch(absent)).read_bytes() == b"0123456789"
        with pytest.raises(CorruptObject, match="ends at 5000"):
            await cache.fetch(ByteRange(KEY, 4990, 5010))


async def test_a_file_that_someone_removed_is_fetched_again(tmp_path: Path) -> None:
    async with new_cache(tmp_path) as (cache, store):
        (await cache.fetch(chunk(0))).unlink()
        assert (await cache.fetch(chunk(0))).exists()
        assert store.get_count == 2
        assert cache.size_bytes == 100


async def test_a_restart_keeps_whole_files_and_removes_partial_ones(tmp_path: Path) -> None:
    async with new_cache(tmp_path) as (cache, _):
        await cache.fetch(chunk(0))
        await cache.fetch(chunk(1))
    (tmp_path / "x.log.0-9.partial").write_bytes(b"half")
    async with new_cache(tmp_path) as (cache, store):
        assert cache.size_bytes == 200
        await cache.fetch(chunk(1))
        assert store.get_count == 0
        assert len(cached(tmp_path)) == 2


async def test_another_boot_drops_our_files_and_nobody_elses(tmp_path: Path) -> None:
    async with new_cache(tmp_path) as (cache, _):
        await cache.fetch(chunk(0))
    (tmp_path / "thesis.doc").write_text("years of work")
    (tmp_path / chunk_cache.BOOT_ID_FILE).write_text("another")
    async with new_cache(tmp_path) as (cache, _):
        assert cache.size_bytes == 0
        assert cached(tmp_path) == {"thesis.doc"}


@pytest.mark.parametrize("marker", ["garbage", "empty", "folder", "missing"])
async def test_a_cache_whose_boot_is_unreadable_begins_empty(tmp_path: Path, marker: str) -> None:
    """A worker that ended for it would leave the node without a bucket for ever."""
    async with new_cache(tmp_path) as (cache, _):
        await cache.fetch(chunk(0))
    path = tmp_path / chunk_cache.BOOT_ID_FILE
    path.unlink()
    if marker == "folder":
        path.mkdir()
    elif marker != "missing":
        path.write_bytes(b"\x9d\xff" if marker == "garbage" else b"")
    async with new_cache(tmp_path) as (cache, store):
        assert cache.size_bytes == 0
        await cache.fetch(chunk(0))
        assert store.get_count == 1


async def test_a_folder_with_the_name_of_a_cached_range_stays(tmp_path: Path) -> None:
    (tmp_path / "x.log.0-9.partial").mkdir()
    async with new_cache(tmp_path) as (cache, _):
        await cache.fetch(chunk(0))
    async with new_cache(tmp_path) as (cache, _):
        assert cache.size_bytes == 100
    assert (tmp_path / "x.log.0-9.partial").is_dir()


async def test_a_cache_without_a_folder_fails_reads_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file is here")
    async with new_cache(tmp_path / "cache") as (cache, _):
        assert "cache of tiered segments cannot be used, reads of them fail" in caplog.messages
        with pytest.raises(StorageError):
            await cache.fetch(chunk(0))
        (tmp_path / "cache").unlink()
        assert (await cache.fetch(chunk(0))).exists()


async def test_a_folder_that_someone_removed_is_made_again(tmp_path: Path) -> None:
    async with new_cache(tmp_path / "cache") as (cache, _):
        await cache.fetch(chunk(0))
        shutil.rmtree(tmp_path / "cache")
        assert (await cache.fetch(chunk(0))).exists()
        assert (await cache.fetch(chunk(1))).exists()
