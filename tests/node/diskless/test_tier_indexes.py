"""An heir reads the tier's index objects as it reads chains, without the worker that serves reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest
from tidelog_core.errors import CorruptObject, ObjectNotFound
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.tier.index_build import BuiltIndex, build_index_file
from tidelog_node.diskless.recovery.tier_indexes import TierIndexes

from tests.support.segment_items import segment_meta
from tests.support.tier_segments import numbered_batch, write_source


@pytest.fixture
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def segment(folder: Path) -> tuple[SegmentMeta, BuiltIndex]:
    """Return a segment's item and its index."""
    source = write_source(
        folder, [numbered_batch(0)], base_offset=0, end_offset=10, segment_id=UUID(int=5)
    )
    built = build_index_file(source)
    meta = segment_meta(
        0,
        10,
        segment_id=source.segment_id,
        size_bytes=source.size_bytes,
        index_size_bytes=len(built.data),
        chained_hash=built.chained_hash.hex(),
    )
    return meta, built


async def test_the_index_of_a_segment_is_read(tmp_path: Path, executor: Executor) -> None:
    meta, built = segment(tmp_path)
    store = MemoryObjectStore()
    indexes = TierIndexes(store.get_range, executor)
    with pytest.raises(ObjectNotFound):
        await indexes.get(meta, "index")
    await store.put("index", built.data)
    index = await indexes.get(meta, "index")
    assert (index.base_offset, index.end_offset) == (0, 10)


@pytest.mark.parametrize("wrong", ["another segment's", "torn"])
async def test_a_damaged_index_is_an_error(tmp_path: Path, executor: Executor, wrong: str) -> None:
    meta, built = segment(tmp_path)
    store = MemoryObjectStore()
    await store.put("index", built.data if wrong != "torn" else built.data[:-9])
    if wrong != "torn":
        meta = dataclasses.replace(meta, segment_id=UUID(int=6))
    with pytest.raises(CorruptObject) as caught:
        await TierIndexes(store.get_range, executor).get(meta, "index")
    assert caught.value.key == "index"
