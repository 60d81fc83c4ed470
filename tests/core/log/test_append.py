"""What a leader and a follower take, refuse and change."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.errors import (
    CorruptRecordBatch,
    FencedLeaderEpoch,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    RecordListTooLarge,
    StorageError,
    TidelogError,
)
from tidelog_core.log.values import AppendLimit, UnexpectedAppendOffset
from tidelog_core.records.batch import (
    CompressionType,
    Record,
    build_batch,
    check_crc,
    decode_records,
    parse_header,
)

from tests.support.batches import batch
from tests.support.clock import NOW_MS, Clock
from tests.support.log_building import append, content_of, headers_of, open_log

HOUR_MS = 3_600_000


def test_leader_gives_offsets_and_its_epoch_in_place(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    append(log, batch(3), epoch=4)
    content = batch(2)
    info = log.append_as_leader(memoryview(content), leader_epoch=5)
    assert (info.base_offset, info.last_offset, info.log_append_time_ms) == (3, 4, -1)
    header = parse_header(content)
    assert (header.base_offset, header.partition_leader_epoch) == (3, 5)
    assert content_of(log)[-len(content) :] == content
    assert log.leader_epochs == ((4, 0), (5, 3))
    assert log.offset_for_leader_epoch(4) == (4, 3)
    assert log.offset_for_leader_epoch(5) == (5, 5)
    assert log.offset_for_leader_epoch(6) == (-1, -1)
    assert log.offset_for_leader_epoch(1) == (1, 0)
    assert (log.high_watermark, log.log_end_offset) == (3, 5)
    log.close()


def test_older_leader_epoch_is_fenced(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    append(log, batch(1), epoch=4)
    with pytest.raises(FencedLeaderEpoch):
        append(log, batch(1), epoch=3)
    log.assign_leader_epoch(6)
    assert log.leader_epochs == ((4, 0), (6, 1))
    with pytest.raises(FencedLeaderEpoch):
        append(log, batch(1), epoch=5)
    log.close()


def damaged(position: int) -> bytearray:
    content = batch(1)
    content[position] ^= 1
    return content


BAD: list[tuple[str, bytearray, dict[str, Any], type[TidelogError]]] = [
    ("empty", bytearray(), {}, CorruptRecordBatch),
    ("cut", batch(1)[:-1], {}, CorruptRecordBatch),
    ("wrong crc", damaged(70), {}, CorruptRecordBatch),
    ("too large", batch(1, value_size_bytes=200), {"max_message_bytes": 200}, MessageTooLarge),
    ("over a segment", batch(1, value_size_bytes=200), {"segment_bytes": 200}, RecordListTooLarge),
    ("future", batch(timestamps=[NOW_MS + HOUR_MS + 1]), {}, InvalidTimestamp),
    (
        "past",
        batch(timestamps=[NOW_MS - 11]),
        {"message_timestamp_before_max_ms": 10},
        InvalidTimestamp,
    ),
    ("no key", batch(1), {"cleanup_policy": ("compact",)}, InvalidRecord),
    ("control", batch(1, is_control=True, producer_id=1), {}, InvalidRecord),
    ("offset", bytearray(build_batch([Record(0, 0, None, b"")], base_offset=1)), {}, InvalidRecord),
]


@pytest.mark.parametrize(("content", "options", "error"), [row[1:] for row in BAD])
@pytest.mark.parametrize("is_second", [False, True])
def test_bad_batch_leaves_the_log_untouched(
    tmp_path: Path,
    content: bytearray,
    options: dict[str, Any],
    error: type[TidelogError],
    is_second: bool,
) -> None:
    log = open_log(tmp_path / "log", **{"segment_bytes": 300, **options})
    append(log, batch(1, key=b"k"))
    before, size_bytes = content_of(log), (tmp_path / "log" / f"{0:020d}.log").stat().st_size
    produced = batch(1, key=b"k") + content if is_second else bytearray(content)
    if is_second and not content:
        return
    with pytest.raises(error):
        log.append_as_leader(produced, leader_epoch=0)
    assert content_of(log) == before
    assert log.log_end_offset == 1
    assert (tmp_path / "log" / f"{0:020d}.log").stat().st_size == size_bytes
    assert append(log, batch(1, key=b"k")).base_offset == 1
    log.close()


def test_log_append_time_stamps_every_record(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path / "log", clock, message_timestamp_type="LogAppendTime")
    clock.now_ms += 5
    info = append(log, batch(2, timestamps=[1, 2**40]))
    assert info.log_append_time_ms == NOW_MS + 5
    content = content_of(log)
    check_crc(content, 0, parse_header(content))
    assert [r.timestamp_ms for r in decode_records(content)] == [NOW_MS + 5] * 2
    assert log.max_timestamp() == (NOW_MS + 5, 0)
    log.close()


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "none", "uncompressed"])
@pytest.mark.parametrize("sent", list(CompressionType))
def test_topic_with_a_codec_converts_batches(
    tmp_path: Path, codec: str, sent: CompressionType
) -> None:
    log = open_log(tmp_path / "log", compression_type=codec)
    values = [b"abc" * 50, b"", b"x"]
    records = [Record(0, NOW_MS, None, value) for value in values]
    for number in range(2):
        content = bytearray(build_batch(records, compression=sent))
        assert append(log, content).base_offset == 3 * number
    stored = content_of(log)
    for header in headers_of(stored):
        wanted = "NONE" if codec in ("none", "uncompressed") else codec.upper()
        assert header.compression is CompressionType[wanted]
    position = headers_of(stored)[0].size_bytes
    check_crc(stored, position, parse_header(stored, position))
    decoded = decode_records(stored, position)
    assert [(r.offset, r.value) for r in decoded] == list(zip((3, 4, 5), values, strict=True))
    log.close()


@pytest.mark.parametrize(
    ("codec", "weak", "strong"),
    [("gzip", "1", "9"), ("lz4", "1", "17"), ("zstd", "-131072", "22")],
)
def test_topic_with_a_codec_converts_at_its_level(
    tmp_path: Path, codec: str, weak: str, strong: str
) -> None:
    text = b" ".join(b"%d" % (number * number % 9973) for number in range(4000))
    sizes_bytes = []
    for level in (weak, strong):
        settings = {f"compression_{codec}_level": int(level)}
        log = open_log(tmp_path / f"log{level}", compression_type=codec, **settings)
        append(log, bytearray(build_batch([Record(0, NOW_MS, None, text)])))
        stored = content_of(log)
        assert decode_records(stored)[0].value == text
        sizes_bytes.append(len(stored))
        log.close()
    assert sizes_bytes[1] < sizes_bytes[0]


def test_segment_rolls_by_size_time_and_full_index(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path / "log", clock, segment_bytes=300, segment_ms=1000)
    for _ in range(4):
        append(log, batch(1))
    assert [s.base_offset for s in log.sealed_segments()] == [0]
    append(log, batch(1, timestamps=[NOW_MS + 1001]))
    assert [s.base_offset for s in log.sealed_segments()] == [0, 3]
    assert log.active_segment_base_offset == 4
    assert not log.maybe_roll()
    clock.now_ms += 2002
    assert log.maybe_roll()
    assert not log.maybe_roll()
    assert log.active_segment_base_offset == 5
    log.roll()
    assert log.active_segment_base_offset == 5
    log.close()
    log = open_log(tmp_path / "other", index_interval_bytes=0, segment_index_bytes=16)
    for _ in range(4):
        append(log, batch(1))
    assert log.active_segment_base_offset == 3
    log.close()


def test_follower_takes_offsets_epochs_and_gaps_and_leaves_out_a_cut_batch(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "leader")
    for number in range(5):
        append(leader, batch(2), epoch=number)
    content = content_of(leader)
    follower = open_log(tmp_path / "follower")
    info = follower.append_as_follower(bytearray(content[:-1]))
    assert (info.base_offset, info.last_offset) == (0, 7)
    assert content_of(follower) == content[: info.size_bytes]
    assert follower.leader_epochs == leader.leader_epochs[:4]
    assert follower.append_as_follower(bytearray(content[:20])).size_bytes == 0
    for bad in (content, content[info.size_bytes :] * 2):
        with pytest.raises(UnexpectedAppendOffset):
            follower.append_as_follower(bytearray(bad))
    wrong = bytearray(content[info.size_bytes :])
    wrong[-1] ^= 1
    with pytest.raises(CorruptRecordBatch):
        follower.append_as_follower(wrong)
    assert follower.log_end_offset == 8
    follower.append_as_follower(bytearray(content[info.size_bytes :]))
    assert content_of(follower) == content
    leader.close()
    follower.close()


@pytest.mark.parametrize(
    ("batch_count", "size_bytes", "expected"), [(3, 10_000, 3), (9, 1, 1), (9, 141, 2), (5, 1, 1)]
)
def test_follower_ends_behind_the_batch_that_reaches_a_limit(
    tmp_path: Path, batch_count: int, size_bytes: int, expected: int
) -> None:
    leader = open_log(tmp_path / "leader")
    for _ in range(5):
        append(leader, batch(2))
    content = content_of(leader)
    each = len(content) // 5
    assert 70 < each < 141
    follower = open_log(tmp_path / "follower")
    info = follower.append_as_follower(bytearray(content), AppendLimit(batch_count, size_bytes))
    assert (info.batch_count, info.size_bytes) == (expected, expected * each)
    assert content_of(follower) == content[: expected * each]
    info = follower.append_as_follower(bytearray(content[expected * each :]))
    assert info.batch_count == 5 - expected
    assert content_of(follower) == content
    leader.close()
    follower.close()


def test_follower_splits_a_long_run_over_segments(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "leader")
    for _ in range(20):
        append(leader, batch(1))
    follower = open_log(tmp_path / "follower", segment_bytes=200)
    follower.append_as_follower(bytearray(content_of(leader)))
    assert content_of(follower) == content_of(leader)
    assert len(follower.sealed_segments()) == 9
    assert all(sealed.size_bytes <= 200 for sealed in follower.sealed_segments())
    leader.close()
    follower.close()


@pytest.fixture
def file_size_limit() -> Any:
    """Yield a function that sets the largest file that this process may write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_write_that_fails_half_way_is_taken_back(tmp_path: Path, file_size_limit: Any) -> None:
    log = open_log(tmp_path / "log")
    append(log, batch(1))
    before, path = content_of(log), tmp_path / "log" / f"{0:020d}.log"
    options: dict[str, Any] = {"producer_id": 3, "producer_epoch": 0, "base_sequence": 0}
    file_size_limit(len(before) + 50)
    with pytest.raises(StorageError, match=os.strerror(errno.EFBIG)):
        append(log, batch(5, **options), epoch=2)
    assert path.stat().st_size == len(before)
    assert (content_of(log), log.log_end_offset, log.leader_epoch) == (before, 1, 0)
    assert not log.is_offline
    file_size_limit(resource.RLIM_INFINITY)
    assert append(log, batch(5, **options), epoch=2).base_offset == 1
    log.close()


def test_log_goes_offline_when_it_cannot_roll(tmp_path: Path) -> None:
    """It could not grow any more, and its leader would go on leading."""
    log = open_log(tmp_path / "log")
    append(log, batch(1))
    (tmp_path / "log" / f"{1:020d}.snapshot").mkdir()
    with pytest.raises(StorageError, match=os.strerror(errno.EISDIR)):
        log.roll()
    assert log.may_be_reopened
    log.close()


def test_a_log_that_was_given_up_is_not_to_be_opened_again(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    assert not log.may_be_reopened
    log.take_offline()
    assert log.is_offline
    assert not log.may_be_reopened
    log.close()


def test_log_goes_offline_when_a_failed_write_cannot_be_taken_back(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    append(log, batch(1))
    file = log._segments.active._file
    assert file is not None
    descriptor, file._fd = file._fd, -1
    os.close(descriptor)
    with pytest.raises(StorageError):
        append(log, batch(1))
    assert log.is_offline
    assert log.may_be_reopened
    for call in (
        lambda: append(log, batch(1)),
        lambda: log.read(0, max_bytes=1, up_to=1),
        log.flush,
        lambda: log.truncate_to(0),
        lambda: log.append_as_follower(batch(1)),
    ):
        with pytest.raises(StorageError, match="offline"):
            call()
    log.close()
    reopened = open_log(tmp_path / "log")
    assert reopened.log_end_offset == 1
    reopened.close()


def test_roll_that_fails_leaves_the_active_segment_as_it_was(
    tmp_path: Path, file_size_limit: Any
) -> None:
    log = open_log(tmp_path / "log", index_interval_bytes=0)
    for _ in range(5):
        append(log, batch(1))
    before = content_of(log)
    file_size_limit(8)
    with pytest.raises(StorageError):
        log.roll()
    file_size_limit(resource.RLIM_INFINITY)
    assert log.active_segment_base_offset == 0
    assert append(log, batch(1)).base_offset == 5
    log.roll()
    assert log.active_segment_base_offset == 6
    assert content_of(log).startswith(before)
    log.close()
