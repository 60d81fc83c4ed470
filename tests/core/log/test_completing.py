"""A batch is appended with its header alone, and its records are written into their place later."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tidelog_core.config import TopicConfig
from tidelog_core.errors import InvalidRecord, InvalidTimestamp, MessageTooLarge, RecordListTooLarge
from tidelog_core.log.append_checks import check_header
from tidelog_core.log.local_log import LocalLog
from tidelog_core.model import TopicPartition
from tidelog_core.records.batch import HEADER_SIZE, parse_header, patch

from tests.support.batches import NOW_MS, batch
from tests.support.log_building import content_of

PARTITION = TopicPartition("t", 0)


def opened(folder: Path) -> LocalLog:
    return LocalLog.open(folder, PARTITION, config=TopicConfig(), clock_ms=lambda: NOW_MS)


@pytest.fixture
def log(tmp_path: Path) -> LocalLog:
    return opened(tmp_path)


def append_header(log: LocalLog, sent: bytearray, *, epoch: int = 3) -> bytearray:
    """Append the batch with zeros for its records; return it as the log is to have it."""
    zeros = sent[:HEADER_SIZE] + bytearray(len(sent) - HEADER_SIZE)
    checked = zeros, [(0, parse_header(zeros))]
    info = log.append_as_leader(zeros, leader_epoch=epoch, checked=checked)
    whole = bytearray(sent)
    patch(whole, 0, base_offset=info.base_offset, leader_epoch=epoch)
    assert whole[:HEADER_SIZE] == zeros[:HEADER_SIZE]
    return whole


def test_the_records_come_into_their_place(log: LocalLog) -> None:
    wholes = [append_header(log, batch(count)) for count in (2, 1, 3)]
    assert content_of(log) != b"".join(wholes)
    for offset, whole in zip((3, 0, 2), (wholes[2], wholes[0], wholes[1]), strict=True):
        assert log.complete(offset, whole)
    assert content_of(log) == b"".join(wholes)
    assert log.log_end_offset == 6


def test_they_come_into_sealed_segments_as_well(log: LocalLog) -> None:
    wholes = []
    for _ in range(4):
        wholes.append(append_header(log, batch(2)))
        log.roll()
    for number in (2, 0, 3, 1):
        assert log.complete(2 * number, wholes[number])
    assert content_of(log) == b"".join(wholes)


def test_nothing_is_written_where_the_header_is_not(log: LocalLog) -> None:
    whole, other = append_header(log, batch(2)), batch(2)
    content = content_of(log)
    patch(other, 0, base_offset=0, leader_epoch=3)
    assert not log.complete(0, other)
    assert not log.complete(1, whole)
    assert not log.complete(2, whole)
    later = bytearray(whole)
    patch(later, 0, base_offset=0, leader_epoch=4)
    assert not log.complete(0, later), "another leader has appended it again"
    assert content_of(log) == content
    log.truncate_to(0)
    assert not log.complete(0, whole)
    assert log.size_bytes == 0


def test_records_that_a_flush_has_counted_are_flushed_by_themselves(
    log: LocalLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been done, or be under way, before they came."""
    wholes = [append_header(log, batch(2)) for _ in range(3)]
    flushed: list[int] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        flushed.append(descriptor)
        fsync(descriptor)

    log.flush(2)
    pending = log.begin_flush(4)
    assert pending is not None
    monkeypatch.setattr(os, "fsync", note)
    counts = []
    for number, whole in enumerate(wholes):
        assert log.complete(2 * number, whole)
        counts.append(len(flushed))
    assert counts == [1, 2, 2]
    pending.run()
    log.finish_flush(pending)
    assert log.recovery_point == 4
    assert content_of(log) == b"".join(wholes)


def test_a_crash_before_the_records_leaves_no_zeros(tmp_path: Path) -> None:
    log = opened(tmp_path)
    wholes = [append_header(log, batch(2)) for _ in range(3)]
    assert log.complete(0, wholes[0])
    again = opened(tmp_path)
    assert again.log_end_offset == 2
    assert content_of(again) == wholes[0]


def test_a_header_is_checked_as_a_batch_is() -> None:
    config = TopicConfig(max_message_bytes=1_000, segment_bytes=500)
    good = batch(1)
    check_header(parse_header(good), config, now_ms=NOW_MS)
    for wrong, error in (
        (batch(1, value_size_bytes=2_000), MessageTooLarge),
        (batch(1, value_size_bytes=600), RecordListTooLarge),
        (batch(1, producer_id=7, producer_epoch=0), InvalidRecord),
        (batch(1, is_control=True), InvalidRecord),
        (batch(1, timestamps=[NOW_MS + 1_000_000_000_000]), InvalidTimestamp),
    ):
        with pytest.raises(error):
            check_header(parse_header(wrong), config, now_ms=NOW_MS)


def test_a_search_by_time_reads_no_batch_that_is_not_committed(tmp_path: Path) -> None:
    """Of a diskless topic: it may have no records yet. The caller sees that it is too late."""
    config = TopicConfig(diskless_enable=True)
    log = LocalLog.open(tmp_path, PARTITION, config=config, clock_ms=lambda: NOW_MS)
    first = batch(1, timestamps=[NOW_MS])
    log.append_as_leader(first, leader_epoch=3)
    log.advance_high_watermark(1)
    whole = append_header(log, batch(2, timestamps=[NOW_MS + 5, NOW_MS + 9]))
    assert log.offset_for_timestamp(NOW_MS) == (NOW_MS, 0)
    assert log.offset_for_timestamp(NOW_MS + 1) is None
    assert log.max_timestamp() == (NOW_MS + 9, 1)
    assert log.complete(1, whole)
    log.advance_high_watermark(3)
    assert log.offset_for_timestamp(NOW_MS + 1) == (NOW_MS + 5, 1)
    assert log.max_timestamp() == (NOW_MS + 9, 2)


def test_nor_does_it_once_the_record_with_the_greatest_time_is_deleted(tmp_path: Path) -> None:
    config = TopicConfig(diskless_enable=True)
    log = LocalLog.open(tmp_path, PARTITION, config=config, clock_ms=lambda: NOW_MS)
    for delay_ms in (9, 3):
        log.append_as_leader(batch(1, timestamps=[NOW_MS + delay_ms]), leader_epoch=3)
    log.advance_high_watermark(2)
    whole = append_header(log, batch(1, timestamps=[NOW_MS + 5]))
    log.advance_log_start_offset(1)
    assert log.max_timestamp() == (NOW_MS + 3, 1)
    assert log.complete(2, whole)
    log.advance_high_watermark(3)
    assert log.max_timestamp() == (NOW_MS + 5, 2)
