"""Erasing a key from a tier: it is gone from every object, and nothing else is."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from pathlib import Path
from uuid import uuid4

from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.erasure.receipt import ErasureReceipt
from tidelog_core.erasure.tier import erase_from_tier
from tidelog_core.erasure.topic import erase_key
from tidelog_core.metadata import records
from tidelog_core.metadata.erasures import LocalErasure, local_erasure_key

from tests.support.compacted_tier import CUTS, compacted, pass_time, plain, read_rows, rows_of
from tests.support.random_logs import (
    KEYS,
    OPERATIONS,
    RandomLog,
    apply,
    committed_records,
)
from tests.support.tiered_partition import TieredPartition, tiered_partition


async def stored_keys(partition: TieredPartition) -> set[bytes | None]:
    """Return the keys of every record in the bucket, committed or not."""
    return {record.key for record in await partition.stored_records()}


@settings(max_examples=25, deadline=None)
@given(OPERATIONS, CUTS, st.sampled_from(KEYS), st.booleans())
async def test_a_key_is_gone_from_the_bucket_and_all_else_stays(
    operations: list[tuple[object, ...]], cuts: list[int], key: bytes, is_compacted: bool
) -> None:
    log = RandomLog()
    apply(log, operations)
    if not log.batches:
        return

    with tempfile.TemporaryDirectory() as name:
        async with tiered_partition(Path(name)) as partition:
            await partition.copy_all(log.batches, cuts)
            if is_compacted:
                await compacted(partition)
            before = read_rows(partition)
            erasure = await erase_from_tier(partition.tier(), key)
            assert read_rows(partition) == [row for row in before if row[2] != key]
            assert await partition.problems() == []
            removed = [n for one in erasure.erased for n in one.removed_offsets]
            assert {row[0] for row in before if row[2] == key} <= set(removed)
            assert removed == sorted(removed)
            assert erasure.end_offset == log.end_offset
            await pass_time(partition)
            assert key not in await stored_keys(partition)
            assert await partition.object_keys() == await partition.named_keys()
            assert await partition.problems() == []
            again = await erase_from_tier(partition.tier(), key)
            assert again.erased == ()


async def test_segments_that_cannot_hold_the_key_are_not_read(tmp_path: Path) -> None:
    log = RandomLog()
    async with tiered_partition(tmp_path) as partition:
        kept = await partition.copy([plain(log, "a", "b")])
        held = await partition.copy([plain(log, "c", "b")])
        (
            partition.folder
            / "objects"
            / next(
                key
                for key in await partition.object_keys()
                if str(kept.segment_id) in key and key.endswith(".log")
            )
        ).unlink()
        erasure = await erase_from_tier(partition.tier(), b"c")
        (one,) = erasure.erased
        assert (one.old_segment_ids, one.removed_offsets) == ((held.segment_id,), (2,))


async def test_compaction_after_an_erasure_leaves_what_it_would_have(tmp_path: Path) -> None:
    log = RandomLog()
    async with tiered_partition(tmp_path) as partition:
        await partition.copy([plain(log, "a", "b")])
        await partition.copy([plain(log, "a", "c")])
        await erase_from_tier(partition.tier(), b"b")
        await compacted(partition)
        await erase_from_tier(partition.tier(), b"c")
        expected = [row for row in rows_of(committed_records(log.batches)) if row[0] == 2]
        assert read_rows(partition) == expected
        assert [meta.compacted_up_to for meta in await partition.finished()] == [log.end_offset]
        await pass_time(partition)
        assert await stored_keys(partition) == {b"a"}


async def honour(partition: TieredPartition) -> None:
    """Have the partition's request honoured, as its leader does."""
    item = await partition.store.get(local_erasure_key(partition.topic.topic_id, 0))
    assert item is not None
    request = dataclasses.replace(LocalErasure.from_item(item), up_to=4, honoured=(1,))
    await partition.store.commit([records.put(request)])


async def test_an_erasure_waits_for_who_rewrites_the_partition_and_for_replicas(
    tmp_path: Path,
) -> None:
    log = RandomLog()
    async with tiered_partition(tmp_path) as partition:
        await partition.copy([plain(log, "a", "b"), plain(log, "a", "c")])
        claimed = contextlib.AsyncExitStack()
        await claimed.enter_async_context(partition.tier().claimed())
        polls = 0

        async def sleep(seconds: float) -> None:
            nonlocal polls
            polls += 1
            partition.clock.now_ms += int(seconds * 1000)
            if polls == 2:
                await honour(partition)
            if polls == 5:
                await claimed.aclose()

        receipt = await erase_key(
            [partition.tier()], b"a", erasure_id=uuid4(), wait_seconds=10, sleep=sleep
        )
        assert receipt.is_done
        (one,) = receipt.partitions
        assert one.up_to == 4
        assert await stored_keys(partition) == {b"b", b"c"}
        assert await partition.store.get(local_erasure_key(partition.topic.topic_id, 0)) is None


async def test_what_is_not_done_is_reported_and_stays_asked_for(tmp_path: Path) -> None:
    log = RandomLog()
    async with tiered_partition(tmp_path) as partition:
        await partition.copy([plain(log, "a", "b")])

        async def sleep(seconds: float) -> None:
            partition.clock.now_ms += int(seconds * 1000)

        async def erase() -> ErasureReceipt:
            return await erase_key(
                [partition.tier()], b"a", erasure_id=uuid4(), wait_seconds=1, sleep=sleep
            )

        async with partition.tier().claimed():
            receipt = await erase()
        (one,) = receipt.partitions
        assert one.problems[0] == "no leader has taken the request up"
        assert "PartitionClaimed" in one.problems[1]
        receipt = await erase()
        assert receipt.partitions[0].problems == ("no leader has taken the request up",)
        assert await stored_keys(partition) == {b"b"}
        item = await partition.store.get(local_erasure_key(partition.topic.topic_id, 0))
        assert item is not None  # Replicas find it when they come.
        assert await partition.problems() == []
