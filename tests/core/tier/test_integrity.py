"""Verifying segments against their indexes, and the chain from one to the next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from tidelog_core.errors import CorruptObject
from tidelog_core.tier.index_build import RewriteFacts, build_index_file
from tidelog_core.tier.index_file import (
    CHAIN,
    HEADER,
    SECTION,
    IndexFile,
    SectionKind,
)
from tidelog_core.tier.integrity import (
    NO_HASH,
    check_replaced,
    index_hash,
    replaced_segment,
    verify_segment,
)
from tidelog_core.tier.sections import REQUIRED_FLAG

from tests.support.tier_chain import verify_chain
from tests.support.tier_segments import numbered_batch, write_source


def chain(folder: Path, count: int) -> list[tuple[str, IndexFile, bytes]]:
    previous, found = NO_HASH, []
    for number in range(count):
        base = 100 * number
        source = write_source(
            folder,
            [numbered_batch(base + 10 * n) for n in range(10)],
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


def described(folder: Path, base: int, end: int, previous: bytes) -> tuple[str, IndexFile]:
    source = write_source(
        folder,
        [numbered_batch(offset) for offset in range(base, end, 10)],
        base_offset=base,
        end_offset=end,
        previous_hash=previous,
        segment_id=uuid4(),
    )
    return f"{base}-{end}", IndexFile.parse(build_index_file(source).data)


def test_the_chain_may_pass_by_a_segment_that_was_copied_later(tmp_path: Path) -> None:
    """A new leader had rolled elsewhere: it copies from an offset that the tier has already."""
    first = described(tmp_path, 0, 100, NO_HASH)
    second = described(tmp_path, 100, 200, first[1].chained_hash)
    wide = described(tmp_path, 50, 250, first[1].chained_hash)
    last = described(tmp_path, 250, 300, second[1].chained_hash)
    verify_chain([first, wide, second, last])
    # With the first one removed, who followed it cannot be told from who follows no one.
    verify_chain([wide, second, last])
    with pytest.raises(CorruptObject, match=r"250-300.*continue the chain"):
        verify_chain([first, wide, last])


def test_a_batch_table_that_tells_something_else_of_a_batch_is_noticed(tmp_path: Path) -> None:
    ((key, index, log),) = chain(tmp_path, 1)
    for position in range(0, 80, 4):
        table = bytearray(index.sections[SectionKind.BATCHES])
        table[position] ^= 1
        sections = {**index.sections, SectionKind.BATCHES: memoryview(bytes(table))}
        with pytest.raises(CorruptObject, match=r"batch table|offsets"):
            verify_segment(key, log, replace(index, sections=sections))
    for changed in ({"end_offset": 90}, {"record_count": 99}):
        forged = replace(index, **changed)
        chain_section = CHAIN.pack(forged.previous_hash, forged.log_sha256, index_hash(forged))
        sections = {**index.sections, SectionKind.CHAIN: memoryview(chain_section)}
        with pytest.raises(CorruptObject, match=r"outside|records instead"):
            verify_segment(key, log, replace(forged, sections=sections))


def rewritten(folder: Path, indexes: list[IndexFile]) -> tuple[str, IndexFile, bytes]:
    """Return one segment in the place of a run of them, with every other batch of theirs."""
    first, last = indexes[0], indexes[-1]
    source = write_source(
        folder,
        [numbered_batch(offset) for offset in range(first.base_offset, last.end_offset, 20)],
        base_offset=first.base_offset,
        end_offset=last.end_offset,
        previous_hash=first.previous_hash,
        segment_id=uuid4(),
        rewrite=RewriteFacts(
            rewrite_epoch=7, compacted_up_to=150, replaced=tuple(map(replaced_segment, indexes))
        ),
    )
    index = IndexFile.parse(build_index_file(source).data)
    return "rewritten", index, source.path.read_bytes()


def test_a_rewritten_segment_takes_the_place_of_a_run_in_the_chain(tmp_path: Path) -> None:
    old = [(key, index) for key, index, _ in chain(tmp_path, 4)]
    key, new, log = rewritten(tmp_path, [index for _, index in old[1:3]])
    assert (new.rewrite_epoch, new.compacted_up_to) == (7, 150)
    assert [row.segment_id for row in new.replaced] == [index.segment_id for _, index in old[1:3]]
    verify_segment(key, log, new)
    verify_chain([old[0], (key, new), old[3]])
    with pytest.raises(CorruptObject, match="continue the chain"):
        verify_chain(
            [old[0], (key, replace(new, sections={**new.sections, 10: memoryview(b"")})), old[3]]
        )


def test_a_changed_row_of_what_was_replaced_is_noticed(tmp_path: Path) -> None:
    _, new, _ = rewritten(tmp_path, [index for _, index, _ in chain(tmp_path, 2)])
    check_replaced("whole", new)
    rows = bytes(new.sections[SectionKind.REPLACED])
    for position in range(16, len(rows), 8):
        if position in range(136, 152):
            continue  # A segment's id is no part of the chain.
        damaged = bytearray(rows)
        damaged[position] ^= 1
        changed = replace(new, sections={**new.sections, SectionKind.REPLACED: memoryview(damaged)})
        with pytest.raises(CorruptObject, match="rewritten"):
            check_replaced("rewritten", changed)


def test_a_reader_that_does_not_know_of_rewriting_must_refuse_the_index(tmp_path: Path) -> None:
    """It would take the segments that were replaced for the truth."""
    source = write_source(
        tmp_path,
        [numbered_batch(0)],
        base_offset=0,
        end_offset=10,
        rewrite=RewriteFacts(rewrite_epoch=1, compacted_up_to=0, replaced=()),
    )
    data = build_index_file(source).data
    kinds = {}
    for number in range(len(IndexFile.parse(data).sections)):
        kind, flags, *_ = SECTION.unpack_from(data, HEADER.size + SECTION.size * number)
        kinds[kind] = flags
    assert kinds[SectionKind.REWRITE] & REQUIRED_FLAG
    assert not kinds[SectionKind.REPLACED] & REQUIRED_FLAG
