"""A replica's log that is cut where the leader's parts, or begins where the tier ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog_core.errors import OffsetOutOfRange
from tidelog_core.log.producers.producer_snapshot import CorruptSnapshot

from tests.support.batches import batch
from tests.support.log_building import open_log


def test_a_truncation_drops_epochs_that_have_no_batch(tmp_path: Path) -> None:
    """A leader deposed before it had written anything knows an epoch that nobody else does."""
    log = open_log(tmp_path / "log")
    log.append_as_leader(batch(3), leader_epoch=1)
    log.assign_leader_epoch(5)
    assert log.leader_epoch == 5
    log.truncate_to(3)
    assert log.log_end_offset == 3
    assert log.leader_epoch == 1
    log.close()


def test_a_log_starts_again_with_given_epochs_and_producers(tmp_path: Path) -> None:
    source = open_log(tmp_path / "source")
    first = batch(10, producer_id=7, producer_epoch=0, base_sequence=0)
    source.append_as_leader(first, leader_epoch=2)
    source.roll()
    snapshot = source.sealed_segments()[0].producer_snapshot.read_bytes()
    source.close()

    log = open_log(tmp_path / "log")
    log.append_as_leader(batch(4), leader_epoch=1)
    log.truncate_fully_and_start_at(
        10, log_start_offset=0, leader_epochs=[(2, 0), (9, 10)], producer_snapshot=snapshot
    )
    for _ in range(2):  # also when it is opened again
        assert (log.log_start_offset, log.local_log_start_offset) == (0, 10)
        assert log.log_end_offset == log.high_watermark == 10
        assert log.leader_epochs == ((2, 0),)
        with pytest.raises(OffsetOutOfRange):
            log.read(3, max_bytes=100, up_to=10)
        repeated = batch(10, producer_id=7, producer_epoch=0, base_sequence=0)
        assert log.append_as_leader(repeated, leader_epoch=3).is_duplicate
        log.close()
        log = open_log(tmp_path / "log")
    log.append_as_leader(
        batch(1, producer_id=7, producer_epoch=0, base_sequence=10), leader_epoch=3
    )
    assert log.log_end_offset == 11
    log.close()


def test_a_log_starts_again_after_a_crash_right_away(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    log.append_as_leader(batch(4), leader_epoch=1)
    log.flush()
    log.truncate_fully_and_start_at(10, log_start_offset=2, leader_epochs=[(1, 0)])
    # No close: what the next start finds is what was durable.
    again = open_log(tmp_path / "log")
    assert (again.log_start_offset, again.log_end_offset) == (2, 10)
    assert again.leader_epoch == 1
    again.close()
    log.close()


def test_a_past_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    log.append_as_leader(batch(4), leader_epoch=1)
    log.roll()
    snapshot = log.sealed_segments()[0].producer_snapshot.read_bytes()
    for bad in (b"damaged", snapshot):
        with pytest.raises(CorruptSnapshot):
            log.truncate_fully_and_start_at(10, producer_snapshot=bad)
    assert (log.log_start_offset, log.log_end_offset) == (0, 4)
    log.close()
