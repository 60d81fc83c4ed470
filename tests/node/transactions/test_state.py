"""What a transactional id does on every event, as Kafka's tables have it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.metadata.coordination.transactions import TransactionRecord, TransactionState
from tidelog_core.model import TopicPartition
from tidelog_node.transactions import state
from tidelog_node.transactions.state import (
    EPOCH_GIVEN_MAX,
    EPOCH_MAX,
    Decision,
    InitRequest,
    ProducerIdAndEpoch,
)

NOW_MS = 10_000
FRESH_ID = 77
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NONE = ErrorCode.none
FENCED = ErrorCode.producer_fenced
INVALID = ErrorCode.invalid_txn_state
CONCURRENT = ErrorCode.concurrent_transactions
S = TransactionState


def record(what: TransactionState = S.EMPTY, **fields: Any) -> TransactionRecord:
    given: dict[str, Any] = {
        "shard": 3,
        "transactional_id": "x",
        "producer_id": 5,
        "producer_epoch": 4,
        "previous_producer_id": 5,
        "timeout_ms": 1000,
        "state": what,
        "updated_ms": 9_000,
        "started_ms": -1 if what is S.EMPTY else 8_500,
        "partitions": frozenset({T0}) if what in (S.ONGOING, *_PREPARED) else frozenset(),
    }
    return TransactionRecord(**{**given, **fields})


_PREPARED = (S.PREPARE_COMMIT, S.PREPARE_ABORT)


def init(
    before: TransactionRecord | None,
    expected: tuple[int, int] | None = None,
    *,
    fresh_id: int | None = None,
) -> Decision:
    producer = None if expected is None else ProducerIdAndEpoch(*expected)
    request = InitRequest(3, "x", 2000, producer)
    return state.init_producer_id(before, request, now_ms=NOW_MS, fresh_id=fresh_id)


def end(
    before: TransactionRecord | None,
    epoch: int,
    *,
    is_commit: bool = True,
    version: int = 2,
    producer_id: int = 5,
    fresh_id: int | None = None,
) -> Decision:
    return state.end_transaction(
        before,
        producer_id,
        epoch,
        is_commit=is_commit,
        client_version=version,
        now_ms=NOW_MS,
        fresh_id=fresh_id,
    )


def test_a_new_id_needs_a_producer_id_and_begins_with_epoch_0() -> None:
    assert init(None).needs_producer_id
    decision = init(None, fresh_id=FRESH_ID)
    assert (decision.error, decision.producer_id, decision.producer_epoch) == (NONE, FRESH_ID, 0)
    after = decision.after
    assert after is not None
    assert (after.state, after.timeout_ms, after.shard) == (S.EMPTY, 2000, 3)


@pytest.mark.parametrize("what", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_a_new_producer_gets_the_next_epoch(what: TransactionState) -> None:
    decision = init(record(what, last_producer_epoch=3))
    assert (decision.producer_id, decision.producer_epoch) == (5, 5)
    after = decision.after
    assert after is not None
    assert (after.state, after.last_producer_epoch, after.started_ms) == (S.EMPTY, -1, -1)


def test_a_producer_that_recovers_gets_the_next_epoch_and_may_ask_twice() -> None:
    first = init(record(), (5, 4))
    assert (first.error, first.producer_epoch) == (NONE, 5)
    again = init(first.after, (5, 4))
    assert (again.error, again.producer_epoch) == (NONE, 5)
    # Another producer came between.
    other = init(first.after)
    assert init(other.after, (5, 4)).error is FENCED
    assert init(record(), (6, 4)).error is FENCED
    assert init(record(), (5, 3)).error is FENCED


def test_epochs_that_are_used_up_make_a_new_producer_id() -> None:
    last = record(producer_epoch=EPOCH_GIVEN_MAX)
    assert init(last).needs_producer_id
    decision = init(last, fresh_id=FRESH_ID)
    assert (decision.producer_id, decision.producer_epoch) == (FRESH_ID, 0)
    # Its answer is lost, and the producer asks again with what it has.
    recovered = init(last, (5, EPOCH_GIVEN_MAX), fresh_id=FRESH_ID)
    again = init(recovered.after, (5, EPOCH_GIVEN_MAX))
    assert (again.error, again.producer_id, again.producer_epoch) == (NONE, FRESH_ID, 0)
    assert init(recovered.after, (5, 7)).error is FENCED


def test_a_new_producer_has_the_open_transaction_aborted_first() -> None:
    decision = init(record(S.ONGOING))
    assert decision.error is CONCURRENT
    after = decision.after
    assert after is not None
    assert (after.state, after.producer_epoch, after.partitions) == (
        S.PREPARE_ABORT,
        5,
        frozenset({T0}),
    )
    assert init(after) == Decision(CONCURRENT)
    done = state.complete(after, now_ms=NOW_MS)
    assert (done.state, done.partitions) == (S.COMPLETE_ABORT, frozenset())
    assert init(done).producer_epoch == 6


def test_the_last_epoch_of_all_is_left_for_fencing() -> None:
    after = init(record(S.ONGOING, producer_epoch=EPOCH_GIVEN_MAX)).after
    assert after is not None
    assert after.producer_epoch == EPOCH_MAX
    done = state.complete(after, now_ms=NOW_MS)
    assert init(done, fresh_id=FRESH_ID).producer_id == FRESH_ID


def add(before: TransactionRecord | None, *partitions: TopicPartition, **who: int) -> Decision:
    given = {"producer_id": 5, "producer_epoch": 4, **who}
    return state.add_partitions(
        before,
        given["producer_id"],
        given["producer_epoch"],
        partitions,
        client_version=2,
        now_ms=NOW_MS,
    )


@pytest.mark.parametrize("what", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_the_first_partition_opens_the_transaction(what: TransactionState) -> None:
    after = add(record(what), T0).after
    assert after is not None
    assert (after.state, after.started_ms, after.partitions) == (
        S.ONGOING,
        NOW_MS,
        frozenset({T0}),
    )


def test_more_partitions_join_the_open_transaction() -> None:
    after = add(record(S.ONGOING), T1).after
    assert after is not None
    assert (after.started_ms, after.partitions) == (8_500, frozenset({T0, T1}))
    assert add(after, T0, T1) == Decision()


@pytest.mark.parametrize("what", _PREPARED)
def test_everyone_waits_for_a_transaction_that_is_being_ended(what: TransactionState) -> None:
    """Also who would be refused after it: an id may be about to change with its end."""
    assert init(record(what), (6, 4)) == Decision(CONCURRENT)
    for producer_id, epoch in ((5, 4), (5, 3), (5, 5), (FRESH_ID, 0)):
        assert add(record(what), T0, producer_id=producer_id, producer_epoch=epoch) == Decision(
            CONCURRENT
        )
        for is_commit in (True, False):
            decision = end(record(what), epoch, is_commit=is_commit, producer_id=producer_id)
            assert decision == Decision(CONCURRENT)


@pytest.mark.parametrize("what", _PREPARED)
def test_nothing_is_verified_in_a_transaction_that_is_being_ended(what: TransactionState) -> None:
    verified = state.verify_partitions(record(what), 5, 4, [T0])
    assert verified == {T0: CONCURRENT}


def test_only_the_current_producer_adds_and_verifies() -> None:
    for before, who, code in (
        (None, {}, ErrorCode.invalid_producer_id_mapping),
        (record(S.ONGOING), {"producer_id": 6}, ErrorCode.invalid_producer_id_mapping),
        (record(S.ONGOING), {"producer_epoch": 3}, FENCED),
        (record(S.ONGOING), {"producer_epoch": 5}, FENCED),
    ):
        assert add(before, T0, **who) == Decision(code)
        given = {"producer_id": 5, "producer_epoch": 4, **who}
        verified = state.verify_partitions(before, *given.values(), [T0])  # type: ignore[arg-type]
        assert verified == {T0: code}
    verified = state.verify_partitions(record(S.ONGOING), 5, 4, [T0, T1])
    assert verified == {T0: NONE, T1: ErrorCode.transaction_abortable}


BUMP = "bump"
KIP_890 = {
    # state: abort again, abort, commit again, commit
    S.EMPTY: (FENCED, BUMP, FENCED, INVALID),
    S.COMPLETE_ABORT: (NONE, BUMP, INVALID, INVALID),
    S.COMPLETE_COMMIT: (INVALID, BUMP, NONE, INVALID),
    S.PREPARE_ABORT: (CONCURRENT, CONCURRENT, CONCURRENT, CONCURRENT),
    S.PREPARE_COMMIT: (CONCURRENT, CONCURRENT, CONCURRENT, CONCURRENT),
    S.ONGOING: (FENCED, BUMP, FENCED, BUMP),
}


@pytest.mark.parametrize("what", KIP_890)
def test_ends_of_transactions_with_an_epoch_each(what: TransactionState) -> None:
    """The table of KIP-890: «again» is the epoch before the record's."""
    requests = [(3, False), (4, False), (3, True), (4, True)]
    for (epoch, is_commit), expected in zip(requests, KIP_890[what], strict=True):
        decision = end(record(what), epoch, is_commit=is_commit)
        if expected != BUMP:
            assert decision.error is expected, (epoch, is_commit)
            assert decision.after is None
            if expected is NONE:
                assert (decision.producer_id, decision.producer_epoch) == (5, 4)
            continue
        assert (decision.error, decision.producer_id, decision.producer_epoch) == (NONE, 5, 5)
        after = decision.after
        assert after is not None
        assert after.state is (S.PREPARE_COMMIT if is_commit else S.PREPARE_ABORT)
        assert (after.producer_epoch, after.last_producer_epoch) == (5, 4)
        assert after.started_ms >= 0


PLAIN = {
    # state: abort, commit
    S.EMPTY: (INVALID, INVALID),
    S.COMPLETE_ABORT: (NONE, INVALID),
    S.COMPLETE_COMMIT: (INVALID, NONE),
    S.PREPARE_ABORT: (CONCURRENT, CONCURRENT),
    S.PREPARE_COMMIT: (CONCURRENT, CONCURRENT),
}


@pytest.mark.parametrize("what", PLAIN)
def test_ends_of_transactions_of_older_producers(what: TransactionState) -> None:
    for is_commit, expected in zip((False, True), PLAIN[what], strict=True):
        assert end(record(what), 4, is_commit=is_commit, version=0) == Decision(expected)
        assert end(record(what), 3, is_commit=is_commit, version=0) == Decision(FENCED)
    after = end(record(S.ONGOING), 4, version=0).after
    assert after is not None
    assert (after.state, after.producer_epoch) == (S.PREPARE_COMMIT, 4)


def test_only_producers_of_the_id_end_its_transactions() -> None:
    mapping = ErrorCode.invalid_producer_id_mapping
    for version in (0, 2):
        assert end(None, 4, version=version) == Decision(mapping)
        assert end(record(S.ONGOING), 4, producer_id=6, version=version) == Decision(mapping)


def test_an_end_that_uses_the_epochs_up_changes_the_producer_id() -> None:
    before = record(S.ONGOING, producer_epoch=EPOCH_GIVEN_MAX)
    assert end(before, EPOCH_GIVEN_MAX).needs_producer_id
    decision = end(before, EPOCH_GIVEN_MAX, fresh_id=FRESH_ID)
    assert (decision.producer_id, decision.producer_epoch) == (FRESH_ID, 0)
    prepared = decision.after
    assert prepared is not None
    # The markers carry the old id, in the epoch that nobody is given.
    assert (prepared.producer_id, prepared.producer_epoch) == (5, EPOCH_MAX)
    assert end(prepared, EPOCH_GIVEN_MAX) == Decision(CONCURRENT)
    # The producer goes on with what it was told, which the record has only once it is ended.
    assert end(prepared, 0, producer_id=FRESH_ID) == Decision(CONCURRENT)
    assert add(prepared, T0, producer_id=FRESH_ID, producer_epoch=0) == Decision(CONCURRENT)
    done = state.complete(prepared, now_ms=NOW_MS)
    assert (done.producer_id, done.producer_epoch, done.next_producer_id) == (FRESH_ID, 0, -1)
    again = end(done, EPOCH_GIVEN_MAX)
    assert (again.error, again.producer_id, again.producer_epoch) == (NONE, FRESH_ID, 0)
    assert end(done, EPOCH_GIVEN_MAX, is_commit=False).error is INVALID


def test_transactions_are_aborted_when_their_time_is_over_and_not_before() -> None:
    before = record(S.ONGOING, started_ms=NOW_MS - 1000)
    assert state.time_out(before, now_ms=NOW_MS) == Decision()
    after = state.time_out(before, now_ms=NOW_MS + 1).after
    assert after is not None
    assert (after.state, after.producer_epoch) == (S.PREPARE_ABORT, 5)
    for other in (S.EMPTY, *_PREPARED, S.COMPLETE_COMMIT):
        assert state.time_out(record(other, started_ms=0), now_ms=NOW_MS) == Decision()
    endless = dataclasses.replace(before, timeout_ms=2**31 - 1, started_ms=0)
    assert state.time_out(endless, now_ms=2**40) == Decision()


def test_ids_expire_when_nobody_has_used_them() -> None:
    for what in S:
        idle = record(what, updated_ms=NOW_MS - 500)
        is_over = state.is_expired(idle, now_ms=NOW_MS, expiration_ms=500)
        assert is_over is (what not in (S.ONGOING, *_PREPARED))
        assert not state.is_expired(idle, now_ms=NOW_MS - 1, expiration_ms=500)
