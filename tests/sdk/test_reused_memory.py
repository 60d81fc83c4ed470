"""Memory that is used again: never while anything refers to it, and never more than a limit."""

from __future__ import annotations

import mmap
import random
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tidelog.reused_memory import (
    BLOCKS_MAX,
    LARGE_UNIT_BYTES,
    THREAD_BYTES_MAX,
    ReusedMemory,
    thread_memory,
)

MIB = 1024 * 1024
SIZES = pytest.mark.parametrize("size_bytes", [1_000, 3 * MIB], ids=["small", "mapped"])


@SIZES
def test_memory_is_used_again_when_its_last_view_is_gone(size_bytes: int) -> None:
    memory = ReusedMemory(16 * MIB)
    first = memory.take(size_bytes)
    obj = first.obj
    part = first[10:20]
    del first
    second = memory.take(size_bytes)
    assert second.obj is not obj, "a part of the first is in use"
    del part
    third = memory.take(size_bytes - 1)
    assert third.obj is obj
    assert len(third) >= size_bytes - 1
    third[:5] = b"abcde"


@SIZES
def test_columns_of_arrow_are_views_too(size_bytes: int) -> None:
    memory = ReusedMemory(16 * MIB)
    view = memory.take(size_bytes)
    obj = view.obj
    view[:3] = b"abc"
    content = pa.py_buffer(np.frombuffer(view, np.uint8)[:3])
    ends = pa.py_buffer(np.array([0, 3], np.int32))
    column = pa.Array.from_buffers(pa.binary(), 1, [None, ends, content])
    del view, content
    other = memory.take(size_bytes)
    assert other.obj is not obj
    other[:3] = b"xyz"
    kept = column.slice(0, 1)
    del column
    assert memory.take(size_bytes).obj is not obj
    assert kept.to_pylist() == [b"abc"]
    del kept
    assert memory.take(size_bytes).obj is obj


def test_no_more_is_kept_than_allowed_whatever_is_taken() -> None:
    chance = random.Random(5)
    memory = ReusedMemory(8 * MIB)
    held: list[memoryview] = []
    for _ in range(300):
        size_bytes = chance.choice([1, 70_000, MIB, MIB + 1, 2 * MIB, 5 * MIB, 20 * MIB])
        view = memory.take(size_bytes)
        assert len(view) >= size_bytes
        assert memory.kept_bytes <= 8 * MIB
        if chance.random() < 0.3:
            held.append(view)
        if len(held) > 3:
            del held[chance.randrange(len(held))]
    taken = [memory.take(1) for _ in range(2 * BLOCKS_MAX)]
    assert len({id(one.obj) for one in taken}) == len(taken)
    assert len(memory._kept) <= BLOCKS_MAX


def test_what_a_program_keeps_does_not_end_the_reuse_of_the_rest() -> None:
    memory = ReusedMemory(4 * MIB)
    held = [memory.take(2 * MIB) for _ in range(5)]
    later = memory.take(2 * MIB)
    obj = later.obj
    del later
    assert memory.take(2 * MIB).obj is obj
    assert len({id(one.obj) for one in held}) == 5


def test_the_smallest_memory_that_fits_is_used() -> None:
    memory = ReusedMemory(16 * MIB)
    large, small = memory.take(8 * MIB), memory.take(2 * MIB)
    objs = small.obj
    del large, small
    assert memory.take(MIB + 5).obj is objs


def test_small_views_do_not_get_large_memory() -> None:
    memory = ReusedMemory(16 * MIB)
    memory.take(8 * MIB)
    memory.take(3 * MIB)
    assert len(memory.take(MIB)) <= 2 * MIB


def test_large_memory_fits_answers_of_about_the_same_size() -> None:
    block = ReusedMemory(16 * MIB).take(LARGE_UNIT_BYTES + 1)
    if isinstance(block.obj, mmap.mmap):
        assert len(block) == 2 * LARGE_UNIT_BYTES
    else:
        assert len(block) > LARGE_UNIT_BYTES


def test_a_process_with_too_many_mappings_gets_other_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Refused(mmap.mmap):
        def __new__(cls, *arguments: Any, **options: Any) -> Refused:
            raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("tidelog.reused_memory.mmap.mmap", Refused)
    memory = ReusedMemory(16 * MIB)
    view = memory.take(4 * MIB)
    obj = view.obj
    assert isinstance(obj, bytearray)
    del view
    assert memory.take(4 * MIB).obj is obj


def test_cleared_memory_lives_as_long_as_its_views() -> None:
    memory = ReusedMemory(16 * MIB)
    view = memory.take(3 * MIB)
    view[-3:] = b"end"
    memory.clear()
    assert memory.kept_bytes == 0
    assert bytes(view[-3:]) == b"end"


def test_a_thread_has_its_own_and_keeps_no_large_one() -> None:
    mine = thread_memory()
    mine.clear()
    assert thread_memory() is mine
    others: list[ReusedMemory] = []
    thread = threading.Thread(target=lambda: others.append(thread_memory()))
    thread.start()
    thread.join()
    assert others[0] is not mine
    assert len(mine.take(THREAD_BYTES_MAX + 1)) > THREAD_BYTES_MAX
    assert mine.kept_bytes == 0
