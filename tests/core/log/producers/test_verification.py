"""A transactional batch that comes late opens no transaction. Source: KIP-890."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.errors import InvalidTxnState, OutOfOrderSequence
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.producers.verification import VERIFICATIONS_MAX, VerificationGuard
from tidelog_core.records.batch import BatchHeader, parse_header

from tests.support.batches import batch
from tests.support.log_building import append, end_transaction, open_log

PRODUCER = 5


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LocalLog]:
    log = open_log(tmp_path / "log")
    yield log
    log.close()


def data(sequence: int = 0, *, epoch: int = 0, producer_id: int = PRODUCER) -> bytearray:
    return batch(
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
    )


def header(sequence: int = 0, **fields: Any) -> BatchHeader:
    return parse_header(data(sequence, **fields))


def begin(
    log: LocalLog, sequence: int = 0, *, bumps_epoch: bool = False, **fields: Any
) -> VerificationGuard | None:
    return log.producers.begin_verification(header(sequence, **fields), bumps_epoch=bumps_epoch)


def test_a_batch_needs_the_guard_that_was_taken_for_it(log: LocalLog) -> None:
    with pytest.raises(InvalidTxnState):
        log.producers.require_verified(header(), None)
    guard = begin(log)
    assert guard is not None
    assert begin(log) is guard
    for wrong in (None, VerificationGuard()):
        with pytest.raises(InvalidTxnState):
            log.producers.require_verified(header(), wrong)
    log.producers.require_verified(header(), guard)


def test_batches_of_an_open_transaction_need_none(log: LocalLog) -> None:
    guard = begin(log)
    append(log, data())
    assert begin(log, 1) is None
    log.producers.require_verified(header(1), None)
    # The guard has done its work: another transaction takes another.
    end_transaction(log, producer_id=PRODUCER, epoch=0, is_commit=True)
    assert begin(log, 1) is not guard


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_transaction_that_ends_meanwhile_makes_guards_worthless(
    log: LocalLog, is_commit: bool
) -> None:
    guard = begin(log)
    end_transaction(log, producer_id=PRODUCER, epoch=0, is_commit=is_commit)
    with pytest.raises(InvalidTxnState):
        log.producers.require_verified(header(), guard)


def test_a_marker_that_a_follower_copies_makes_guards_worthless_too(
    log: LocalLog, tmp_path: Path
) -> None:
    """The node may have lost and regained the leadership since it asked."""
    leader = open_log(tmp_path / "leader")
    guard = begin(log)
    before = leader.log_end_offset
    end_transaction(leader, producer_id=PRODUCER, epoch=0, is_commit=True)
    read = leader.read(before, max_bytes=1000, up_to=leader.log_end_offset)
    assert read.slice is not None
    log.append_as_follower(bytearray(read.slice.file.path.read_bytes()))
    leader.close()
    with pytest.raises(InvalidTxnState):
        log.producers.require_verified(header(), guard)


def test_a_repeated_batch_of_a_transaction_that_has_ended_is_let_through(log: LocalLog) -> None:
    first = data()
    repeated = bytearray(first)
    append(log, first)
    end_transaction(log, producer_id=PRODUCER, epoch=0, is_commit=True)
    log.producers.require_verified(parse_header(repeated), None)
    assert append(log, repeated).is_duplicate


def test_batches_that_overtake_wait_for_those_before_them(log: LocalLog) -> None:
    guard = begin(log, 1)
    assert begin(log, 0) is guard
    with pytest.raises(OutOfOrderSequence):
        log.producers.require_verified(header(1), guard)
    log.producers.require_verified(header(0), guard)


def test_a_producer_that_counts_from_0_in_every_transaction_begins_with_0(log: LocalLog) -> None:
    guard = begin(log, 3, bumps_epoch=True)
    with pytest.raises(OutOfOrderSequence):
        log.producers.require_verified(header(3), guard)
    # What is known of an older one may have expired, so that it may begin anywhere.
    older = begin(log, 3, producer_id=6)
    log.producers.require_verified(header(3, producer_id=6), older)


def test_a_newer_epoch_makes_guards_worthless(log: LocalLog) -> None:
    old = begin(log)
    new = begin(log, epoch=1)
    assert new is not old
    with pytest.raises(InvalidTxnState):
        log.producers.require_verified(header(), old)
    late = begin(log)
    with pytest.raises(InvalidTxnState):
        log.producers.require_verified(header(), late)
    log.producers.require_verified(header(epoch=1), new)


def test_an_open_transaction_of_another_epoch_is_not_the_batchs_own(log: LocalLog) -> None:
    append(log, data())
    assert begin(log, epoch=1) is not None
    with pytest.raises(InvalidTxnState):
        log.producers.require_verified(header(epoch=1), None)


def test_the_oldest_guards_give_way_when_there_are_too_many(log: LocalLog) -> None:
    first = begin(log)
    for producer_id in range(100, 100 + VERIFICATIONS_MAX):
        last = begin(log, producer_id=producer_id)
    with pytest.raises(InvalidTxnState):
        log.producers.require_verified(header(), first)
    log.producers.require_verified(header(producer_id=producer_id), last)
