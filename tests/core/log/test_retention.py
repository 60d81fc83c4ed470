"""Deleting, evicting, truncating, flushing and removing."""

from __future__ import annotations

import errno
from pathlib import Path
from threading import Thread

import pytest
from tidelog_core.errors import OffsetOutOfRange, StorageError, UnknownTopicOrPartition
from tidelog_core.log.deletion import remove_deleted_logs
from tidelog_core.log.local_log import LocalLog

from tests.support.batches import batch
from tests.support.clock import NOW_MS, Clock
from tests.support.log_building import append, content_of, copy_of, headers_of, open_log


def segmented(directory: Path, clock: Clock | None = None) -> LocalLog:
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
    with pytest.raises(OffsetOutOfRange) as caught:
        log.read(7, max_bytes=1, up_to=20)
    assert (caught.value.offset, caught.value.start) == (7, 8)
    assert log.leader_epochs[0] == (0, 0)
    log.set_tiered_up_to(20)
    assert log.evict_local(20) > 0
    assert log.local_log_start_offset == log.active_segment_base_offset == 16
    log.close()


def test_a_log_wholly_below_its_start_is_emptied(tmp_path: Path) -> None:
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


def test_flush_policy_is_reported(tmp_path: Path) -> None:
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


def test_sealed_segments_are_counted_as_they_are_listed(tmp_path: Path) -> None:
    log = segmented(tmp_path / "log")
    for offset in range(21):
        listed = list(log.sealed_above(offset))
        expected = (len(listed), sum(sealed.size_bytes for sealed in listed))
        assert log.count_sealed_above(offset) == expected
    log.close()


def test_sealed_segments_are_told_without_a_look_at_their_indexes(tmp_path: Path) -> None:
    """Retention asks for all of them; only those that are copied must be whole."""
    log = segmented(tmp_path / "log")
    log.close()
    log = open_log(tmp_path / "log", segment_bytes=260)
    for path in (tmp_path / "log").glob("*.timeindex"):
        path.unlink()
    first, second, *_ = log.sealed_segments()
    assert not first.time_index.exists()
    log.make_whole(first)
    assert first.time_index.exists()
    assert not second.time_index.exists()
    log.set_tiered_up_to(first.end_offset)
    log.evict_local(first.end_offset)
    with pytest.raises(StorageError, match="gone"):
        log.make_whole(first)
    log.close()


def test_a_deleted_log_does_not_touch_the_one_that_took_its_place(tmp_path: Path) -> None:
    log = segmented(tmp_path / "log")
    (sealed, *_) = log.sealed_segments()
    log.delete()
    successor = open_log(tmp_path / "log")
    append(successor, batch())
    names = sorted(path.name for path in (tmp_path / "log").iterdir())
    for action in (
        log.sealed_segments,
        lambda: log.make_whole(sealed),
        log.roll,
        log.flush,
        lambda: log.advance_log_start_offset(4),
        lambda: log.evict_local(4),
        lambda: log.truncate_to(0),
        lambda: log.append_as_leader(batch(), leader_epoch=0),
    ):
        with pytest.raises(UnknownTopicOrPartition, match="was deleted"):
            action()
    log.close()
    assert sorted(path.name for path in (tmp_path / "log").iterdir()) == names
    successor.close()


def test_a_log_with_the_longest_name_can_be_deleted(tmp_path: Path) -> None:
    directory = tmp_path / ("t" * 249 + "-1000")
    log = open_log(directory)
    append(log, batch())
    log.delete()
    assert list(tmp_path.iterdir()) == []


def test_segments_below_a_start_that_only_the_store_knows_go_on_open(tmp_path: Path) -> None:
    """DeleteRecords writes the store first; the node may die before the log follows."""
    log = segmented(tmp_path / "log")
    log.close()
    log = open_log(tmp_path / "log", segment_bytes=260, log_start_offset=9)
    assert (log.log_start_offset, log.local_log_start_offset) == (9, 9)
    assert [s.base_offset for s in log.sealed_segments()] == [8, 12]
    log.close()


def test_the_start_of_a_log_stays_when_it_is_no_longer_tiered(tmp_path: Path) -> None:
    """What has been evicted is still in the tier: the setting only ends the copying."""
    log = segmented(tmp_path / "log")
    log.set_tiered_up_to(8)
    log.evict_local(8)
    log.close()
    log = open_log(tmp_path / "log", remote_storage_enable=False)
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 8)
    log.close()


def test_a_truncation_that_fails_half_way_takes_the_log_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment that should have gone must not be found behind newer batches later."""
    log = segmented(tmp_path / "log")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "the disk fails")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", fail)
        with pytest.raises(StorageError):
            log.truncate_to(6)
    with pytest.raises(StorageError, match="offline"):
        append(log, batch())
    log.close()


def open_files(folder: Path) -> list[str]:
    """Return the files below the folder that this process has open."""
    descriptors = [each for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    names = sorted(str(each.readlink()) for each in descriptors if each.is_symlink())
    return [name for name in names if name.startswith(f"{folder}/")]


def test_a_flush_that_cannot_open_its_files_leaves_none_open(tmp_path: Path) -> None:
    log = segmented(tmp_path / "log")
    (tmp_path / "log" / f"{8:020d}.log").unlink()
    before = open_files(tmp_path)
    with pytest.raises(StorageError):
        log.flush()
    assert open_files(tmp_path) == before
    log.take_offline()
    log.close()


def test_the_greatest_timestamp_is_that_of_a_record_that_is_left(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    for time_ms in (5, 90, 7, 30, 20):
        append(log, batch(timestamps=[NOW_MS + time_ms]))
    log.advance_log_start_offset(2)
    assert log.max_timestamp() == (NOW_MS + 30, 3)
    log.close()
