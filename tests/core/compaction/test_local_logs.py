"""Compacting the segments of a log on disk."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.compaction.cleaner import build_offset_map, clean_groups, plan_cleaning
from tidelog_core.errors import CorruptRecordBatch, StorageError
from tidelog_core.log.cleaned_segments import SegmentsChanged
from tidelog_core.records.batch import CompressionType, parse_header

from tests.support.clock import NOW_MS
from tests.support.local_logs import (
    AMPLE_BYTES,
    SETTINGS,
    append_batches,
    batches_of,
    clean,
    committed_records_of,
    offsets_of,
    replace_segments,
    sealed_log,
    watched,
)
from tests.support.log_building import copy_of, open_log
from tests.support.random_logs import (
    IDEMPOTENT_PRODUCER,
    OPERATIONS,
    RandomLog,
    apply,
    committed_records,
    keyed,
    oracle,
    producers_of,
)


@settings(max_examples=15, deadline=None)
@given(first=OPERATIONS, second=OPERATIONS, data=st.data())
def test_a_log_on_disk_keeps_the_newest_committed_record_of_every_key(
    first: list[tuple[object, ...]], second: list[tuple[object, ...]], data: st.DataObject
) -> None:
    """Through the log's own index of aborted transactions, before and after it is rebuilt."""
    random_log = RandomLog()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / "log"
        apply(random_log, first)
        log = sealed_log(directory, random_log.batches)
        map_bytes_max = data.draw(st.sampled_from((1, 500, AMPLE_BYTES)))
        end_offset = clean(log, map_bytes_max=map_bytes_max)
        expected = oracle(committed_records(random_log.batches), end_offset)
        assert committed_records_of(log) == expected

        known = len(random_log.batches)
        apply(random_log, second)
        append_batches(log, random_log.batches[known:])
        log.roll()
        log.flush()
        before = committed_records_of(log)
        if data.draw(st.booleans()):
            log.close()
            log = open_log(directory, **SETTINGS)
            log.advance_high_watermark(log.log_end_offset)
        end_offset = clean(log)
        expected = oracle(before, end_offset)
        assert committed_records_of(log) == expected
        assert log.log_end_offset == random_log.end_offset

        log.close()
        for doomed in data.draw(
            st.sampled_from(((), ("sealed-segments",), ("*.txnindex", "*.index")))
        ):
            for path in directory.glob(doomed):
                path.unlink()
        log = open_log(directory, **SETTINGS)
        log.advance_high_watermark(log.log_end_offset)
        assert committed_records_of(log) == expected
        producers, _ = producers_of(random_log.batches)
        assert {one: entry.last_sequence for one, entry in log.producers.items()} == {
            one: entry.last_sequence for one, entry in producers.items()
        }
        log.close()


def test_small_segments_become_one(tmp_path: Path) -> None:
    log = sealed_log(tmp_path / "log", keyed(*[b"a"] * 40, b"b").batches)
    before = len(log.sealed_segments())
    assert before > 5
    clean(log)
    assert [one.end_offset for one in log.sealed_segments()] == [41]
    assert offsets_of(log) == [39, 40]
    log.close()


def test_segments_without_records_become_one_with_a_full_one(tmp_path: Path) -> None:
    """Each has only its producer's last sequence; a reader would fetch each of them in vain."""
    random_log = RandomLog()
    for producer_id in range(100, 120):
        random_log.append([(b"key", b"v" * 300)], producer_id, CompressionType.NONE)
    log = sealed_log(tmp_path / "log", random_log.batches)
    assert [one.end_offset for one in log.sealed_segments()] == list(range(1, 21))
    clean(log)
    assert [one.end_offset for one in log.sealed_segments()] == [20]
    assert offsets_of(log) == [19]
    assert len(list(log.producers.items())) == 20
    log.close()


def test_no_segments_become_one_across_the_tiers_end(tmp_path: Path) -> None:
    log = sealed_log(tmp_path / "log", keyed(*[b"a"] * 40, b"b").batches)
    tiered_end = log.sealed_segments()[2].end_offset
    clean(log, apart_at=tiered_end)
    assert [one.end_offset for one in log.sealed_segments()] == [tiered_end, 41]
    log.close()


def test_readers_go_on_with_the_slices_that_they_hold(tmp_path: Path) -> None:
    log = sealed_log(tmp_path / "log", keyed(*[b"a"] * 20).batches)
    read = log.read(0, max_bytes=2**20, up_to=log.log_end_offset)
    assert read.slice is not None
    before = os.pread(read.slice.file.fileno(), read.slice.size_bytes, 0)
    clean(log)
    assert os.pread(read.slice.file.fileno(), read.slice.size_bytes, 0) == before
    assert parse_header(before).base_offset == 0
    assert offsets_of(log) == [19]
    log.close()


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_a_read_in_a_gap_goes_on_behind_it(tmp_path: Path, is_rebuilt: bool) -> None:
    log = sealed_log(tmp_path / "log", keyed(*[b"a"] * 20, b"b").batches)
    clean(log)
    if is_rebuilt:
        log.close()
        (tmp_path / "log" / "sealed-segments").unlink()
        log = open_log(tmp_path / "log", **SETTINGS)
    for offset in range(20):
        read = log.read(offset, max_bytes=2**20, up_to=log.log_end_offset)
        assert read.slice is not None
        header = os.pread(read.slice.file.fileno(), 61, read.slice.position)
        assert parse_header(header).last_offset >= offset
    log.close()


def test_the_time_of_a_record_that_is_gone_does_not_hide_the_newest(tmp_path: Path) -> None:
    random_log = keyed(b"a")
    random_log.append([(b"b", b"1")], IDEMPOTENT_PRODUCER, CompressionType.NONE, NOW_MS + 9)
    random_log.append([(b"b", b"2")], -1, CompressionType.NONE)
    log = sealed_log(tmp_path / "log", random_log.batches)
    assert log.max_timestamp() == (NOW_MS + 9, 1)
    clean(log)
    assert [parse_header(batch).record_count for batch in batches_of(log)] == [1, 0, 1]
    assert log.max_timestamp() == (NOW_MS + 2, 2)
    log.close()


def test_a_segment_that_loses_everything_keeps_its_last_offset(tmp_path: Path) -> None:
    """Without a byte it could not be told from one that was lost."""
    log = sealed_log(tmp_path / "log", keyed(*[b"a"] * 12).batches)
    tiered_end = log.sealed_segments()[0].end_offset
    clean(log, apart_at=tiered_end)
    assert [parse_header(batch).next_offset for batch in batches_of(log)] == [tiered_end, 12]
    log.close()
    log = open_log(tmp_path / "log", **SETTINGS)
    assert offsets_of(log) == [11]
    log.close()


def test_a_log_that_was_cut_meanwhile_is_left_alone(tmp_path: Path) -> None:
    """A cut segment may be filled again with as many bytes of other records."""
    batches = keyed(*[b"a"] * 20).batches
    log = sealed_log(tmp_path / "log", batches)
    source = log.begin_cleaning(log.segments_to_clean())
    task = plan_cleaning(source, log.config, deletes=None, map_bytes_max=AMPLE_BYTES)
    latest = build_offset_map(task, lambda _: None)
    cleaned = next(clean_groups(task, latest, lambda _: None)).cleaned
    assert cleaned is not None
    log.truncate_to(2)
    append_batches(log, batches[2:])
    log.roll()
    log.flush()
    extents = [(one.end_offset, one.size_bytes) for one in source.segments]
    assert [(one.end_offset, one.size_bytes) for one in log.segments_to_clean()] == extents
    with pytest.raises(SegmentsChanged):
        replace_segments(log, source, cleaned)
    with pytest.raises(SegmentsChanged):
        log.end_cleaning(source, latest.end_offset)
    assert batches_of(log) == batches
    assert log.cleaned_up_to == 0
    log.close()


def test_segments_that_retention_has_taken_meanwhile_are_not_brought_back(tmp_path: Path) -> None:
    log = sealed_log(tmp_path / "log", keyed(*[b"a"] * 20).batches)
    source = log.begin_cleaning(log.segments_to_clean())
    task = plan_cleaning(source, log.config, deletes=None, map_bytes_max=AMPLE_BYTES)
    latest = build_offset_map(task, lambda _: None)
    cleaned = [group.cleaned for group in clean_groups(task, latest, lambda _: None)]
    log.advance_log_start_offset(source.segments[0].end_offset)
    assert cleaned[0] is not None
    with pytest.raises(SegmentsChanged):
        replace_segments(log, source, cleaned[0])
    log.close()


def test_a_cut_below_what_is_compacted_makes_it_dirty_again(tmp_path: Path) -> None:
    log = sealed_log(tmp_path / "log", keyed(*[b"a"] * 20, b"b").batches)
    assert clean(log) == log.cleaned_up_to == 21
    log.truncate_to(20)
    log.close()
    log = open_log(tmp_path / "log", **SETTINGS)
    assert log.cleaned_up_to == 20
    log.close()


@settings(max_examples=40, deadline=None)
@given(
    operations=OPERATIONS,
    data=st.data(),
    interval_bytes=st.sampled_from((0, 200, 4096)),
    is_flushed=st.booleans(),
)
def test_a_log_cut_anywhere_opens_after_a_crash_and_goes_on(
    operations: list[tuple[object, ...]], data: st.DataObject, interval_bytes: int, is_flushed: bool
) -> None:
    config = {**SETTINGS, "index_interval_bytes": interval_bytes}
    random_log = RandomLog()
    apply(random_log, operations)
    with tempfile.TemporaryDirectory() as temporary:
        log = open_log(Path(temporary) / "log", **config)
        append_batches(log, random_log.batches)
        log.roll()
        log.flush()
        clean(log)
        before = batches_of(log)
        offset = data.draw(st.integers(log.log_start_offset, log.log_end_offset))
        log.truncate_to(offset)
        left = [batch for batch in before if parse_header(batch).last_offset < offset]
        end_offset = log.log_end_offset
        assert end_offset <= offset
        if is_flushed:
            log.flush()
        crashed = open_log(copy_of(log.directory, Path(temporary) / "crashed"), **config)
        assert crashed.log_end_offset == end_offset
        assert batches_of(crashed) == left
        if missing := b"".join(before[len(left) :]):
            crashed.append_as_follower(bytearray(missing))
        crashed.flush()
        again = open_log(copy_of(crashed.directory, Path(temporary) / "again"), **config)
        assert batches_of(again) == before
        for one in (log, crashed, again):
            one.close()


def test_damage_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    log = sealed_log(tmp_path / "log", keyed(*[b"a"] * 20).batches)
    path = log.sealed_segments()[1].path
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    before = {one.name: one.read_bytes() for one in (tmp_path / "log").glob("*.log")}
    with pytest.raises(CorruptRecordBatch):
        clean(log)
    assert {one.name: one.read_bytes() for one in (tmp_path / "log").glob("*.log")} == before
    path.write_bytes(content[:-2])
    with pytest.raises(CorruptRecordBatch):
        clean(log)
    log.close()


@pytest.mark.parametrize("is_twice", [False, True])
def test_a_crash_at_any_file_operation_leaves_the_old_or_the_new_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_twice: bool
) -> None:
    random_log = keyed(*[b"a"] * 9)
    random_log.append([(b"b", b"1")], 11, CompressionType.NONE)
    random_log.end_all()
    random_log.append([(b"b", b"2")], 12, CompressionType.GZIP)
    random_log.append([(b"c", b"3"), (b"a", b"4")], 11, CompressionType.NONE)
    random_log.end_all()
    log = sealed_log(tmp_path / "log", random_log.batches)
    if is_twice:
        clean(log)
    survivors = oracle(committed_records(random_log.batches), log.log_end_offset)
    everything = committed_records_of(log)
    crashes = 0

    def crash() -> None:
        nonlocal crashes
        crashes += 1
        found = open_log(copy_of(tmp_path / "log", tmp_path / "crashed"), **SETTINGS)
        found.advance_high_watermark(found.log_end_offset)
        records = committed_records_of(found)
        assert found.log_end_offset == log.log_end_offset
        assert [one for one in records if one in survivors] == survivors
        assert all(one in everything for one in records)
        assert not list(found.directory.glob("*.swap"))
        assert not (found.directory / "cleaned").exists()
        found.roll()
        found.flush()
        clean(found)
        assert committed_records_of(found) == survivors
        found.close()

    with watched(monkeypatch, crash):
        clean(log)
    crash()
    assert committed_records_of(log) == survivors
    print(f"{crashes} crashes")
    assert crashes > (10 if is_twice else 30)
    log.close()


@pytest.mark.parametrize("failing", ["rename", "unlink", "fsync"])
def test_a_disk_that_fails_at_any_step_leaves_a_log_that_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    random_log = keyed(*[b"a"] * 20, b"b")
    survivors = oracle(committed_records(random_log.batches), 21)
    step = 0
    while clean_on_failing_disk(tmp_path / str(step), monkeypatch, random_log, failing, step):
        log = open_log(tmp_path / str(step), **SETTINGS)
        log.advance_high_watermark(log.log_end_offset)
        records = committed_records_of(log)
        assert [one for one in records if one in survivors] == survivors
        clean(log)
        assert committed_records_of(log) == survivors
        log.close()
        step += 1
    assert step > 2


def clean_on_failing_disk(
    directory: Path, monkeypatch: pytest.MonkeyPatch, random_log: RandomLog, failing: str, step: int
) -> bool:
    """Compact a log on a disk where a call fails from the given one on; tell whether it did."""
    log = sealed_log(directory, random_log.batches)
    real, calls, has_failed = getattr(os, failing), 0, False

    def call(*arguments: object, **named: object) -> object:
        nonlocal calls, has_failed
        calls += 1
        if calls > step:
            has_failed = True
            raise OSError(5, "the disk has failed")
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, call)
        with suppress(StorageError, OSError):
            clean(log)
    if not log.is_offline:
        assert committed_records_of(log)[-1].key == b"b"
    log.take_offline()
    log.close()
    return has_failed
