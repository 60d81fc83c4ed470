"""What a flush leaves to the next one when it does not come to its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.segments.flush import PendingFlush
from tidelog_core.log.segments.segment import LogSegment

from tests.support.batches import batch
from tests.support.log_building import append, copy_of, open_log

EPOCH = 7


def give_up(log: LocalLog, pending: PendingFlush) -> None:
    """End it in a way that says nothing about the disk; a thread comes to it afterwards."""
    log.give_up_flush(pending)
    pending.run()


def overtake(log: LocalLog, pending: PendingFlush) -> None:
    """Flush at once; the thread is done later."""
    log.flush()
    pending.run()
    log.finish_flush(pending)


@pytest.mark.parametrize("end", [give_up, overtake])
def test_the_next_flush_writes_what_one_has_left_that_came_to_no_end(
    tmp_path: Path, end: Callable[[LocalLog, PendingFlush], None]
) -> None:
    """A recovery point must not vouch for records whose leader epoch no checkpoint has."""
    log = open_log(tmp_path / "log")
    append(log, batch(1))
    log.flush()
    append(log, batch(1), epoch=EPOCH)
    pending = log.begin_flush()
    assert pending is not None
    end(log, pending)
    assert not log.is_offline
    for _ in range(2):  # Sealed segments that are vouched for are not read after a crash.
        log.roll()
        append(log, batch(1), epoch=EPOCH)
        log.flush()
    assert log.recovery_point == log.log_end_offset == 4
    crashed = copy_of(tmp_path / "log", tmp_path / "crashed")
    log.close()
    reopened = open_log(crashed)
    assert reopened.leader_epoch_for(1) == EPOCH
    assert reopened.offset_for_leader_epoch(EPOCH) == (EPOCH, 4)
    reopened.close()


def descriptor_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_flush_that_never_runs_keeps_no_descriptors(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    append(log, batch(1))
    log.roll()  # A sealed segment has its index files flushed with it.
    append(log, batch(1))
    count = descriptor_count()
    for _ in range(5):
        pending = log.begin_flush()
        assert pending is not None
        assert descriptor_count() > count
        log.give_up_flush(pending)
        assert descriptor_count() == count
    log.flush()
    assert descriptor_count() <= count
    log.close()


def test_a_thread_that_comes_late_to_a_flush_touches_no_descriptor(tmp_path: Path) -> None:
    """Its numbers may be other files' by then."""
    log = open_log(tmp_path / "log")
    append(log, batch(1))
    pending = log.begin_flush()
    assert pending is not None
    numbers = tuple(pending.descriptors)
    log.give_up_flush(pending)
    others = [os.open(tmp_path, os.O_RDONLY) for _ in numbers]
    assert set(others) == set(numbers)
    pending.run()
    assert not pending.is_done
    for descriptor in others:
        os.close(descriptor)  # It is still open.
    log.close()


class WatchedSegments(list[LogSegment]):
    """Segments that count how often one is looked at."""

    check_count = 0

    def __getitem__(self, index: Any) -> Any:
        self.check_count += 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[LogSegment]:
        for segment in super().__iter__():
            self.check_count += 1
            yield segment


def test_a_flush_looks_at_no_segment_that_is_flushed(tmp_path: Path) -> None:
    def checks(segment_count: int) -> int:
        log = open_log(tmp_path / str(segment_count))
        for _ in range(segment_count):
            append(log, batch(1))
            log.roll()
        log.flush()
        append(log, batch(1))
        watched = WatchedSegments(log._segments.all)
        log._segments.all = watched
        log.flush()
        count = watched.check_count
        assert log.recovery_point == log.log_end_offset == segment_count + 1
        log.close()
        return count

    assert checks(40) == checks(4)
