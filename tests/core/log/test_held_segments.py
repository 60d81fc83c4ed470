"""Segments that are held stay as they are: their files are still to be copied by somebody."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tidelog_core.errors import OffsetOutOfRange
from tidelog_core.log.local_log import LocalLog

from tests.support.batches import batch
from tests.support.log_building import open_log

PIECE_BYTES = 500


def fill(directory: Path, count: int = 30, **settings: object) -> LocalLog:
    log = open_log(directory, index_interval_bytes=100, **settings)
    for _ in range(count):
        log.append_as_leader(bytearray(batch(count=2)), leader_epoch=0)
    log.advance_high_watermark(log.log_end_offset)
    return log


def read(log: LocalLog, base_offset: int, end_offset: int) -> bytes:
    ranges = log.file_ranges(base_offset, end_offset)
    return b"".join(path.read_bytes()[start:end] for path, start, end in ranges)


def test_pieces_follow_each_other_up_to_the_end(tmp_path: Path) -> None:
    log = fill(tmp_path, segment_bytes=2_000)
    whole = read(log, 0, log.log_end_offset)
    ends = log.hold(0, PIECE_BYTES)
    assert ends == sorted(set(ends))
    assert ends[-1] == log.log_end_offset
    pieces = [read(log, start, end) for start, end in itertools.pairwise([0, *ends])]
    assert b"".join(pieces) == whole
    assert len(pieces) > 4
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)
    log.close()


@pytest.mark.parametrize("index_interval_bytes", [100, 1 << 20])
def test_a_batch_that_is_larger_than_a_piece_is_one(
    tmp_path: Path, index_interval_bytes: int
) -> None:
    log = open_log(tmp_path, index_interval_bytes=index_interval_bytes)
    for _ in range(3):
        log.append_as_leader(bytearray(batch(1, value_size_bytes=900)), leader_epoch=0)
    ends = log.hold(0, PIECE_BYTES)
    assert ends[-1] == 3
    assert ends == sorted(set(ends))
    log.close()


def test_a_log_without_records_holds_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.hold(0, PIECE_BYTES) == []
    assert not log.is_held
    log.close()


def test_held_segments_are_neither_evicted_nor_deleted(tmp_path: Path) -> None:
    log = fill(tmp_path, segment_bytes=500)
    end_offset = log.log_end_offset
    held_from = log.sealed_segments()[2].base_offset
    whole = read(log, held_from, end_offset)
    log.roll()
    log.hold(held_from, PIECE_BYTES)
    log.set_tiered_up_to(end_offset)
    log.evict_local(end_offset)
    log.advance_log_start_offset(end_offset)
    assert log.log_start_offset == end_offset
    with pytest.raises(OffsetOutOfRange):
        log.read(held_from, max_bytes=1, up_to=end_offset)
    with pytest.raises(OffsetOutOfRange):
        log.file_ranges(0, held_from)
    assert read(log, held_from, end_offset) == whole
    middle = held_from + (end_offset - held_from) // 2
    log.release(middle)
    assert log.is_held
    assert read(log, middle, end_offset)
    log.release(end_offset)
    assert not log.is_held
    assert [path.name for path in tmp_path.glob("*.log")] == [f"{end_offset:020}.log"]
    log.close()


def test_held_segments_are_not_rewritten(tmp_path: Path) -> None:
    log = fill(tmp_path, segment_bytes=500)
    log.flush()
    every = log.segments_to_clean()
    held_from = every[2].base_offset
    log.hold(held_from, PIECE_BYTES)
    assert log.segments_to_clean() == every[:2]
    found = log.segments_to_erase(held_from)
    assert found is not None
    assert [one.base_offset for one in found] == [one.base_offset for one in every[:2]]
    assert log.segments_to_erase(held_from + 1) is None
    log.release(log.log_end_offset)
    assert log.segments_to_clean() == every
    log.close()


def test_a_log_that_was_opened_again_holds_nothing(tmp_path: Path) -> None:
    """And what was deleted while it was held goes."""
    log = fill(tmp_path, segment_bytes=500)
    end_offset = log.log_end_offset
    log.roll()
    log.hold(0, PIECE_BYTES)
    log.advance_log_start_offset(end_offset)
    log.close()
    log = open_log(tmp_path, segment_bytes=500)
    assert log.log_start_offset == end_offset
    assert [path.name for path in tmp_path.glob("*.log")] == [f"{end_offset:020}.log"]
    log.close()
