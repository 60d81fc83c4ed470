"""Where the files of a log have a range of offsets."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tidelog_core.errors import OffsetOutOfRange, StorageError
from tidelog_core.log.local_log import LocalLog

from tests.support.batches import batch
from tests.support.log_building import open_log

COUNT = 40


def fill(directory: Path, **settings: object) -> tuple[LocalLog, bytes]:
    """Return a log of batches of one to three records, and all its bytes."""
    log = open_log(directory, **settings)
    content = b""
    for number in range(COUNT):
        data = bytearray(batch(count=1 + number % 3))
        log.append_as_leader(data, leader_epoch=0)
        content += data
    return log, content


def read(log: LocalLog, base_offset: int, end_offset: int) -> bytes:
    found = b""
    for path, start, end in log.file_ranges(base_offset, end_offset):
        assert 0 <= start < end
        found += path.read_bytes()[start:end]
    return found


@pytest.mark.parametrize("segment_bytes", [300, 1 << 20])
@pytest.mark.parametrize("is_reopened", [False, True], ids=["fresh", "reopened"])
def test_every_range_of_batches_is_found_across_segments(
    tmp_path: Path, segment_bytes: int, is_reopened: bool
) -> None:
    log, content = fill(tmp_path, segment_bytes=segment_bytes, index_interval_bytes=100)
    if is_reopened:
        log.close()
        log = open_log(tmp_path, segment_bytes=segment_bytes, index_interval_bytes=100)
    ends = [0]
    for number in range(COUNT):
        ends.append(ends[-1] + 1 + number % 3)
    assert read(log, 0, log.log_end_offset) == content
    whole = b""
    for base_offset, end_offset in itertools.pairwise(ends):
        whole += read(log, base_offset, end_offset)
    assert whole == content
    assert (
        read(log, ends[7], ends[31])
        == content[len(read(log, 0, ends[7])) : len(read(log, 0, ends[31]))]
    )
    assert log.file_ranges(ends[5], ends[5]) == []
    log.close()


def test_a_range_that_the_log_does_not_have_is_refused(tmp_path: Path) -> None:
    log, _ = fill(tmp_path)
    with pytest.raises(OffsetOutOfRange):
        log.file_ranges(0, log.log_end_offset + 1)
    log.truncate_fully_and_start_at(50)
    with pytest.raises(OffsetOutOfRange):
        log.file_ranges(49, 50)
    assert log.file_ranges(50, 50) == []
    log.take_offline()
    with pytest.raises(StorageError):
        log.file_ranges(50, 50)
