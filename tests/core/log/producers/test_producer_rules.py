"""Sequences, epochs and markers: the edge cases of Kafka's ProducerAppendInfo, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tidelog_core.errors import InvalidProducerEpoch, InvalidRecord, OutOfOrderSequence
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.values import AppendOrigin, TransactionCoordinatorFenced

from tests.support.batches import batch
from tests.support.clock import NOW_MS, Clock
from tests.support.log_building import (
    append,
    content_of,
    copy_of,
    end_transaction,
    marker,
    open_log,
    placed,
    send,
    transact,
    without_records,
)

SEQUENCE_MAX = 2**31 - 1
DAY_MS = 86_400_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LocalLog]:
    log = open_log(tmp_path / "log")
    yield log
    log.close()


# -- sequences --


def test_duplicate_of_a_batch_in_the_middle_of_the_last_five_is_known(log: LocalLog) -> None:
    for sequence in range(6):
        send(log, sequence)
    send(log, 6, count=3)
    again = send(log, 4)
    assert (again.is_duplicate, again.base_offset, again.last_offset) == (True, 4, 4)
    again = send(log, 6, count=3)
    assert (again.is_duplicate, again.base_offset, again.last_offset) == (True, 6, 8)


def test_end_of_a_batch_that_is_there_is_no_duplicate(log: LocalLog) -> None:
    """A batch is written whole, so no honest producer sends a part of it again."""
    send(log, 0, count=3)
    with pytest.raises(OutOfOrderSequence):
        send(log, 1, count=2)
    assert log.log_end_offset == 3


def test_duplicate_leaves_the_order_of_the_retained_batches_alone(log: LocalLog) -> None:
    for sequence in range(5):
        send(log, sequence)
    assert send(log, 0).is_duplicate
    send(log, 5)
    with pytest.raises(OutOfOrderSequence):
        send(log, 0)  # It was the oldest of the five, repeated or not.
    assert send(log, 1).is_duplicate


def test_sequence_after_the_greatest_is_zero_and_not_one(log: LocalLog) -> None:
    send(log, SEQUENCE_MAX)
    with pytest.raises(OutOfOrderSequence, match="expected 0"):
        send(log, 1)
    assert send(log, 0).base_offset == 1


def test_batch_over_the_wrap_is_known_again_after_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    send(log, SEQUENCE_MAX - 9, count=20)
    log.close()
    log = open_log(tmp_path / "log")
    assert send(log, SEQUENCE_MAX - 9, count=20).is_duplicate
    with pytest.raises(OutOfOrderSequence, match="expected 10"):
        send(log, 9)
    assert send(log, 10).base_offset == 20
    log.close()


def test_unknown_producer_may_start_with_any_sequence_in_any_epoch(log: LocalLog) -> None:
    """Its state may have expired, or gone with deleted records. Source: KIP-360."""
    assert send(log, 3, epoch=1, count=2).base_offset == 0
    with pytest.raises(OutOfOrderSequence, match="expected 5"):
        send(log, 3, epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        send(log, 0, epoch=0)


def test_refused_batch_changes_nothing_that_is_known_of_its_producer(log: LocalLog) -> None:
    send(log, 0)
    with pytest.raises(OutOfOrderSequence):
        send(log, 7, epoch=3)
    assert send(log, 1).base_offset == 1


def test_producers_in_one_append_are_checked_each_by_itself(log: LocalLog) -> None:
    content = bytearray()
    for producer_id, sequence in ((1, 0), (2, 0), (1, 1), (2, 1)):
        content += batch(producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    assert append(log, content).last_offset == 3
    assert send(log, 1, producer_id=1).is_duplicate
    assert send(log, 2, producer_id=2).base_offset == 4


def test_client_can_neither_write_markers_nor_leave_out_its_sequence(log: LocalLog) -> None:
    for content in (
        marker(is_commit=True, producer_id=5, epoch=0),
        batch(producer_id=5, producer_epoch=0, base_sequence=-1),
    ):
        with pytest.raises(InvalidRecord):
            append(log, content)
    assert (log.log_end_offset, log.producers.count) == (0, 0)


# -- markers --


def test_marker_of_an_unknown_producer_is_written_and_fences_from_then_on(
    log: LocalLog,
) -> None:
    end_transaction(log, is_commit=True, producer_id=5, epoch=2)
    assert log.last_stable_offset == 1
    with pytest.raises(InvalidProducerEpoch):
        send(log, 0, epoch=1)
    with pytest.raises(OutOfOrderSequence, match="expected 0"):
        send(log, 17, epoch=2)
    assert send(log, 0, epoch=2).base_offset == 1


def test_marker_in_a_higher_epoch_starts_the_sequences_over(log: LocalLog) -> None:
    """So a coordinator that aborts in the producer's place fences what is still under way."""
    transact(log, 5)
    transact(log, 5, 1)
    end_transaction(log, is_commit=False, producer_id=5, epoch=1)
    for epoch in (1, 2):
        with pytest.raises(OutOfOrderSequence, match="expected 0"):
            transact(log, 5, 2, epoch=epoch)
    with pytest.raises(InvalidProducerEpoch):
        transact(log, 5, 2, epoch=0)
    assert transact(log, 5, 0, epoch=1).base_offset == 3


def test_marker_in_the_same_epoch_lets_the_sequences_go_on(log: LocalLog) -> None:
    transact(log, 5)
    end_transaction(log, is_commit=True, producer_id=5, epoch=0)
    assert transact(log, 5).is_duplicate
    assert transact(log, 5, 1).base_offset == 2


def test_marker_of_an_older_producer_epoch_is_refused(log: LocalLog) -> None:
    transact(log, 5, epoch=5)
    with pytest.raises(InvalidProducerEpoch):
        end_transaction(log, is_commit=True, producer_id=5, epoch=3)
    assert (log.log_end_offset, log.last_stable_offset) == (1, 0)


def test_marker_of_an_older_epoch_is_refused_even_if_only_a_marker_is_known(
    log: LocalLog,
) -> None:
    end_transaction(log, is_commit=False, producer_id=5, epoch=5, coordinator_epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        end_transaction(log, is_commit=False, producer_id=5, epoch=4, coordinator_epoch=1)


def test_coordinator_may_repeat_a_marker_but_an_older_one_may_not(log: LocalLog) -> None:
    """Also of a transaction that has no batch in this partition."""
    transact(log, 5)
    for coordinator_epoch in (1, 1, 2):
        end_transaction(
            log, is_commit=True, producer_id=5, epoch=0, coordinator_epoch=coordinator_epoch
        )
    with pytest.raises(TransactionCoordinatorFenced):
        end_transaction(log, is_commit=True, producer_id=5, epoch=0, coordinator_epoch=1)
    assert (log.log_end_offset, log.last_stable_offset) == (4, 4)


def test_coordinators_stay_fenced_after_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    transact(log, 5)
    end_transaction(log, is_commit=True, producer_id=5, epoch=0, coordinator_epoch=3)
    log.close()
    log = open_log(tmp_path / "log")
    with pytest.raises(TransactionCoordinatorFenced):
        end_transaction(log, is_commit=True, producer_id=5, epoch=0, coordinator_epoch=2)
    log.close()


def test_refused_marker_leaves_the_transaction_open(log: LocalLog) -> None:
    transact(log, 5)
    end_transaction(log, is_commit=False, producer_id=5, epoch=0, coordinator_epoch=4)
    transact(log, 5, 1)
    with pytest.raises(TransactionCoordinatorFenced):
        end_transaction(log, is_commit=True, producer_id=5, epoch=0, coordinator_epoch=3)
    assert log.producers.has_ongoing_transaction(5)
    assert log.last_stable_offset == 2


def test_control_batch_that_was_compacted_away_says_nothing(tmp_path: Path) -> None:
    """Neither of a producer that is unknown nor of one in a transaction."""
    log = open_log(tmp_path / "log")
    empty = without_records(marker(is_commit=True, producer_id=9, epoch=4))
    log.append_as_follower(placed(empty, 0))
    assert log.producers.count == 0
    log.append_as_follower(
        placed(batch(producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True), 1)
    )
    log.append_as_follower(
        placed(without_records(marker(is_commit=True, producer_id=5, epoch=0)), 2)
    )
    log.advance_high_watermark(3)
    assert log.producers.has_ongoing_transaction(5)
    assert log.last_stable_offset == 1
    assert send(log, 77, producer_id=9).base_offset == 3
    log.close()


def test_one_append_may_end_and_begin_several_transactions(log: LocalLog) -> None:
    """A follower gets runs of batches; empty transactions among them leave nothing."""
    transact(log, 5)
    run = content_of(log)
    first = len(run)
    for is_commit in (True, True, False):
        end_transaction(log, is_commit=is_commit, producer_id=5, epoch=0)
    transact(log, 5, 1, count=4)
    for _ in range(2):
        end_transaction(log, is_commit=False, producer_id=5, epoch=0)
    transact(log, 5, 5)
    follower = open_log(log.directory.with_name("follower"))
    follower.append_as_follower(bytearray(content_of(log)[:first]))
    follower.append_as_follower(bytearray(content_of(log)[first:]))
    follower.advance_high_watermark(follower.log_end_offset)
    for each in (log, follower):
        assert each.last_stable_offset == 10
        read = each.read(0, max_bytes=2**20, up_to=10, include_aborted=True)
        aborted = [(t.first_offset, t.last_offset) for t in read.aborted_transactions]
        assert aborted == [(4, 8)]
    follower.close()


# -- followers --


def test_follower_takes_sequences_that_a_leader_would_refuse(tmp_path: Path) -> None:
    follower = open_log(tmp_path / "follower")
    for offset, sequence in enumerate((0, 3, 3, 1)):
        content = batch(producer_id=5, producer_epoch=0, base_sequence=sequence)
        assert follower.append_as_follower(placed(content, offset)).last_offset == offset
    follower.advance_high_watermark(4)
    with pytest.raises(OutOfOrderSequence, match="expected 2"):
        send(follower, 4)  # As a leader it goes on from what came last.
    assert send(follower, 2).base_offset == 4
    follower.close()


def test_follower_takes_epochs_that_go_back_from_its_leader(tmp_path: Path) -> None:
    follower = open_log(tmp_path / "follower")
    newer = marker(is_commit=False, producer_id=5, epoch=7, coordinator_epoch=5)
    older = marker(is_commit=False, producer_id=5, epoch=6, coordinator_epoch=4)
    follower.append_as_follower(placed(newer, 0))
    follower.append_as_follower(placed(older, 1))
    content = batch(producer_id=5, producer_epoch=6, base_sequence=0)
    assert follower.append_as_follower(placed(content, 2)).last_offset == 2
    follower.close()


def test_recovery_takes_coordinator_epochs_that_go_back(tmp_path: Path) -> None:
    """An expired producer's marker may come from an older coordinator. Source: KAFKA-9144."""
    clock = Clock()
    log = open_log(tmp_path / "log", clock)
    end_transaction(log, is_commit=False, producer_id=5, epoch=0, coordinator_epoch=5)
    clock.now_ms = NOW_MS + DAY_MS
    assert log.producers.expire() == 1
    end_transaction(log, is_commit=False, producer_id=5, epoch=0, coordinator_epoch=4)
    crashed = open_log(copy_of(tmp_path / "log", tmp_path / "crashed"), clock)
    assert (crashed.log_end_offset, crashed.producers.count) == (2, 1)
    end_transaction(crashed, is_commit=False, producer_id=5, epoch=0, coordinator_epoch=4)
    crashed.close()
    log.close()


def test_batch_that_was_compacted_empty_still_counts_for_its_producer(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", cleanup_policy=("compact",))
    content = batch(2, key=b"k", producer_id=5, producer_epoch=0, base_sequence=0)
    log.append_as_follower(placed(without_records(content), 23))
    log.append_as_follower(placed(batch(2, key=b"k"), 25))
    log.truncate_to(25)
    log.advance_high_watermark(25)
    with pytest.raises(OutOfOrderSequence, match="expected 2"):
        send(log, 3, key=b"k")
    assert send(log, 2, key=b"k").base_offset == 25
    log.close()


def test_coordinator_is_not_asked_for_sequences(log: LocalLog) -> None:
    for sequence in (4, 4, 1):
        content = batch(
            producer_id=5, producer_epoch=0, base_sequence=sequence, is_transactional=True
        )
        log.append_as_leader(content, leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    assert log.log_end_offset == 3
