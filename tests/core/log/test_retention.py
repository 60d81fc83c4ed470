"""Deleting, evicting, truncating, flushing and removing."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest
from tidelog_core.errors import OffsetOutOfRange
from tidelog_core.log.deletion import remove_deleted_logs
from tidelog_core.log.unified_log import UnifiedLog
from tidelog_core.log.values import OffsetNotLocal

from tests.core.log.building import (
    NOW_MS,
    Clock,
    append,
    batch,
    content_of,
    copy_of,
    headers_of,
    open_log,
)


def segmented(directory: Path, clock: Clock | None = None) -> UnifiedLog:
    """Return a log of ten batches of two records, two batches a segment."""
    log = open_log(directory, clock, segment_bytes=260)
    for number in range(10):
        append(log, batch(2, timestamps=[NOW_MS + number] * 2), epoch=number // 3)
    assert [s.base_offset for s in log.sealed_segments()] == [0, 4, 8, 12]
    return log


def test_sealed_segments_say_what_the_tier_needs(tmp_path: Path) -> None:
    log = segmented(tmp_path / "log")
    second = log.sealed_segments()[1]
    assert (second.base_offset, second.end_offset) == (4, 8)
    assert second.size_bytes == second.path.stat().st_size
    assert second.max_timestamp_ms == NOW_MS + 3
    assert second.leader_epochs == ((0, 4), (1, 6))
    for path in (second.path, second.offset_index, second.time_index, second.producer_snapshot):
        assert path.exists()
    assert second.last_modified_ms > NOW_MS
    assert log.sealed_segments()[1] is second
    log.close()


def test_log_start_offset_moves_and_takes_whole_segments_with_it(tmp_path: Path) -> None:
    log = segmented(tmp_path / "log")
    assert log.advance_log_start_offset(6)
    assert not log.advance_log_start_offset(6)
    assert (log.log_start_offset, log.local_log_start_offset) == (6, 6)
    assert [s.base_offset for s in log.sealed_segments()] == [4, 8, 12]
    assert log.leader_epochs == ((1, 6), (2, 12), (3, 18))
    with pytest.raises(OffsetOutOfRange):
        log.read(5, max_bytes=1, up_to=20)
    assert log.read(6, max_bytes=1, up_to=20).start_offset == 6
    assert log.read(7, max_bytes=1, up_to=20).start_offset == 6
    with pytest.raises(OffsetOutOfRange):
        log.advance_log_start_offset(21)
    crashed = copy_of(tmp_path / "log", tmp_path / "crashed")
    log.advance_log_start_offset(20)
    assert (log.log_start_offset, log.log_end_offset) == (20, 20)
    log.close()
    for directory, start in ((tmp_path / "log", 20), (crashed, 6)):
        reopened = open_log(directory, segment_bytes=260)
        assert reopened.log_start_offset == start
        assert reopened.log_end_offset == 20
        assert reopened.leader_epoch == 3
        reopened.close()


def test_eviction_needs_the_tier_and_keeps_the_log_start(tmp_path: Path) -> None:
    log = segmented(tmp_path / "log")
    size_bytes = log.size_bytes
    assert log.evict_local(20) == 0
    log.set_tiered_up_to(11)
    assert log.evict_local(20) == size_bytes * 4 // 10
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 8)
    with pytest.raises(OffsetNotLocal) as caught:
        log.read(7, max_bytes=1, up_to=20)
    assert (caught.value.offset, caught.value.start) == (7, 8)
    assert log.leader_epochs[0] == (0, 0)
    log.set_tiered_up_to(20)
    assert log.evict_local(20) > 0
    assert log.local_log_start_offset == log.active_segment_base_offset == 16
    log.close()


def test_log_that_lies_wholly_below_its_start_begins_anew(tmp_path: Path) -> None:
    log = segmented(tmp_path / "log")
    log.close()
    log = open_log(tmp_path / "log", log_start_offset=50)
    assert (log.log_start_offset, log.log_end_offset) == (50, 50)
    assert append(log, batch(1), epoch=9).base_offset == 50
    log.close()
    assert sorted(p.name for p in (tmp_path / "log").glob("*.log")) == [f"{50:020d}.log"]


@pytest.mark.parametrize("is_flushed", [True, False])
@pytest.mark.parametrize("is_reopened", [True, False])
def test_truncation_leaves_the_batches_below_the_offset(
    tmp_path: Path, is_flushed: bool, is_reopened: bool
) -> None:
    written = content_of(log := segmented(tmp_path / "log"))
    log.close()
    for offset in range(21):
        copy = copy_of(tmp_path / "log", tmp_path / "copy")
        if not is_flushed:
            (copy / "recovery-point").unlink()
            (copy / "clean-shutdown").unlink()
        log = open_log(copy, segment_bytes=260)
        log.advance_high_watermark(20)
        log.truncate_to(offset)
        end = offset - offset % 2
        assert log.log_end_offset == log.high_watermark == end
        assert log.recovery_point <= end
        if is_reopened:
            crashed = copy_of(copy, tmp_path / "crashed")
            log.close()
            log = open_log(crashed, segment_bytes=260)
        content = content_of(log)
        assert written.startswith(content)
        assert (headers_of(content)[-1].next_offset if content else 0) == end
        newest = (NOW_MS + end // 2 - 1, end - 2) if end else None
        assert log.max_timestamp() == newest
        assert append(log, batch(1), epoch=5).base_offset == end
        assert log.leader_epochs[-1] == (5, end)
        log.close()


def test_full_truncation_starts_an_empty_log(tmp_path: Path) -> None:
    log = segmented(tmp_path / "log")
    log.flush()
    log.truncate_fully_and_start_at(7)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (7, 7, 7)
    assert (log.leader_epochs, log.sealed_segments()) == ((), [])
    crashed = copy_of(tmp_path / "log", tmp_path / "crashed")
    assert append(log, batch(1), epoch=8).base_offset == 7
    log.close()
    reopened = open_log(crashed)
    assert (reopened.log_start_offset, reopened.log_end_offset) == (7, 7)
    reopened.close()


def test_flush_policy_is_told(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path / "log", clock, flush_messages=3, flush_ms=1000, segment_bytes=260)
    assert not log.needs_flush
    append(log, batch(2))
    assert not log.needs_flush
    append(log, batch(1))
    assert log.needs_flush
    log.flush()
    assert (log.needs_flush, log.recovery_point) == (False, 3)
    append(log, batch(1))
    clock.now_ms += 1000
    assert log.needs_flush
    log.flush()
    append(log, batch(1))
    log.roll()
    assert log.needs_flush
    log.flush(log.active_segment_base_offset)
    assert log.recovery_point == 5
    log.close()


def test_flush_runs_on_another_thread_while_the_log_is_appended_to(tmp_path: Path) -> None:
    log = segmented(tmp_path / "log")
    pending = log.begin_flush(16)
    assert pending is not None
    assert log.begin_flush() is None
    thread = Thread(target=pending.run)
    thread.start()
    append(log, batch(1), epoch=9)
    log.advance_log_start_offset(9)
    thread.join()
    log.finish_flush(pending)
    assert log.recovery_point == 16
    log.flush()
    assert log.recovery_point == 21
    assert log.begin_flush() is None
    log.close()


def test_flush_begun_before_a_truncation_does_not_raise_the_recovery_point(tmp_path: Path) -> None:
    log = segmented(tmp_path / "log")
    pending = log.begin_flush()
    assert pending is not None
    log.truncate_to(10)
    pending.run()
    log.finish_flush(pending)
    assert log.recovery_point == 0
    crashed = copy_of(tmp_path / "log", tmp_path / "crashed")
    log.close()
    reopened = open_log(crashed, segment_bytes=260)
    assert reopened.log_end_offset == 10
    reopened.close()


def test_deleted_log_is_gone_at_once_and_for_good(tmp_path: Path) -> None:
    log = segmented(tmp_path / "log")
    part = log.read(0, max_bytes=1, up_to=20).slice
    log.delete()
    assert list(tmp_path.iterdir()) == []
    assert part is not None
    fresh = open_log(tmp_path / "log")
    assert fresh.log_end_offset == 0
    fresh.close()
    (tmp_path / "other-0.abc-delete").mkdir()
    assert remove_deleted_logs(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_closing_an_idle_log_writes_next_to_nothing(tmp_path: Path) -> None:
    log = segmented(tmp_path / "log")
    log.close()
    log.close()
    before = {path.name: path.stat().st_ino for path in (tmp_path / "log").iterdir()}
    log = open_log(tmp_path / "log", segment_bytes=260)
    log.close()
    after = {path.name: path.stat().st_ino for path in (tmp_path / "log").iterdir()}
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed <= {"clean-shutdown"}
    assert set(after) == set(before)
