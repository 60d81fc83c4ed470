"""The memory of built objects is used again, and never while somebody may still send it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidelog_core.objects.payload import Chunks
from tidelog_node.tier import wal_memory
from tidelog_node.tier.wal_memory import CHUNK_BYTES, FREE_COUNT_MAX, FreeChunks, ObjectMemory

SIZE_BYTES = 3 * CHUNK_BYTES + 1_000


@pytest.fixture
def source(tmp_path: Path) -> Iterator[int]:
    """A file of random bytes."""
    path = tmp_path / "log"
    path.write_bytes(os.urandom(SIZE_BYTES))
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def read(
    free: FreeChunks, source: int, *, read_bytes: int = 256 * 1024, size_bytes: int = SIZE_BYTES
) -> Chunks:
    """Return the bytes of the file in memory; of each read some come once more."""
    memory = ObjectMemory(free, size_bytes)
    at, read_count = 0, 0
    while at < size_bytes:
        chunk = memory.read(source, min(read_bytes, size_bytes - at), at)
        is_last = at + len(chunk) == size_bytes
        taken = len(chunk) if is_last else max(1, len(chunk) - read_count % 7)
        memory.keep(taken)
        at, read_count = at + taken, read_count + 1
    return Chunks([b"head", *memory.parts(), b"tail"])


@pytest.mark.parametrize("read_bytes", [997, 256 * 1024, 2 * CHUNK_BYTES])
@pytest.mark.parametrize("space_bytes", [1, 64 * 1024, CHUNK_BYTES])
def test_the_bytes_are_those_of_the_file_however_they_are_read(
    source: int, monkeypatch: pytest.MonkeyPatch, read_bytes: int, space_bytes: int
) -> None:
    monkeypatch.setattr(wal_memory, "SPACE_BYTES_MIN", space_bytes)
    free = FreeChunks()
    for _ in range(3):
        data = read(free, source, read_bytes=read_bytes)
        whole = bytes(data)
        assert whole == b"head" + os.pread(source, SIZE_BYTES, 0) + b"tail"
        assert len(data) == len(whole)
        free.give_back(data)


def test_the_next_object_gets_the_memory_of_one_that_is_given_back(source: int) -> None:
    free = FreeChunks()
    first = read(free, source)
    chunks = {id(part.obj) for part in first.parts if isinstance(part, memoryview)}
    free.give_back(first)
    assert len(free) == 3
    again = read(free, source)
    assert len(free) == 0
    reused = {id(part.obj) for part in again.parts if isinstance(part, memoryview)}
    assert len(chunks & reused) == 3


def test_memory_that_is_still_sent_is_not_used_again(source: int) -> None:
    """A PUT that was given up may have sent a part of a chunk."""
    free = FreeChunks()
    first = read(free, source)
    whole = bytes(first)
    sent = [memoryview(part) for part in first.parts]
    free.give_back(first)
    assert len(free) == 0
    free.give_back(read(free, source))
    read(free, source)
    assert b"".join(sent) == whole


def test_a_slice_that_is_still_sent_keeps_its_chunk_alone_from_use(source: int) -> None:
    free = FreeChunks()
    first = read(free, source)
    whole = bytes(first)
    sent = memoryview(first.parts[1])[100:200]
    free.give_back(first)
    assert len(free) == 2
    read(free, source)
    assert sent == whole[104:204]


def test_whoever_reads_an_object_that_was_given_back_gets_an_error_and_no_other_bytes(
    source: int,
) -> None:
    free = FreeChunks()
    first = read(free, source)
    free.give_back(first)
    read(free, source)
    with pytest.raises(ValueError, match="released"):
        memoryview(first.parts[1])
    with pytest.raises(TypeError):
        bytes(first)


def test_small_objects_take_no_whole_chunk_and_leave_none(source: int) -> None:
    free = FreeChunks()
    for size_bytes in (1, 1_000, CHUNK_BYTES // 2 - 1):
        data = read(free, source, size_bytes=size_bytes)
        assert [len(part.obj) for part in data.parts if isinstance(part, memoryview)] == [
            size_bytes
        ]
        free.give_back(data)
    assert len(free) == 0


def test_only_so_many_chunks_are_kept(source: int) -> None:
    free = FreeChunks()
    for data in [read(free, source) for _ in range(FREE_COUNT_MAX)]:
        free.give_back(data)
    assert len(free) == FREE_COUNT_MAX
