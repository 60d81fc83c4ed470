"""Erasing a key from the segments of a log on disk."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.erasure.log_files import erase_groups, plan_erasing
from tidelog_core.errors import StorageError
from tidelog_core.log.cleaned_segments import SegmentsChanged
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.records.batch import BatchHeader, CompressionType, Record, parse_header
from tidelog_core.records.control import ControlType

from tests.support.local_logs import (
    SETTINGS,
    append_batches,
    batches_of,
    clean,
    committed_records_of,
    replace_segments,
    sealed_log,
    watched,
)
from tests.support.log_building import copy_of, open_log
from tests.support.random_logs import (
    KEYS,
    OPERATIONS,
    RandomLog,
    apply,
    committed_records,
    oracle,
    producers_of,
)

KEY = KEYS[3]
RETAINED = {**SETTINGS, "cleanup_policy": ("delete",)}


def erase(log: LocalLog, key: bytes, up_to: int) -> int:
    """Erase as a node does, step by step; return how many records went."""
    segments = log.segments_to_erase(up_to)
    assert segments is not None
    if not segments:
        return 0
    source = log.begin_cleaning(segments)
    task = plan_erasing(
        source, up_to=up_to, key_sha256=hashlib.sha256(key).digest(), index_interval_bytes=0
    )
    removed = 0
    for group in erase_groups(task, lambda _: None):
        if group.cleaned is not None:
            replace_segments(log, source, group.cleaned)
            removed += group.removed_record_count
    log.end_cleaning(source, 0)
    return removed


def without(records: list[Record], key: bytes, up_to: int) -> list[Record]:
    return [record for record in records if record.key != key or record.offset >= up_to]


def shape(batch: bytes) -> BatchHeader:
    """Return what of a batch's header must not change."""
    header = parse_header(batch)
    return header._replace(
        batch_length=0,
        crc=0,
        attributes=header.attributes & ~0b1000111,
        base_timestamp_ms=0,
        max_timestamp_ms=0,
        record_count=0,
    )


def aborted_of(log: LocalLog) -> list[AbortedTransaction]:
    read = log.read(
        log.local_log_start_offset, max_bytes=2**30, up_to=log.log_end_offset, include_aborted=True
    )
    return list(read.aborted_transactions)


def batches_marked_aborted(log: LocalLog) -> list[int]:
    """Return the base offsets of the data that the transaction index has readers skip."""
    aborted = aborted_of(log)
    headers = [parse_header(one) for one in batches_of(log)]
    return [
        header.base_offset
        for header in headers
        if header.is_transactional
        and not header.is_control
        and any(
            one.producer_id == header.producer_id
            and one.first_offset <= header.base_offset <= one.last_offset
            for one in aborted
        )
    ]


def markers_of(aborted: list[AbortedTransaction]) -> set[tuple[int, int]]:
    """Return producer and offset of the markers that ended the transactions."""
    return {(one.producer_id, one.last_offset) for one in aborted}


LOST_FILES: tuple[tuple[str, ...], ...] = (
    (),
    ("sealed-segments",),
    ("*.snapshot", "recovery-point"),
)


@settings(max_examples=25, deadline=None)
@given(
    operations=OPERATIONS,
    later=OPERATIONS,
    is_compacted=st.booleans(),
    up_to=st.integers(0, 100),
    lost_files=st.sampled_from(LOST_FILES),
)
def test_the_key_is_gone_and_every_batch_is_where_it_was(
    operations: list[tuple[object, ...]],
    later: list[tuple[object, ...]],
    is_compacted: bool,
    up_to: int,
    lost_files: tuple[str, ...],
) -> None:
    """Whatever of it was compacted, whichever transaction is open, before and after recovery."""
    check_erasing(operations, later, is_compacted=is_compacted, up_to=up_to, lost_files=lost_files)


def test_an_aborted_transaction_without_batches_may_leave_the_index_when_it_is_rebuilt() -> None:
    """Its marker is still there, its data are compacted away: no reader has anything to skip."""
    record = ([(KEYS[0], b"")], 11, CompressionType.NONE)
    abort = (11, ControlType.ABORT)
    check_erasing(
        [record, abort, record],
        [abort],
        is_compacted=True,
        up_to=0,
        lost_files=("sealed-segments",),
    )


def check_erasing(
    operations: list[tuple[object, ...]],
    later: list[tuple[object, ...]],
    *,
    is_compacted: bool,
    up_to: int,
    lost_files: tuple[str, ...],
) -> None:
    random_log = RandomLog()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / "log"
        apply(random_log, operations)
        log = sealed_log(directory, random_log.batches)
        if is_compacted:
            clean(log)
        up_to = min(up_to, log.log_end_offset)
        known = len(random_log.batches)
        for operation in later:
            if isinstance(operation[0], list):
                random_log.append(*operation)  # type: ignore[arg-type]
        append_batches(log, random_log.batches[known:])
        log.roll()
        log.flush()
        before, headers = committed_records_of(log), [shape(one) for one in batches_of(log)]
        aborted, marked = aborted_of(log), batches_marked_aborted(log)
        stable = log.last_stable_offset
        erase(log, KEY, up_to)
        assert [shape(one) for one in batches_of(log)] == headers
        assert committed_records_of(log) == without(before, KEY, up_to)
        assert aborted_of(log) == aborted
        assert erase(log, KEY, up_to) == 0

        end_offset = log.log_end_offset
        log.close()
        for pattern in lost_files:
            for path in directory.glob(pattern):
                path.unlink()
        log = open_log(directory, **SETTINGS)
        log.advance_high_watermark(log.log_end_offset)
        assert (log.log_end_offset, log.last_stable_offset) == (end_offset, stable)
        assert committed_records_of(log) == without(before, KEY, up_to)
        assert batches_marked_aborted(log) == marked
        if "sealed-segments" in lost_files:
            # Rebuilt from what is left, the index leaves out a transaction without batches.
            assert markers_of(aborted_of(log)) <= markers_of(aborted)
        else:
            assert aborted_of(log) == aborted
        producers, _ = producers_of(random_log.batches)
        assert {one: entry.last_sequence for one, entry in log.producers.items()} == {
            one: entry.last_sequence for one, entry in producers.items()
        }
        log.close()


def example() -> RandomLog:
    """Return a log in which the key stands alone, beside others, and in transactions."""
    log = RandomLog()
    for number in range(6):
        log.append([(b"a", b"%d" % number)], -1, CompressionType.NONE)
        log.append([(KEY, b"secret")], 10, CompressionType.NONE)
    log.append([(KEY, b"secret"), (b"b", b"1")], 11, CompressionType.GZIP)
    log.append([(KEY, b"secret")], 12, CompressionType.NONE)
    log.end_all()
    log.append([(b"c", b"1"), (KEY, None)], 10, CompressionType.ZSTD)
    return log


def test_a_crash_at_any_file_operation_leaves_a_log_that_the_erasure_goes_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_log = example()
    log = sealed_log(tmp_path / "log", random_log.batches)
    everything, up_to = committed_records_of(log), log.log_end_offset
    left = without(everything, KEY, up_to)
    assert len(left) == 8
    crashes = 0

    def crash() -> None:
        nonlocal crashes
        crashes += 1
        found = open_log(copy_of(tmp_path / "log", tmp_path / "crashed"), **RETAINED)
        found.advance_high_watermark(found.log_end_offset)
        records = committed_records_of(found)
        assert found.log_end_offset == up_to
        assert [one for one in records if one in left] == left
        assert all(one in everything for one in records)
        found.roll()
        found.flush()
        erase(found, KEY, up_to)
        assert committed_records_of(found) == left
        found.close()
        assert not any(
            b"secret" in path.read_bytes() for path in found.directory.rglob("*") if path.is_file()
        )

    with watched(monkeypatch, crash):
        erase(log, KEY, up_to)
    crash()
    assert committed_records_of(log) == left
    print(f"{crashes} crashes")
    assert crashes > 30
    log.close()


def test_compaction_after_an_erasure_and_before_it_come_to_the_same(tmp_path: Path) -> None:
    batches = example().batches
    expected = oracle(committed_records(batches), example().end_offset)
    found = []
    for index, order in enumerate(([clean, erase], [erase, clean])):
        log = sealed_log(tmp_path / str(index), batches)
        for step in order:
            if step is erase:
                erase(log, KEY, log.log_end_offset)
            else:
                clean(log)
        found.append(committed_records_of(log))
        log.close()
    assert found == [without(expected, KEY, 2**62)] * 2


def test_nothing_is_replaced_that_may_still_change(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", **RETAINED)
    append_batches(log, example().batches[:3])
    assert log.segments_to_erase(3) is None  # it is not sealed
    log.roll()
    assert log.segments_to_erase(3) is None  # not flushed
    log.flush()
    segments = log.segments_to_erase(3)
    assert segments is not None
    assert [one.end_offset for one in segments] == [3]
    assert log.segments_to_erase(4) is None  # not there yet
    log.close()


def test_a_log_that_is_cut_meanwhile_keeps_what_it_has(tmp_path: Path) -> None:
    batches = example().batches
    log = sealed_log(tmp_path / "log", batches)
    segments = log.segments_to_erase(log.log_end_offset)
    assert segments
    source = log.begin_cleaning(segments)
    task = plan_erasing(
        source, up_to=99, key_sha256=hashlib.sha256(KEY).digest(), index_interval_bytes=0
    )
    cleaned = next(erase_groups(task, lambda _: None)).cleaned
    assert cleaned is not None
    cut_count = log.cut_count
    log.truncate_to(2)
    assert log.cut_count > cut_count
    with pytest.raises(SegmentsChanged):
        replace_segments(log, source, cleaned)
    assert batches_of(log) == batches[:2]
    log.close()


def test_a_log_that_is_offline_is_not_looked_at(tmp_path: Path) -> None:
    log = sealed_log(tmp_path / "log", example().batches)
    log.take_offline()
    with pytest.raises(StorageError):
        log.segments_to_erase(1)
    log.close()
