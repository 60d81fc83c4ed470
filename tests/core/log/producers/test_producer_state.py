"""Idempotent and transactional producers, by Kafka's rules."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequence
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.producers import producer_state
from tidelog_core.log.producers.producer_state import ProducerEntry, ProducerState
from tidelog_core.log.values import AppendOrigin, TransactionCoordinatorFenced
from tidelog_core.model import NO_OFFSET

from tests.support.batches import batch
from tests.support.clock import NOW_MS, Clock
from tests.support.log_building import (
    append,
    content_of,
    copy_of,
    end_transaction,
    open_log,
    send,
    transact,
)

DAY_MS = 86_400_000
SEQUENCE_MAX = 2**31 - 1


@pytest.fixture
def log(tmp_path: Path) -> Any:
    log = open_log(tmp_path / "log")
    yield log
    log.close()


def test_repeated_batch_gets_its_old_offsets_and_is_not_written(log: LocalLog) -> None:
    first = send(log, 0, count=3)
    send(log, 3)
    size_bytes, before = log.size_bytes, content_of(log)
    again = send(log, 0, count=3)
    assert (again.base_offset, again.last_offset) == (first.base_offset, first.last_offset)
    assert (again.is_duplicate, again.size_bytes) == (True, 0)
    assert (log.size_bytes, content_of(log)) == (size_bytes, before)


def test_last_five_batches_are_known_and_older_ones_are_out_of_order(log: LocalLog) -> None:
    for sequence in range(6):
        send(log, sequence)
    for sequence in range(1, 6):
        assert send(log, sequence).base_offset == sequence
    with pytest.raises(OutOfOrderSequence, match="expected 6"):
        send(log, 0)


def test_same_first_sequence_with_another_count_is_no_duplicate(log: LocalLog) -> None:
    send(log, 0, count=2)
    with pytest.raises(OutOfOrderSequence):
        send(log, 0, count=1)


def test_sequence_gap_is_refused_and_leaves_the_log_untouched(log: LocalLog) -> None:
    send(log, 0)
    before = content_of(log)
    with pytest.raises(OutOfOrderSequence, match="sent sequence 2"):
        send(log, 2)
    assert content_of(log) == before
    assert send(log, 1).base_offset == 1


def test_unknown_producer_may_start_with_any_sequence(log: LocalLog) -> None:
    assert send(log, 77).base_offset == 0
    assert send(log, 78).base_offset == 1


def test_sequences_wrap_to_zero(log: LocalLog) -> None:
    send(log, SEQUENCE_MAX - 1)
    send(log, SEQUENCE_MAX)
    assert send(log, 0).base_offset == 2
    assert send(log, SEQUENCE_MAX).is_duplicate


def test_batch_may_span_the_wrap(log: LocalLog) -> None:
    send(log, SEQUENCE_MAX - 1, count=4)
    assert send(log, SEQUENCE_MAX - 1, count=4).is_duplicate
    with pytest.raises(OutOfOrderSequence, match="expected 2"):
        send(log, 1)
    assert send(log, 2).base_offset == 4


def test_new_epoch_starts_at_zero_and_fences_the_old_one(log: LocalLog) -> None:
    send(log, 0)
    with pytest.raises(OutOfOrderSequence, match="expected 0"):
        send(log, 1, epoch=1)
    send(log, 0, epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        send(log, 1, epoch=0)
    with pytest.raises(InvalidProducerEpoch):
        send(log, 0, epoch=0)


def test_batches_of_one_append_are_checked_one_after_the_other(log: LocalLog) -> None:
    options: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0}
    good = batch(2, base_sequence=0, **options) + batch(1, base_sequence=2, **options)
    assert append(log, good).last_offset == 2
    bad = batch(1, base_sequence=3, **options) + batch(1, base_sequence=5, **options)
    with pytest.raises(OutOfOrderSequence):
        append(log, bad)
    assert log.log_end_offset == 3
    assert send(log, 3).base_offset == 3


def test_idle_producer_is_forgotten_unless_it_is_in_a_transaction(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path / "log", clock, message_timestamp_after_max_ms=10 * DAY_MS)
    send(log, 0)
    send(log, 0, producer_id=6, is_transactional=True)
    clock.now_ms += DAY_MS - 1
    assert log.producers.expire() == 0
    clock.now_ms += 1
    assert log.producers.expire() == 1
    assert log.producers.count == 1
    assert send(log, 55).base_offset == 2
    log.close()


EXPIRATION_MS = 100


def see(state: ProducerState, producer_id: int, now_ms: int, transaction: int = NO_OFFSET) -> None:
    draft = state.stage(AppendOrigin.REPLICATION, now_ms=now_ms)
    draft.entries[producer_id] = ProducerEntry(
        last_seen_ms=now_ms, transaction_first_offset=transaction
    )
    state.commit(draft, end_offset=state.end_offset + 1)


@pytest.mark.parametrize("visits_max", [None, 7])
@pytest.mark.parametrize("seed", range(5))
def test_exactly_the_idle_producers_are_forgotten_in_any_order_of_writes(
    seed: int, visits_max: int | None
) -> None:
    chance, state = random.Random(seed), ProducerState(expiration_ms=EXPIRATION_MS)
    known: dict[int, tuple[int, int]] = {}
    for number in range(40):  # of a snapshot
        known[number] = (-number, NO_OFFSET)
        state.load(number, ProducerEntry(last_seen_ms=-number))
    for now_ms in range(0, 2_000, 5):
        for _ in range(chance.randrange(4)):
            producer_id = chance.randrange(80)
            transaction = 0 if chance.random() < 0.2 else NO_OFFSET
            known[producer_id] = (now_ms, transaction)
            see(state, producer_id, now_ms, transaction)
        idle = {
            producer_id
            for producer_id, (seen_ms, transaction) in known.items()
            if now_ms - seen_ms >= EXPIRATION_MS and transaction == NO_OFFSET
        }
        forgotten, calls = 0, 0
        assert not idle or (state.next_expiry_ms is not None and state.next_expiry_ms <= now_ms)
        while state.next_expiry_ms is not None and state.next_expiry_ms <= now_ms:
            forgotten += state.expire(now_ms, visits_max=visits_max)
            calls += 1
            assert calls <= 100
        assert forgotten == len(idle)
        known = {one: last for one, last in known.items() if one not in idle}
        assert set(state.producer_ids()) == known.keys()


def test_a_call_looks_at_a_part_of_the_producers_that_are_due() -> None:
    state = ProducerState(expiration_ms=EXPIRATION_MS)
    for producer_id in range(5_000):
        state.load(producer_id, ProducerEntry(last_seen_ms=0))
    for left in range(4_000, -1, -1_000):
        assert state.next_expiry_ms == EXPIRATION_MS
        assert state.expire(EXPIRATION_MS, visits_max=1_000) == 1_000
        assert len(state) == left
    assert state.next_expiry_ms is None


def test_producers_that_go_on_are_looked_at_once_in_their_time() -> None:
    """Not once for each append, nor at each look."""
    state = ProducerState(expiration_ms=EXPIRATION_MS)
    for producer_id in range(1_000):
        see(state, producer_id, 0)
    for producer_id in range(1_000):
        see(state, producer_id, EXPIRATION_MS - 1)
    assert state.expire(EXPIRATION_MS, visits_max=600) == 0
    assert state.next_expiry_ms == EXPIRATION_MS
    assert state.expire(EXPIRATION_MS, visits_max=400) == 0
    assert state.next_expiry_ms == 2 * EXPIRATION_MS - 1
    assert len(state) == 1_000


@pytest.mark.parametrize("is_clean", [True, False])
def test_all_five_batches_are_known_after_a_restart(tmp_path: Path, is_clean: bool) -> None:
    log = open_log(tmp_path / "log", segment_bytes=200)
    for sequence in range(7):
        send(log, sequence)
    crashed = copy_of(tmp_path / "log", tmp_path / "crashed")
    log.close()
    log = open_log(tmp_path / "log" if is_clean else crashed, segment_bytes=200)
    for sequence in range(2, 7):
        assert send(log, sequence).base_offset == sequence
    with pytest.raises(OutOfOrderSequence):
        send(log, 1)
    assert send(log, 7).base_offset == 7
    log.close()


def test_truncation_takes_the_producers_back(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", segment_bytes=200)
    for sequence in range(7):
        send(log, sequence)
    for end in (5, 4, 1):
        log.truncate_to(end)
        assert send(log, end - 1).is_duplicate
        assert send(log, end).base_offset == end
    log.truncate_to(0)
    assert log.producers.count == 0
    log.close()


def test_last_stable_offset_waits_for_the_oldest_open_transaction(log: LocalLog) -> None:
    send(log, 0)
    assert log.last_stable_offset == 1
    transact(log, 10)
    transact(log, 11)
    transact(log, 10, 1)
    assert log.last_stable_offset == 1
    assert log.producers.has_ongoing_transaction(10)
    end_transaction(log, is_commit=True, producer_id=10, epoch=0)
    assert not log.producers.has_ongoing_transaction(10)
    assert log.last_stable_offset == 2
    end_transaction(log, is_commit=False, producer_id=11, epoch=0)
    assert log.last_stable_offset == log.log_end_offset == 6


@pytest.mark.parametrize("seed", range(5))
def test_last_stable_offset_is_that_of_the_oldest_in_any_order_of_ends(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    log = open_log(tmp_path / "log")
    firsts: dict[int, int] = {}  # by producer
    sequences: Counter[int] = Counter()
    for _ in range(150):
        producer_id = rng.randrange(12)
        if producer_id in firsts:
            is_commit = rng.random() < 0.5
            end_transaction(log, is_commit=is_commit, producer_id=producer_id, epoch=0)
            del firsts[producer_id]
        else:
            firsts[producer_id] = log.log_end_offset
            transact(log, producer_id, sequences[producer_id])
            sequences[producer_id] += 1
        if rng.random() < 0.05:  # snapshots have them in another order
            log.close()
            log = open_log(tmp_path / "log")
            log.advance_high_watermark(log.log_end_offset)
        assert log.last_stable_offset == min(firsts.values(), default=log.log_end_offset)
    log.close()


def test_thousands_of_open_transactions_make_no_append_dearer(log: LocalLog) -> None:
    """Every append asks for the last stable offset: CPU of that beside one, and beside 3,000."""

    def cost() -> float:
        started = time.thread_time()
        for _ in range(1_000):
            assert log.last_stable_offset == 0
        return time.thread_time() - started

    transact(log, 0)
    beside_one = min(cost() for _ in range(3))
    for producer_id in range(1, 3_000):
        transact(log, producer_id)
    assert min(cost() for _ in range(3)) < 5 * beside_one


def test_completed_transaction_is_stable_only_below_the_high_watermark(log: LocalLog) -> None:
    log.append_as_leader(
        batch(producer_id=10, producer_epoch=0, base_sequence=0, is_transactional=True),
        leader_epoch=0,
    )
    log.advance_high_watermark(1)
    assert log.last_stable_offset == 0
    from tidelog_core.log.values import AppendOrigin

    from tests.support.log_building import marker

    content = marker(is_commit=True, producer_id=10, epoch=0)
    log.append_as_leader(content, leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    assert log.last_stable_offset == 0
    log.advance_high_watermark(2)
    assert log.last_stable_offset == 2


def test_reader_is_told_the_aborted_transactions_of_its_range(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", segment_bytes=250)
    transact(log, 10)  # 0
    transact(log, 11)  # 1
    transact(log, 12)  # 2
    end_transaction(log, is_commit=False, producer_id=11, epoch=0)  # 3
    end_transaction(log, is_commit=True, producer_id=12, epoch=0)  # 4
    transact(log, 11, 1)  # 5
    end_transaction(log, is_commit=False, producer_id=11, epoch=0)  # 6
    end_transaction(log, is_commit=False, producer_id=10, epoch=0)  # 7
    send(log, 0)  # 8
    assert len(log.sealed_segments()) >= 2

    def aborted(offset: int, up_to: int) -> set[tuple[int, int, int]]:
        read = log.read(offset, max_bytes=2**20, up_to=up_to, include_aborted=True)
        return {(t.producer_id, t.first_offset, t.last_offset) for t in read.aborted_transactions}

    for reopened in (False, True):
        if reopened:
            log.close()
            log = open_log(tmp_path / "log", segment_bytes=250)
            log.advance_high_watermark(log.log_end_offset)
        assert aborted(0, 1) >= {(10, 0, 7)}
        assert aborted(0, 1) <= {(10, 0, 7), (11, 1, 3)}
        assert {(10, 0, 7), (11, 1, 3)} <= aborted(0, 3)
        assert {(11, 5, 6), (10, 0, 7)} <= aborted(5, 8)
        assert (11, 1, 3) not in aborted(5, 8)
        assert aborted(8, 9) == set()
        assert log.last_stable_offset == 9
    log.close()


def test_transaction_left_open_survives_a_crash_and_a_roll(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", segment_bytes=200)
    send(log, 0)
    transact(log, 10)
    for sequence in range(1, 6):
        send(log, sequence)
    crashed = copy_of(tmp_path / "log", tmp_path / "crashed")
    log.close()
    for directory in (tmp_path / "log", crashed):
        reopened = open_log(directory, segment_bytes=200)
        reopened.advance_high_watermark(7)
        assert reopened.last_stable_offset == 1
        end_transaction(reopened, is_commit=False, producer_id=10, epoch=0)
        assert reopened.last_stable_offset == 8
        read = reopened.read(1, max_bytes=10, up_to=8, include_aborted=True)
        assert [(t.producer_id, t.first_offset) for t in read.aborted_transactions] == [(10, 1)]
        reopened.close()


def test_plain_batch_within_a_transaction_is_refused(log: LocalLog) -> None:
    transact(log, 10)
    with pytest.raises(InvalidTxnState):
        send(log, 1, producer_id=10)


def test_marker_of_a_replaced_coordinator_or_producer_is_refused(log: LocalLog) -> None:
    transact(log, 10)
    end_transaction(log, is_commit=True, producer_id=10, epoch=1, coordinator_epoch=3)
    with pytest.raises(TransactionCoordinatorFenced):
        end_transaction(log, is_commit=True, producer_id=10, epoch=1, coordinator_epoch=2)
    with pytest.raises(InvalidProducerEpoch):
        end_transaction(log, is_commit=True, producer_id=10, epoch=0, coordinator_epoch=3)
    with pytest.raises(InvalidProducerEpoch):
        transact(log, 10, 1)
    assert send(log, 0, producer_id=10, epoch=1, is_transactional=True).base_offset == 2


def test_follower_takes_what_the_leader_took(tmp_path: Path, log: LocalLog) -> None:
    for sequence in (7, 8, 9):
        send(log, sequence)
    transact(log, 10)
    end_transaction(log, is_commit=False, producer_id=10, epoch=0)
    follower = open_log(tmp_path / "follower")
    follower.append_as_follower(bytearray(content_of(log)))
    assert content_of(follower) == content_of(log)
    follower.advance_high_watermark(log.high_watermark)
    assert follower.last_stable_offset == log.last_stable_offset
    assert send(follower, 8).is_duplicate
    assert send(follower, 10).base_offset == 5
    follower.close()


def test_duplicate_on_a_log_append_time_topic_has_its_old_time(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path / "log", clock, message_timestamp_type="LogAppendTime")
    assert send(log, 0).log_append_time_ms == NOW_MS
    clock.now_ms += 50
    assert send(log, 0).log_append_time_ms == NOW_MS
    log.close()


def write(log: LocalLog, producer_id: int, sequence: int) -> None:
    """Append a batch; the high watermark stays."""
    one = batch(1, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    log.append_as_leader(one, leader_epoch=0)


def uncommitted_of(log: LocalLog, *, count_max: int = 100) -> list[int]:
    found = log.producers.state.uncommitted(log.high_watermark, count_max=count_max)
    return [producer_id for producer_id, _ in found]


def test_those_with_uncommitted_batches_are_found_in_the_order_of_their_last_ones(
    log: LocalLog,
) -> None:
    for producer_id in range(50):
        send(log, 0, producer_id=producer_id)
    log.advance_high_watermark(log.log_end_offset)
    assert uncommitted_of(log) == []
    for producer_id, sequence in ((3, 1), (70, 0), (9, 1), (3, 2)):
        write(log, producer_id, sequence)
    assert uncommitted_of(log) == [70, 9, 3]
    assert uncommitted_of(log, count_max=2) == [9, 3]
    log.advance_high_watermark(52)
    assert uncommitted_of(log) == [9, 3]
    log.truncate_to(53)
    assert uncommitted_of(log) == [9]
    log.advance_high_watermark(log.log_end_offset)
    assert uncommitted_of(log) == []
    write(log, 3, 2)
    assert uncommitted_of(log) == [3]


def test_uncommitted_appends_take_no_more_memory_than_their_limit(
    log: LocalLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower may be away for long, and producers with acks=1 write on."""
    monkeypatch.setattr(producer_state, "UNCOMMITTED_MAX", 3)
    log.truncate_fully_and_start_at(0)
    for producer_id in range(5):
        write(log, producer_id, 0)
    assert uncommitted_of(log) == [2, 3, 4]


def test_a_producer_with_many_uncommitted_appends_is_noted_once(log: LocalLog) -> None:
    """After a crash each log is read from its last snapshot on, and its high watermark is low."""
    for producer_id, sequence in ((3, 0), (4, 0), *((3, sequence) for sequence in range(1, 20))):
        write(log, producer_id, sequence)
    assert uncommitted_of(log) == [4, 3]
    assert len(log.producers.state._written) == 2
    log.advance_high_watermark(2)
    assert uncommitted_of(log) == [3]
