"""The memory of decompressed records: it grows, is used again, and one of a usual size is kept."""

from __future__ import annotations

import threading

import pytest
from tidelog.arrow import scratch
from tidelog.arrow.scratch import Scratch, give_back_large, thread_scratch
from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.records.codecs import CompressionType, compress


@pytest.mark.parametrize("codec", list(CompressionType), ids=[one.name for one in CompressionType])
def test_sections_are_written_one_after_the_other_whatever_they_take(
    codec: CompressionType,
) -> None:
    room = Scratch(1_000)
    parts = [b"a" * 400, b"b" * 300, b"c" * 50_000, b"d" * 10]
    at = 0
    for part in parts:
        at += room.decompress(codec, memoryview(compress(codec, part)), at)
    assert bytes(room.room[:at]) == b"".join(parts)


def test_damaged_sections_raise() -> None:
    data = compress(CompressionType.LZ4, b"a" * 100)
    for wrong in (data[:-1], data + b"x", b""):
        with pytest.raises(CorruptRecordBatch):
            Scratch(1_000).decompress(CompressionType.LZ4, memoryview(wrong), 0)


def test_a_thread_has_its_own_and_keeps_no_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_of_thread", scratch._OfThread())
    monkeypatch.setattr(scratch, "KEPT_SIZE_BYTES_MAX", scratch.SIZE_BYTES)
    mine = thread_scratch()
    assert thread_scratch() is mine
    others: list[Scratch] = []
    thread = threading.Thread(target=lambda: others.append(thread_scratch()))
    thread.start()
    thread.join()
    assert others[0] is not mine
    give_back_large()
    assert thread_scratch() is mine
    mine.decompress(CompressionType.NONE, memoryview(bytes(scratch.SIZE_BYTES + 1)), 0)
    give_back_large()
    assert thread_scratch() is not mine
