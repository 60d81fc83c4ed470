"""Reads, against a model that is a list of batches."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.errors import OffsetOutOfRange, StorageError
from tidelog_core.log.local_log import LocalLog

from tests.support.batches import batch
from tests.support.clock import NOW_MS
from tests.support.log_building import append, content_of, open_log, read_bytes


@dataclass(frozen=True)
class Stored:
    """A batch as it must come back."""

    base_offset: int
    last_offset: int
    content: bytes


def fill(log: LocalLog, count: int, rng: random.Random) -> list[Stored]:
    stored = []
    for _ in range(count):
        content = batch(rng.randrange(1, 5), value_size_bytes=rng.randrange(0, 120))
        info = append(log, content)
        stored.append(Stored(info.base_offset, info.last_offset, bytes(content)))
    return stored


def check_read(
    log: LocalLog, stored: list[Stored], offset: int, up_to: int, max_bytes: int, is_whole: bool
) -> None:
    read = log.read(offset, max_bytes=max_bytes, up_to=up_to, min_one_batch=is_whole)
    allowed = [one for one in stored if one.last_offset >= offset and one.last_offset < up_to]
    if not allowed or (max_bytes < len(allowed[0].content) and not is_whole):
        assert read.slice is None
        return
    assert read.slice is not None
    part = read.slice
    content = os.pread(part.file.fileno(), part.size_bytes, part.position)
    assert len(content) == part.size_bytes
    assert read.start_offset == allowed[0].base_offset
    everything = b"".join(one.content for one in allowed)
    assert everything.startswith(content)
    first = len(allowed[0].content)
    assert len(content) <= max(max_bytes, first if is_whole else 0)
    assert len(content) >= first
    # The end is that of the last whole batch, or somewhat less if the slice is cut.
    end, position = read.start_offset, 0
    for one in allowed:
        position += len(one.content)
        if position > len(content):
            break
        end = one.last_offset + 1
    assert read.start_offset <= read.end_offset <= end
    if len(content) < max_bytes:
        assert read.end_offset == end
    # What fits and is in the same segment is not withheld.
    following = [one for one in allowed if one.base_offset >= end]
    if following and len(content) + len(following[0].content) <= max_bytes:
        bases = {segment.base_offset for segment in log.sealed_segments()}
        assert following[0].base_offset in bases | {log.active_segment_base_offset}


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    segment_bytes=st.sampled_from([700, 2000, 100_000]),
    interval=st.sampled_from([0, 200, 4096]),
    is_reopened=st.booleans(),
)
def test_every_read_gives_the_batches_from_its_offset_and_none_past_its_bound(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    segment_bytes: int,
    interval: int,
    is_reopened: bool,
) -> None:
    rng = random.Random(seed)
    directory = tmp_path_factory.mktemp("read") / "log"
    options = {"segment_bytes": segment_bytes, "index_interval_bytes": interval}
    log = open_log(directory, **options)
    stored = fill(log, rng.randrange(1, 90), rng)
    if is_reopened:
        log.close()
        log = open_log(directory, **options)
        stored += fill(log, rng.randrange(3), rng)
    bounds = [one.base_offset for one in stored] + [log.log_end_offset]
    for _ in range(100):
        offset = rng.randrange(log.log_end_offset + 1)
        up_to = rng.choice(bounds) if rng.random() < 0.7 else log.log_end_offset
        max_bytes = rng.choice([0, 1, 100, 500, 5000, 2**30])
        check_read(log, stored, offset, up_to, max_bytes, rng.random() < 0.7)
    assert content_of(log) == b"".join(one.content for one in stored)
    log.close()


def test_a_slice_of_the_newest_batches_ends_with_a_whole_one(tmp_path: Path) -> None:
    """A reader would drop the cut batch and fetch its bytes again."""
    log = open_log(tmp_path / "log")
    stored = fill(log, 30, random.Random(1))
    largest = max(len(one.content) for one in stored)
    offset, content = 0, b""
    while offset < log.log_end_offset:
        read = log.read(offset, max_bytes=2 * largest + 7, up_to=log.log_end_offset)
        assert read.slice is not None
        content += os.pread(read.slice.file.fileno(), read.slice.size_bytes, read.slice.position)
        offset = read.end_offset
    assert content == b"".join(one.content for one in stored)
    log.close()


def test_read_outside_the_log_is_refused_and_at_its_end_gives_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    append(log, batch(3))
    for offset in (-1, 4):
        with pytest.raises(OffsetOutOfRange, match=r"outside \[0, 3\]"):
            log.read(offset, max_bytes=10, up_to=3)
    read = log.read(3, max_bytes=10, up_to=3)
    assert (read.slice, read.start_offset, read.log_end_offset) == (None, 3, 3)
    log.close()


def open_file_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_unread_log_has_no_file_open(tmp_path: Path) -> None:
    for number in range(20):
        log = open_log(tmp_path / f"{number}")
        append(log, batch(1))
        log.close()
    before = open_file_count()
    logs = [open_log(tmp_path / f"{number}") for number in range(20)]
    assert open_file_count() == before
    for log in logs:
        log.close()


def test_sealed_segments_that_were_read_are_not_all_kept_open(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", segment_bytes=200)
    for _ in range(60):
        append(log, batch(1))
    before = open_file_count()
    content_of(log)
    assert open_file_count() - before <= 8
    log.close()


def test_sealed_segments_that_were_searched_by_time_are_not_all_kept_open(tmp_path: Path) -> None:
    """Else whoever asks for many times leaves the node without descriptors."""
    log = open_log(tmp_path / "log", segment_bytes=200)
    for number in range(60):
        append(log, batch(1, timestamps=[NOW_MS + number]))
    before = open_file_count()
    for number in range(60):
        assert log.offset_for_timestamp(NOW_MS + number) == (NOW_MS + number, number)
    assert open_file_count() - before <= 8
    log.close()


def test_searching_the_greatest_time_does_not_keep_all_sealed_segments_open(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path / "log", segment_bytes=200)
    for number in range(60):
        append(log, batch(1, timestamps=[NOW_MS + number]))
    before = open_file_count()
    assert log.max_timestamp() == (NOW_MS + 59, 59)
    assert open_file_count() - before <= 8
    log.close()


def test_slice_stays_readable_after_its_segment_is_gone(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", segment_bytes=200)
    for _ in range(10):
        append(log, batch(1))
    expected = read_bytes(log, 0)
    part = log.read(0, max_bytes=1000, up_to=10).slice
    assert part is not None
    log.advance_log_start_offset(10)
    log.close()
    assert not part.file.path.exists()
    assert os.pread(part.file.fileno(), part.size_bytes, part.position) == expected


def test_offset_in_a_gap_gives_the_next_batch(tmp_path: Path) -> None:
    """Compacted logs have gaps; a follower copies them."""
    source = open_log(tmp_path / "source")
    for _ in range(30):
        append(source, batch(1))
    content = content_of(source)
    size = len(content) // 30
    kept = [0, 1, 5, 6, 7, 20, 29]
    log = open_log(tmp_path / "log", segment_bytes=size * 3, index_interval_bytes=0)
    for number in kept:
        log.append_as_follower(bytearray(content[number * size : (number + 1) * size]))
    for is_reopened in (False, True):
        if is_reopened:
            log.close()
            log = open_log(tmp_path / "log", segment_bytes=size * 3)
        for offset in range(30):
            start = log.read(offset, max_bytes=1, up_to=30).start_offset
            assert start == min(number for number in kept if number >= offset)
    source.close()
    log.close()


@pytest.mark.parametrize("interval", [0, 100, 4096])
def test_time_search_gives_the_first_record_at_or_after_a_time(
    tmp_path: Path, interval: int
) -> None:
    rng = random.Random(interval)
    log = open_log(tmp_path / "log", segment_bytes=1000, index_interval_bytes=interval)
    times: list[int] = []
    for number in range(80):
        some = [NOW_MS + number * 5 + rng.randrange(40) for _ in range(rng.randrange(1, 4))]
        append(log, batch(len(some), timestamps=some))
        times += some
    for is_reopened in (False, True):
        if is_reopened:
            log.close()
            log = open_log(tmp_path / "log", segment_bytes=1000, index_interval_bytes=interval)
        for time in range(NOW_MS - 5, NOW_MS + 460):
            expected = next(((t, o) for o, t in enumerate(times) if t >= time), None)
            assert log.offset_for_timestamp(time) == expected
        newest = max(times)
        assert log.max_timestamp() == (newest, times.index(newest))
    log.advance_high_watermark(log.log_end_offset)
    log.advance_log_start_offset(50)
    assert log.offset_for_timestamp(NOW_MS) == (times[50], 50)
    log.close()


def open_and_read(directory: Path, offset: int) -> None:
    log = open_log(directory, segment_bytes=500)
    try:
        log.read(offset, max_bytes=1, up_to=20)
    finally:
        log.close()


def test_sealed_segment_damaged_behind_our_back_is_a_storage_error(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", segment_bytes=500)
    for _ in range(20):
        append(log, batch(1))
    log.close()
    path = tmp_path / "log" / f"{0:020d}.log"
    whole = path.read_bytes()
    damages = (b"", whole[:100], bytes(len(whole)), b"\xff" * len(whole))
    for content in damages:
        path.write_bytes(content)
        with pytest.raises(StorageError):  # At the latest when it is read.
            open_and_read(tmp_path / "log", 3)
    path.write_bytes(whole)
    open_and_read(tmp_path / "log", 3)
    (tmp_path / "log" / f"{6:020d}.log").unlink()
    with pytest.raises(StorageError, match=f"{6:020d}.log is missing"):
        open_and_read(tmp_path / "log", 13)


def test_empty_log_has_no_times(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    assert log.max_timestamp() is None
    assert log.offset_for_timestamp(0) is None
    append(log, batch(2, timestamps=[-1, -1]))
    assert log.max_timestamp() is None
    log.close()


def test_reading_committed_records_loads_no_index_of_the_segments_behind(tmp_path: Path) -> None:
    """Else each reader of old records pulls the indexes of the whole log into memory."""
    log = open_log(tmp_path / "log", segment_bytes=200)
    for _ in range(20):
        append(log, batch(value_size_bytes=50))
    log.close()
    log = open_log(tmp_path / "log", segment_bytes=200)
    sealed = log.sealed_segments()
    assert len(sealed) > 5
    # An index that is looked at is rebuilt where it is missing.
    for segment in sealed[1:]:
        segment.time_index.unlink()
    log.advance_high_watermark(log.log_end_offset)
    log.read(0, max_bytes=1, up_to=log.last_stable_offset, include_aborted=True)
    assert not any(segment.time_index.exists() for segment in sealed[1:])
    log.close()
