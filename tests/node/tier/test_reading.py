"""Reading evicted records through the worker and its cache."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
from functools import partial
from pathlib import Path

import pytest
from tidelog_core.errors import (
    ObjectNotFound,
    OffsetOutOfRange,
    StorageError,
    TierUnavailable,
)
from tidelog_core.log.record_source import ReadLimits
from tidelog_core.metadata.records import SEGMENT_COLLECTION_PREFIX, put
from tidelog_core.metadata.rewrite_claims import RewriteClaim
from tidelog_core.metadata.store import ALL_KEYS, Item, KeyRange
from tidelog_core.records.batch import iter_headers
from tidelog_core.tier.lifecycle import drop_segments, start_deletions
from tidelog_node.inspection.inspector import BatchInspector
from tidelog_node.replicas.replica import Replica
from tidelog_node.tier.remote_log import OPEN_CHUNKS_MAX

from tests.support.tier_node import CONFIG, READY_TIMEOUT_S, TierNode, running_node, slice_bytes
from tests.support.tier_segments import BASE_TIMESTAMP_MS
from tests.support.waiting import eventually_async

EVICTING = {"local.retention.bytes": "0", "retention.ms": "-1"}


def files_open_in(folder: Path) -> list[str]:
    """Return what this process has open in the folder, also if it is unlinked."""
    opened = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            opened.append(str(fd.readlink()))
    return [path for path in opened if path.startswith(f"{folder}/")]


def empty(folder: Path) -> None:
    """Remove every file. One that the worker is just renaming may be gone by itself."""
    for file in folder.iterdir():
        file.unlink(missing_ok=True)


async def evicted(
    node: TierNode, segment_count: int, *, batch_count: int = 20
) -> tuple[Replica, bytes]:
    """Return a replica whose segments are in the tier only, and their bytes."""
    replica = await node.create_topic(configs=EVICTING)
    segments = node.produce_segments(replica, segment_count, batch_count=batch_count)

    async def is_evicted() -> bool:
        return replica.log.local_log_start_offset == replica.log.log_end_offset

    await eventually_async(is_evicted)
    return replica, b"".join(segments)


@pytest.mark.parametrize(
    ("chunk_bytes", "max_bytes"),
    [(100, 2000), (4096, 1), (4096, 3000), (4096, 1_000_000), (1_000_000, 5000)],
)
async def test_a_consumer_gets_the_log_byte_for_byte(
    tmp_path: Path, chunk_bytes: int, max_bytes: int
) -> None:
    """Also with chunks smaller than one batch, and responses smaller than that."""
    config = dataclasses.replace(CONFIG, remote_chunk_bytes=chunk_bytes)

    async with running_node(tmp_path, config) as node:
        replica, data = await evicted(node, 3)
        with pytest.raises(OffsetOutOfRange):
            replica.log.read(0, max_bytes=1, up_to=600)
        assert await node.read_all(replica, 0, 600, max_bytes=max_bytes) == data


async def test_a_read_starts_with_the_batch_that_holds_the_offset(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica, data = await evicted(node, 2)
        start, _, end, behind = [position for position, _ in iter_headers(data)][21:25]
        read = await node.read(replica, 215, max_bytes=behind - start - 1)
        assert read.start_offset == 210
        assert read.slice is not None
        assert slice_bytes(read.slice) == data[start:end]
        assert (read.high_watermark, read.log_start_offset) == (400, 0)
        with pytest.raises(OffsetOutOfRange):
            await node.read(replica, 400, max_bytes=1)
        nothing = await node.read(replica, 0, max_bytes=1, min_one_batch=False)
        assert nothing.slice is None


async def test_many_readers_of_one_chunk_cost_one_get(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica, _ = await evicted(node, 1)
        reads = await asyncio.gather(*(node.read(replica, 5, max_bytes=100) for _ in range(50)))
        assert len({slice_bytes(read.slice) for read in reads if read.slice}) == 1
        # The index, the chunk, and the one behind it: who has begun may go on.
        assert (await node.tier.client.status())["get_count"] == 3


async def test_a_sequential_reader_is_read_ahead_for_across_segments(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica, _ = await evicted(node, 3)
        offset = 0
        while offset < 300:
            read = await node.read(replica, offset, max_bytes=1)
            offset = read.start_offset + 10
        status = node.tier.client.status

        async def is_ahead() -> bool:
            return (await status())["get_count"] >= 10

        await eventually_async(is_ahead)
        before = (await status())["get_count"]
        await node.read(replica, offset, max_bytes=1)
        assert (await status())["cache_hit_count"] > 0
        # A reader that jumps may go on: its chunk and the next, perhaps one index.
        await asyncio.sleep(0.2)
        before = (await status())["get_count"]
        await node.read(replica, 550, max_bytes=1)
        await asyncio.sleep(0.2)
        assert (await status())["get_count"] <= before + 3


async def test_who_begins_where_a_segment_begins_is_read_ahead_for_at_once(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, remote_chunk_bytes=1000)

    async with running_node(tmp_path, config) as node:
        replica, _ = await evicted(node, 2)
        await node.read(replica, 200, max_bytes=1)

        async def is_ahead() -> bool:
            return (await node.tier.client.status())["get_count"] >= 8

        await eventually_async(is_ahead)


async def test_within_a_chunk_a_reader_needs_neither_the_worker_nor_its_cache(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path) as node:
        replica, data = await evicted(node, 2)
        positions = [position for position, _ in iter_headers(data)]
        batch_count = sum(position < CONFIG.remote_chunk_bytes for position in positions)
        first = await node.read(replica, 0, max_bytes=1)
        client = node.tier.client
        pid = client.worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        empty(tmp_path / "cache")
        assert first.slice is not None
        found = slice_bytes(first.slice)
        for number in range(1, batch_count):
            read = await asyncio.wait_for(
                node.read(replica, 10 * number, max_bytes=1),
                10,
            )
            assert read.slice is not None
            found += slice_bytes(read.slice)
        assert found == data[: positions[batch_count]]
        behind = asyncio.create_task(node.read(replica, 10 * batch_count, max_bytes=1))
        await asyncio.sleep(0.1)
        assert not behind.done()
        os.kill(pid, signal.SIGCONT)
        read = await behind
        assert read.slice is not None
        assert data.startswith(slice_bytes(read.slice), positions[batch_count])


async def test_the_node_keeps_few_chunks_open(tmp_path: Path) -> None:
    """What the worker has evicted takes disk for as long as the node has it open."""
    config = dataclasses.replace(CONFIG, remote_chunk_bytes=2000)

    async with running_node(tmp_path, config) as node:
        replica, _ = await evicted(node, 6)
        for offset in range(1190, -1, -10):  # so that every chunk is left in its middle
            await node.read(replica, offset, max_bytes=1)
        chunks = files_open_in(tmp_path / "cache")
        assert len(chunks) == OPEN_CHUNKS_MAX


async def test_the_node_lets_go_of_the_chunks_of_readers_that_have_left(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, remote_chunk_bytes=2000)

    async with running_node(tmp_path, config) as node:
        replica, _ = await evicted(node, 2)
        read = partial(node.read, replica, max_bytes=1)
        await read(0)
        await read(300)
        assert len(files_open_in(tmp_path / "cache")) == 2
        await node.tier.apply_retention()
        await read(10)
        assert len(files_open_in(tmp_path / "cache")) == 2
        await node.tier.apply_retention()
        assert len(files_open_in(tmp_path / "cache")) == 1
        await node.tier.apply_retention()
        assert files_open_in(tmp_path / "cache") == []
        assert (await read(20)).start_offset == 20


async def test_the_cache_stays_within_its_limit(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, remote_cache_bytes=20_000)

    async with running_node(tmp_path, config) as node:
        replica, data = await evicted(node, 3)
        assert len(data) > 35_000
        for _ in range(2):
            assert await node.read_all(replica, 0, 600, max_bytes=3000) == data
            files = [f for f in (tmp_path / "cache").iterdir() if f.name != "boot-id"]
            assert sum(f.stat().st_size for f in files) <= 20_000 + 5000


async def test_a_reader_keeps_its_bytes_when_the_chunk_is_evicted(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica, data = await evicted(node, 1)
        read = await node.read(replica, 0, max_bytes=500)
        empty(tmp_path / "cache")
        assert read.slice is not None
        assert data.startswith(slice_bytes(read.slice))
        # And who comes later gets it again.
        assert await node.read_all(replica, 0, 200, max_bytes=500) == data


async def test_a_worker_killed_in_the_middle_of_a_read_fails_it_retriably(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica, data = await evicted(node, 2)
        client = node.tier.client
        for offset in (0, 250):
            pid = client.worker_pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            reads = [asyncio.create_task(node.read(replica, offset, max_bytes=1)) for _ in range(5)]
            await asyncio.sleep(0.1)
            assert not any(read.done() for read in reads)
            os.kill(pid, signal.SIGKILL)
            for read in reads:
                with pytest.raises(TierUnavailable) as caught:
                    await read
                assert caught.value.retriable
            with pytest.raises(TierUnavailable):  # at once, while there is none
                await client.status()
            await client.wait_ready(READY_TIMEOUT_S)
            assert await node.read_all(replica, 0, 400, max_bytes=900) == data


async def test_times_lead_to_tiered_records(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica, _ = await evicted(node, 3)
        log, search = replica.unified_log, BatchInspector().search
        for offset in (0, 7, 199, 200, 455, 599):
            found = await log.offset_for_timestamp(BASE_TIMESTAMP_MS + offset, search)
            assert found == (BASE_TIMESTAMP_MS + offset, offset)
        assert await log.offset_for_timestamp(BASE_TIMESTAMP_MS + 600, search) is None
        newest = await log.max_timestamp(search)
        assert newest == (BASE_TIMESTAMP_MS + 599, 599)


async def test_a_damaged_object_is_an_error_not_data(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica, _ = await evicted(node, 1)
        (index,) = node.objects_folder.rglob("*.index")
        damaged = bytearray(index.read_bytes())
        damaged[150] ^= 1
        index.write_bytes(damaged)
        with pytest.raises(Exception, match="CRC") as caught:
            await node.read(replica, 0, max_bytes=1)
        assert caught.value.code == StorageError.code  # type: ignore[attr-defined]


async def test_a_lost_object_is_reported_after_looking_again(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        replica, _ = await evicted(node, 1)
        (log,) = node.objects_folder.rglob("*.log")
        log.unlink()
        with pytest.raises(ObjectNotFound):
            await node.read(replica, 0, max_bytes=1)


async def test_a_segment_that_someone_else_removed_is_out_of_range(tmp_path: Path) -> None:
    """A reader that finds the object gone reads the metadata again."""
    async with running_node(tmp_path) as node:
        replica, _ = await evicted(node, 1)
        first = await node.read(replica, 0, max_bytes=1)
        assert first.slice is not None
        cache = tmp_path / "cache"

        async def is_ahead() -> bool:
            """Whether the next chunk has come too: later it would be in the cache again."""
            count = (await node.tier.client.status())["get_count"]
            return count >= 3 and not list(cache.glob("*.partial"))

        await eventually_async(is_ahead)
        # Someone else removes the segment, as retention in a function does.
        (meta,) = await node.finished(replica)
        marked = await start_deletions(node.store, [meta], deletable_ms=0)
        for path in [
            *node.objects_folder.rglob("*.log"),
            *cache.glob("*.log.*"),
        ]:
            path.unlink()
        await drop_segments(node.store, marked)
        with pytest.raises(OffsetOutOfRange):
            await node.read(replica, 100, max_bytes=1)


async def test_a_segment_is_read_that_was_finished_while_others_looked_for_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its local copy may be gone before they have what they asked the store for."""
    async with running_node(tmp_path) as node:
        replica, _ = await evicted(node, 1)
        # As of a node that has just begun to lead or to follow.
        remote = node.tier._partitions.new_remote_log(replica)

        async def read(offset: int) -> int | None:
            found = await remote.read(offset, ReadLimits(1))
            return None if found is None else found.start_offset

        has_read, may_go_on = asyncio.Event(), asyncio.Event()
        list_items = node.store.list

        async def list_slowly(
            collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
        ) -> list[Item]:
            items = await list_items(collection, prefix=prefix, keys=keys)
            if asyncio.current_task() is first:
                has_read.set()
                await may_go_on.wait()
            return items

        monkeypatch.setattr(node.store, "list", list_slowly)
        first = asyncio.create_task(read(0))
        await asyncio.wait_for(has_read.wait(), READY_TIMEOUT_S)
        node.produce_segments(replica, 1)

        async def is_evicted() -> bool:
            return replica.log.local_log_start_offset == replica.log.log_end_offset

        await eventually_async(is_evicted)
        second = asyncio.create_task(read(200))
        await asyncio.sleep(0)
        may_go_on.set()
        assert await first == 0
        assert await second == 200


async def test_cold_reads_go_on_while_segments_are_swapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many swaps there are: nobody waits, and few readings serve all of them."""
    async with running_node(tmp_path) as node:
        replica, _ = await evicted(node, 2)
        read = partial(node.read, replica, max_bytes=1)
        await read(0)
        may_go_on, reading_count = asyncio.Event(), 0
        list_items = node.store.list

        async def list_slowly(
            collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
        ) -> list[Item]:
            nonlocal reading_count
            items = await list_items(collection, prefix=prefix, keys=keys)
            if collection.startswith(SEGMENT_COLLECTION_PREFIX):
                reading_count += 1
                await may_go_on.wait()
            return items

        monkeypatch.setattr(node.store, "list", list_slowly)
        claim = RewriteClaim(
            topic_id=replica.topic_id,
            partition=0,
            rewrite_epoch=1,
            holder=replica.topic_id,
            expires_ms=0,
        )
        for version in range(10):
            await node.store.commit([put(dataclasses.replace(claim, version=version))])
            await node.view.refresh()
            await asyncio.sleep(0)
            served = await asyncio.wait_for(read(0), READY_TIMEOUT_S)
            assert served.start_offset == 0
        may_go_on.set()
        remote = node.tier.remote_log(replica)

        async def has_caught_up() -> bool:
            return not remote.is_behind

        await eventually_async(has_caught_up)
        assert 1 <= reading_count <= 3
