"""What a store gives for a range is checked before anyone can read it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog_core.errors import CorruptObject
from tidelog_core.records.batch import iter_headers
from tidelog_core.tier.index_build import build_index_file
from tidelog_node.tier.protocol import ByteRange
from tidelog_node.tier.range_check import check_range_bytes

from tests.support.tier_segments import numbered_batch, write_source

BATCHES = [bytes(numbered_batch(10 * n)) for n in range(3)]
LOG = b"".join(BATCHES)
WANTED = ByteRange("c/t/0/s.log", 1000, 1000 + len(LOG))


def test_whole_batches_pass() -> None:
    check_range_bytes(WANTED, LOG)


def test_every_flipped_bit_of_what_a_crc_covers_is_found() -> None:
    covered_from = 21  # Source: the record batch format, version 2
    starts = [position for position, _ in iter_headers(LOG)]
    for start, data in zip(starts, BATCHES, strict=True):
        for position in range(start + covered_from, start + len(data)):
            damaged = bytearray(LOG)
            damaged[position] ^= 0x10
            with pytest.raises(CorruptObject, match=r"'c/t/0/s.log' is corrupt: from byte 1000"):
                check_range_bytes(WANTED, bytes(damaged))


def test_a_range_that_ends_too_soon_is_found_wherever_it_ends() -> None:
    for size in range(len(LOG)):
        with pytest.raises(CorruptObject, match="it ends at"):
            check_range_bytes(WANTED, LOG[:size])


def test_batches_in_another_order_are_found() -> None:
    with pytest.raises(CorruptObject, match="begins with offset 0, after"):
        check_range_bytes(WANTED, BATCHES[1] + BATCHES[0] + BATCHES[2])


def test_an_index_object_is_checked_as_a_whole(tmp_path: Path) -> None:
    source = write_source(
        tmp_path, [numbered_batch(10 * n) for n in range(3)], base_offset=0, end_offset=30
    )
    data = build_index_file(source).data
    wanted = ByteRange("c/t/0/s.index", 0, len(data))
    check_range_bytes(wanted, data)
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 1
    with pytest.raises(CorruptObject, match=r"'c/t/0/s.index' is corrupt"):
        check_range_bytes(wanted, bytes(damaged))
