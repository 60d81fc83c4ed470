"""The memory of decompressed records: it grows."""

from __future__ import annotations

import pytest
from tidelog.arrow.scratch import Scratch
from tidelog.reused_memory import ReusedMemory
from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.records.codecs import CompressionType, compress


@pytest.mark.parametrize("codec", list(CompressionType), ids=[one.name for one in CompressionType])
def test_sections_are_written_one_after_the_other_whatever_they_take(
    codec: CompressionType,
) -> None:
    room = Scratch(ReusedMemory(1 << 20), 1_000)
    parts = [b"a" * 400, b"b" * 300, b"c" * 200_000, b"d" * 10]
    at = 0
    for part in parts:
        at += room.decompress(codec, memoryview(compress(codec, part)), at)
    assert bytes(room.room[:at]) == b"".join(parts)


def test_damaged_sections_raise() -> None:
    for codec in (CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4):
        data = compress(codec, b"a" * 100)
        for wrong in (data[:-1], data + b"x", b""):
            with pytest.raises(CorruptRecordBatch):
                Scratch(ReusedMemory(1 << 20), 1_000).decompress(codec, memoryview(wrong), 0)
