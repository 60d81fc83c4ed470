"""Erasing a key from a tier: it is gone from every object, and nothing else is."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.rewriting.erase import delete_replaced, erase_from_tier

from tests.core.compaction.random_logs import (
    KEYS,
    OPERATIONS,
    RandomLog,
    apply,
    committed_records,
)
from tests.core.rewriting.test_compact import CUTS, compacted, plain, read, rows
from tests.core.rewriting.tiered import TieredPartition, tiered_partition


async def pass_time(partition: TieredPartition) -> None:
    async def sleep(seconds: float) -> None:
        partition.clock.now_ms += int(seconds * 1000)

    await delete_replaced(partition.tier(), sleep=sleep)


async def stored_keys(partition: TieredPartition) -> set[bytes | None]:
    """Return the keys of every record in the bucket, committed or not."""
    return {record.key for record in await partition.stored_records()}


@settings(max_examples=25, deadline=None)
@given(OPERATIONS, CUTS, st.sampled_from(KEYS), st.booleans())
def test_a_key_is_gone_from_the_bucket_and_all_else_stays(
    operations: list[tuple[object, ...]], cuts: list[int], key: bytes, is_compacted: bool
) -> None:
    log = RandomLog()
    apply(log, operations)
    if not log.batches:
        return

    async def check() -> None:
        with tempfile.TemporaryDirectory() as name:
            async with tiered_partition(Path(name)) as partition:
                await partition.copy_all(log.batches, cuts)
                if is_compacted:
                    await compacted(partition)
                before = read(partition)
                erasure = await erase_from_tier(partition.tier(), key)
                assert read(partition) == [row for row in before if row[2] != key]
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

    asyncio.run(check())


def test_segments_that_cannot_hold_the_key_are_not_read(tmp_path: Path) -> None:
    async def check() -> None:
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

    asyncio.run(check())


def test_compaction_after_an_erasure_leaves_what_it_would_have(tmp_path: Path) -> None:
    async def check() -> None:
        log = RandomLog()
        async with tiered_partition(tmp_path) as partition:
            await partition.copy([plain(log, "a", "b")])
            await partition.copy([plain(log, "a", "c")])
            await erase_from_tier(partition.tier(), b"b")
            await compacted(partition)
            await erase_from_tier(partition.tier(), b"c")
            expected = [row for row in rows(committed_records(log.batches)) if row[0] == 2]
            assert read(partition) == expected
            assert [meta.compacted_up_to for meta in await partition.finished()] == [log.end_offset]
            await pass_time(partition)
            assert await stored_keys(partition) == {b"a"}

    asyncio.run(check())
