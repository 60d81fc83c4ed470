"""Verifying segments against their indexes, and the chain from one to the next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from tidelog_core.errors import CorruptObject
from tidelog_core.tier.index_build import build_index_file
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.integrity import NO_HASH, verify_chain, verify_segment

from tests.core.tier.segments import batch, write_source


def chain(folder: Path, count: int) -> list[tuple[str, IndexFile, bytes]]:
    previous, found = NO_HASH, []
    for number in range(count):
        base = 100 * number
        source = write_source(
            folder,
            [batch(base + 10 * n) for n in range(10)],
            base_offset=base,
            end_offset=base + 100,
            previous_hash=previous,
            segment_id=uuid4(),
        )
        built = build_index_file(source)
        previous = built.chained_hash
        found.append((f"s{number}", IndexFile.parse(built.data), source.path.read_bytes()))
    return found


def test_whole_segments_pass(tmp_path: Path) -> None:
    segments = chain(tmp_path, 3)
    for key, index, log in segments:
        verify_segment(key, log, index)
    verify_chain((key, index) for key, index, _ in segments)
    verify_chain((key, index) for key, index, _ in segments[1:])


def test_any_changed_byte_of_a_segment_is_noticed(tmp_path: Path) -> None:
    ((key, index, log),) = chain(tmp_path, 1)
    for position in range(0, len(log), 97):
        damaged = bytearray(log)
        damaged[position] ^= 4
        with pytest.raises(CorruptObject, match="s0"):
            verify_segment(key, damaged, index)
    with pytest.raises(CorruptObject, match="bytes instead of"):
        verify_segment(key, log[:-1], index)


def test_a_missing_or_foreign_segment_breaks_the_chain(tmp_path: Path) -> None:
    first, second, third = ((key, index) for key, index, _ in chain(tmp_path, 3))
    with pytest.raises(CorruptObject, match="missing before it"):
        verify_chain([first, third])
    with pytest.raises(CorruptObject, match="continue the chain"):
        verify_chain([first, (second[0], replace(third[1], base_offset=100))])
