"""The receipt of an erasure in parts: nothing is lost, and little is written."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.erasure.progress import ErasureProgress
from tidelog_core.erasure.receipt import PartitionErasure
from tidelog_core.erasure.tier import ErasedSegment
from tidelog_core.errors import CorruptObject
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.tier.keys import (
    erasure_part_key,
    erasure_receipt_key,
    is_whole_receipt,
    parse_erasure_receipt_key,
)
from tidelog_functions.admin_jobs.receipts import PART_SIZE_BYTES, ReceiptParts, StoredReceipt

TOPIC_ID = UUID(int=7)
KEY = erasure_receipt_key("c", "t", TOPIC_ID, UUID(int=8))
PARTITIONS = range(3)


def segment(number: int, removed: int = 1) -> ErasedSegment:
    base = number * 1_000
    return ErasedSegment(
        base, base + 1_000, (uuid4(),), uuid4(), tuple(range(base, base + removed))
    )


def new_progress() -> ErasureProgress:
    progress = ErasureProgress(uuid4(), None, 1)
    for number in PARTITIONS:
        progress.partitions[number] = PartitionErasure(
            partition=number, up_to=None, erased=(), replicas=(), problems=()
        )
    return progress


class Bucket(MemoryObjectStore):
    """Counts the bytes that are put."""

    written_bytes = 0

    async def replace(self, key: str, data: bytes) -> None:
        self.written_bytes += len(data)
        await super().replace(key, data)

    async def put_whole(self, progress: ErasureProgress) -> None:
        receipt = progress.receipt(
            topic="t", topic_id=TOPIC_ID, key_sha256="", numbers=PARTITIONS, now_ms=2
        )
        await self.replace(KEY, json.dumps(receipt.document()).encode())

    async def read(self, stored: StoredReceipt) -> dict[int, PartitionErasure]:
        progress = ErasureProgress(uuid4(), None, 1)
        await stored.read_into(progress, self)
        return progress.partitions


async def written(segments: int) -> int:
    """Return the bytes that an erasure of so many segments writes before its end."""
    bucket, progress = Bucket(), new_progress()
    parts = ReceiptParts(bucket, KEY)
    await bucket.put_whole(progress)
    parts.begin(progress.partitions)
    for number in range(segments):
        progress.note(0, segment(number, removed=5))
        await parts.put(progress.partitions)
    assert await bucket.read(parts.stored) == progress.partitions
    return bucket.written_bytes


async def test_what_is_written_grows_with_the_segments_and_not_with_their_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whole receipts of four times the segments would have sixteen times the bytes."""
    monkeypatch.setattr("tidelog_functions.admin_jobs.receipts.PART_SIZE_BYTES", 2_000)
    few, many = await written(100), await written(400)
    assert many < 5 * few


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["note", "again", "lost", "problem", "fold", "fold and die"]),
        st.sampled_from(PARTITIONS),
        st.integers(0, 9),
    ),
    max_size=40,
)


@settings(max_examples=50)
@given(STEPS, st.sampled_from([1, 800, PART_SIZE_BYTES]))
def test_a_killed_run_leaves_all_that_it_has_noted(
    steps: Sequence[tuple[str, int, int]], part_size_bytes: int
) -> None:
    asyncio.run(take(steps, part_size_bytes))


async def take(steps: Sequence[tuple[str, int, int]], part_size_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidelog_functions.admin_jobs.receipts.PART_SIZE_BYTES", part_size_bytes)
        bucket, progress, choice = Bucket(), new_progress(), random.Random(1)
        parts = ReceiptParts(bucket, KEY)
        await bucket.put_whole(progress)
        parts.begin(progress.partitions)
        for step, partition, number in steps:
            erased = progress.partitions[partition].erased
            if step == "note" or (step == "again" and not erased):
                progress.note(partition, segment(number, removed=3))
            elif step == "again":
                old = choice.choice(erased)
                progress.note(partition, dataclasses.replace(old, new_segment_id=uuid4()))
            elif step == "lost" and erased:
                progress.forget(partition, choice.choice(erased))
            elif step == "problem":
                progress.add_problem(partition, f"problem {number}")
            elif step.startswith("fold"):
                await bucket.put_whole(progress)
                if step == "fold and die":  # before a position says that no part is needed
                    break
                parts.begin(progress.partitions)
            if not parts.has(progress.partitions):
                await parts.put(progress.partitions)
            assert await bucket.read(parts.stored) == progress.partitions
        assert await bucket.read(parts.stored) == progress.partitions


async def test_a_part_that_is_no_part_is_told_by_its_key() -> None:
    bucket = Bucket()
    await bucket.put_whole(new_progress())
    for text in ("{}", '{"partitions": [{}]}', "[]", '{"partitions": [7]}'):
        await bucket.replace(erasure_part_key(KEY, 0), text.encode())
        with pytest.raises(CorruptObject, match="part of a receipt"):
            await bucket.read(StoredReceipt(KEY, 1))


def test_a_part_belongs_to_its_topic_and_is_no_whole_receipt() -> None:
    part = erasure_part_key(KEY, 12)
    assert part == KEY.replace(".json", ".12.json")
    assert parse_erasure_receipt_key(part) == parse_erasure_receipt_key(KEY) == TOPIC_ID
    assert (is_whole_receipt(KEY), is_whole_receipt(part)) == (True, False)
    assert part in StoredReceipt(KEY, 12).part_keys
