"""When segments are sealed by their age, and by whose clock."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.batches import batch
from tests.support.clock import NOW_MS, Clock
from tests.support.log_building import append, open_log

DAY_MS = 86_400_000


def test_old_records_do_not_seal_a_segment_as_soon_as_it_is_looked_at(tmp_path: Path) -> None:
    """A backfill would end in a segment for every look, and two objects for each."""
    clock = Clock()
    log = open_log(tmp_path / "log", clock, segment_ms=DAY_MS)
    for _ in range(3):
        append(log, batch(timestamps=[NOW_MS - 30 * DAY_MS]))
        assert not log.maybe_roll()
    clock.now_ms += DAY_MS + 1
    assert log.maybe_roll()
    log.close()


def test_records_from_the_future_do_not_keep_a_segment_open(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path / "log", clock, segment_ms=1000, message_timestamp_after_max_ms=2**62)
    append(log, batch(timestamps=[NOW_MS + 30 * DAY_MS]))
    clock.now_ms += 1001
    assert log.maybe_roll()
    log.close()


def test_an_idle_segment_is_as_old_as_its_first_batch_and_not_as_its_file(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path / "log", clock, segment_ms=1000)
    clock.now_ms += 5000
    append(log, batch(timestamps=[-1]))
    assert not log.maybe_roll()
    append(log, batch(timestamps=[-1]))
    assert log.sealed_segments() == []
    log.close()


def test_a_segment_does_not_become_young_by_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path / "log", clock, segment_ms=1000)
    append(log, batch(timestamps=[-1]))
    log.close()
    (path,) = (tmp_path / "log").glob("*.log")
    os.utime(path, (NOW_MS / 1000, NOW_MS / 1000))
    clock.now_ms += 1001
    log = open_log(tmp_path / "log", clock, segment_ms=1000)
    assert log.maybe_roll()
    log.close()


def test_a_clock_that_goes_back_seals_nothing_and_loses_nothing(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path / "log", clock, segment_ms=1000, message_timestamp_type="LogAppendTime")
    for back_ms in (0, 500, 5000, DAY_MS):
        clock.now_ms = NOW_MS - back_ms
        append(log, batch())
        assert not log.maybe_roll()
    assert log.max_timestamp() == (NOW_MS, 0)
    assert log.offset_for_timestamp(NOW_MS - 100) == (NOW_MS, 0)
    log.close()
