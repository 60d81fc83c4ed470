"""What a flush leaves to the next one when it does not come to its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tidelog_core.log.flush import PendingFlush
from tidelog_core.log.unified_log import UnifiedLog

from tests.core.log.building import append, batch, copy_of, open_log

EPOCH = 7


def give_up(log: UnifiedLog, pending: PendingFlush) -> None:
    """End it in a way that says nothing about the disk; a thread comes to it afterwards."""
    log.give_up_flush(pending)
    pending.run()


def overtake(log: UnifiedLog, pending: PendingFlush) -> None:
    """Flush at once; the thread is done later."""
    log.flush()
    pending.run()
    log.finish_flush(pending)


@pytest.mark.parametrize("end", [give_up, overtake])
def test_the_next_flush_writes_what_one_has_left_that_came_to_no_end(
    tmp_path: Path, end: Callable[[UnifiedLog, PendingFlush], None]
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
