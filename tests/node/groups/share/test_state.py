"""A share partition's state: single cases, and long random lives against one row a record."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.errors import InvalidRecordState, InvalidRequest
from tidelog_core.metadata.coordination.share_partitions import RecordState, StateBatch
from tidelog_node.groups.share.state import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    AcquireLimits,
    LogBatch,
    SharePartitionState,
)
from tidelog_node.wire.share_fetch import Acknowledgement, Acquired

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
ACKNOWLEDGED, ARCHIVED = RecordState.ACKNOWLEDGED, RecordState.ARCHIVED
PLENTY = AcquireLimits(records_max=500, batch_size=500, in_flight_max=2000)
BATCHES = [LogBatch(0, 4), LogBatch(5, 9), LogBatch(10, 14)]


def fresh(limit: int = 5) -> SharePartitionState:
    return SharePartitionState(0, delivery_count_limit=limit)


def acquire(
    state: SharePartitionState,
    member: str = "a",
    limits: AcquireLimits = PLENTY,
    batches: list[LogBatch] = BATCHES,
    **more: list[LogBatch],
) -> list[Acquired]:
    offset = state.next_fetch_offset
    return state.acquire(member, batches, limits, read_offset=offset, deadline_ms=1000, **more)


def say(state: SharePartitionState, first: int, last: int, *types: int, member: str = "a") -> None:
    state.acknowledge(member, [Acknowledgement(first, last, bytes(types))], deadline_ms=5000)


def test_an_acquisition_ends_with_the_batch_that_reaches_its_limit() -> None:
    few = dataclasses.replace(PLENTY, records_max=6)
    state = fresh()
    assert acquire(state, limits=few) == [Acquired(0, 9, 1)]
    assert (state.start_offset, state.end_offset, state.next_fetch_offset) == (0, 10, 10)
    exact = dataclasses.replace(few, is_exact=True, records_max=2)
    assert acquire(state, limits=exact) == [Acquired(10, 11, 1)]
    assert acquire(state, "b", limits=exact) == [Acquired(12, 13, 1)]
    assert acquire(state) == [Acquired(14, 14, 1)]


def test_acquired_records_are_answered_in_ranges_of_whole_batches() -> None:
    small = dataclasses.replace(PLENTY, batch_size=3)
    assert acquire(fresh(), limits=small) == [
        Acquired(0, 4, 1),
        Acquired(5, 9, 1),
        Acquired(10, 14, 1),
    ]
    middle = dataclasses.replace(PLENTY, batch_size=6)
    assert acquire(fresh(), limits=middle) == [Acquired(0, 9, 1), Acquired(10, 14, 1)]


def test_no_new_records_are_delivered_while_too_many_are_in_flight() -> None:
    state, few = fresh(), dataclasses.replace(PLENTY, in_flight_max=7)
    assert acquire(state, limits=few) == [Acquired(0, 9, 1)]
    assert not state.can_acquire(7)
    assert acquire(state, limits=few) == []
    say(state, 0, 4, RELEASE)
    assert state.can_acquire(7)  # what came back is no new record
    assert acquire(state, "b", limits=few) == [Acquired(0, 4, 2)]
    say(state, 0, 4, ACCEPT, member="b")
    assert state.can_acquire(7)
    assert acquire(state, limits=few) == [Acquired(10, 14, 1)]


def test_each_record_can_be_acknowledged_in_its_own_way() -> None:
    state = fresh()
    acquire(state)
    say(state, 0, 4, ACCEPT, RELEASE, REJECT, GAP, RELEASE)
    assert state.start_offset == 1
    assert state.stored() == (
        1,
        (
            StateBatch(1, 1, AVAILABLE, 1),
            StateBatch(2, 3, ARCHIVED, 1),
            StateBatch(4, 4, AVAILABLE, 1),
        ),
    )
    assert acquire(state, "b") == [Acquired(1, 1, 2), Acquired(4, 4, 2)]


def test_what_one_acknowledgement_gets_wrong_undoes_its_neighbours() -> None:
    state = fresh()
    acquire(state, limits=dataclasses.replace(PLENTY, records_max=5))
    acquire(state, "b")
    before = state.stored()
    for wrong, error in (
        (Acknowledgement(3, 6, bytes([ACCEPT])), InvalidRecordState),  # some are b's
        (Acknowledgement(10, 15, bytes([ACCEPT])), InvalidRequest),  # nobody has 15
        (Acknowledgement(3, 2, bytes([ACCEPT])), InvalidRequest),
        (Acknowledgement(3, 4, b""), InvalidRequest),
        (Acknowledgement(2, 4, bytes([ACCEPT, ACCEPT])), InvalidRequest),
        (Acknowledgement(2, 4, bytes([RENEW])), InvalidRequest),
        (Acknowledgement(2, 4, bytes([5])), InvalidRequest),
        (Acknowledgement(0, 4, bytes([ACCEPT])), InvalidRequest),  # 0 and 1 twice
        (Acknowledgement(1, 4, bytes([ACCEPT])), InvalidRecordState),  # 1 twice
    ):
        with pytest.raises(error):
            state.acknowledge("a", [Acknowledgement(0, 1, bytes([ACCEPT])), wrong], deadline_ms=0)
        assert state.stored() == before
    say(state, 0, 4, ACCEPT)
    with pytest.raises(InvalidRecordState):
        say(state, 5, 9, ACCEPT)  # of b


def test_an_acknowledged_record_cannot_be_acknowledged_again() -> None:
    state = fresh()
    acquire(state)
    say(state, 5, 9, ACCEPT)
    with pytest.raises(InvalidRecordState):
        say(state, 9, 9, RELEASE)
    say(state, 0, 4, ACCEPT)
    say(state, 0, 4, RELEASE)  # before the start: it is too late, and no harm
    assert state.start_offset == 10


def test_acquisitions_end_at_their_deadline_unless_renewed() -> None:
    state = fresh()
    acquire(state)
    assert state.next_deadline_ms == 1000
    state.acknowledge(
        "a", [Acknowledgement(5, 9, bytes([RENEW]))], deadline_ms=2000, may_renew=True
    )
    state.expire(999)
    assert state.next_fetch_offset == 15
    state.expire(1000)
    assert acquire(state, "b", limits=dataclasses.replace(PLENTY, records_max=5)) == [
        Acquired(0, 4, 2)
    ]
    say(state, 5, 9, ACCEPT)
    with pytest.raises(InvalidRecordState):
        say(state, 10, 14, ACCEPT)


def test_a_record_delivered_too_often_is_archived() -> None:
    state = fresh(limit=2)
    acquire(state)
    say(state, 0, 14, RELEASE)
    assert acquire(state, "b") == [Acquired(0, 14, 2)]
    state.expire(1000)
    assert (state.start_offset, state.end_offset) == (15, 15)


def test_what_a_member_gives_back_as_it_goes_counts_as_never_delivered() -> None:
    state = fresh(limit=2)
    acquire(state)
    say(state, 0, 14, RELEASE)
    for _ in range(3):
        assert acquire(state) == [Acquired(0, 14, 2)]
        state.release("a")
    assert state.stored() == (0, (StateBatch(0, 14, AVAILABLE, 1),))


def test_retention_moves_the_start_past_what_is_acquired() -> None:
    state = fresh()
    acquire(state)
    say(state, 12, 12, RELEASE)
    state.advance_log_start(7)
    assert (state.start_offset, state.next_fetch_offset) == (7, 12)
    say(state, 5, 9, ACCEPT)
    assert state.start_offset == 10
    state.advance_log_start(100)
    assert (state.start_offset, state.end_offset, state.next_deadline_ms) == (100, 100, None)


def test_offsets_that_compaction_has_removed_are_passed_over() -> None:
    state = fresh()
    holed = [LogBatch(3, 4), LogBatch(8, 9)]
    assert acquire(state, batches=holed) == [Acquired(3, 9, 1)]
    assert state.start_offset == 3
    say(state, 3, 9, RELEASE)
    # Meanwhile compaction has taken the first of them too.
    assert acquire(state, batches=[LogBatch(8, 9)]) == [Acquired(8, 9, 2)]
    assert state.start_offset == 8


def test_a_hole_in_the_log_costs_no_locks() -> None:
    state, few = fresh(), dataclasses.replace(PLENTY, in_flight_max=6)
    assert acquire(state, limits=few, batches=[LogBatch(0, 4)]) == [Acquired(0, 4, 1)]
    assert acquire(state, limits=few, batches=[LogBatch(5000, 5004)]) == [Acquired(5000, 5004, 1)]
    assert not state.can_acquire(6)


def test_what_came_back_during_a_read_of_later_records_is_kept() -> None:
    state = fresh()
    acquire(state, limits=dataclasses.replace(PLENTY, records_max=10))
    later = [LogBatch(12, 14)]  # read from offset 10 on
    state.release("a")
    given = state.acquire("b", later, PLENTY, read_offset=10, deadline_ms=1000)
    assert given == [Acquired(12, 14, 1)]
    assert (state.start_offset, state.next_fetch_offset) == (0, 0)
    assert acquire(state, limits=dataclasses.replace(PLENTY, records_max=10)) == [Acquired(0, 9, 1)]


def test_records_of_aborted_transactions_are_archived_unseen() -> None:
    state = fresh()
    assert acquire(state, aborted=[LogBatch(5, 9)]) == [Acquired(0, 4, 1), Acquired(10, 14, 1)]
    say(state, 0, 4, ACCEPT)
    assert state.start_offset == 10
    hidden = fresh()
    assert acquire(hidden, aborted=BATCHES) == []
    assert hidden.start_offset == 15


def test_a_log_that_has_lost_its_end_is_delivered_again_from_there() -> None:
    state = SharePartitionState(
        2,
        [StateBatch(4, 5, ACKNOWLEDGED, 1), StateBatch(6, 9, ARCHIVED, 1)],
        delivery_count_limit=5,
    )
    state.cut_at(5)
    assert (state.start_offset, state.end_offset) == (2, 5)
    state.cut_at(1)
    assert (state.start_offset, state.end_offset) == (1, 1)


@dataclass
class Row:
    """What a simple bookkeeper knows of one record."""

    state: RecordState = AVAILABLE
    count: int = 0
    member: str = ""
    deadline: int = 0


class Life:
    """A share partition's life by a seed. The bookkeeper has one row for every record of the log."""

    MEMBERS = ("a", "b", "c")
    LIMIT = 3
    LOCK_MS = 30

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0
        self.log: list[LogBatch] = []
        self.log_start = self.log_end = self.random.randrange(6)
        self.aborted: set[LogBatch] = set()
        self.rows: dict[int, Row] = {}
        self.accepted: set[int] = set()
        self.state = SharePartitionState(self.log_start, delivery_count_limit=self.LIMIT)
        self.store()

    def step(self) -> None:
        [event] = self.random.choices(
            [
                self.produce,
                self.acquire,
                self.acknowledge,
                self.release,
                self.pass_time,
                self.delete_records,
                self.compact,
                self.store,
                self.begin_again_from_what_is_stored,
            ],
            [6, 16, 16, 2, 4, 1, 1, 3, 2],
        )
        event()
        self.check()

    def produce(self) -> None:
        if len(self.log) > 8:
            return
        self.log_end += self.random.choice([0, 0, 1, 3])  # what compaction leaves, for example
        for size in self.random.choices(range(1, 6), k=3):
            batch = LogBatch(self.log_end, self.log_end + size - 1)
            self.log.append(batch)
            if self.random.random() < 0.15:
                self.aborted.add(batch)  # which nobody is ever to see
            else:
                for offset in range(self.log_end, self.log_end + size):
                    self.rows[offset] = Row()
            self.log_end += size

    def acquire(self) -> None:
        offset, random = self.state.next_fetch_offset, self.random
        batches = [batch for batch in self.log if batch.last_offset >= offset]
        batches = batches[: random.randint(1, 4)]
        limits = AcquireLimits(
            records_max=random.randint(1, 12),
            batch_size=random.randint(1, 8),
            in_flight_max=random.choice([4, 12, 1000]),
            is_exact=random.random() < 0.3,
        )
        if random.random() < 0.2:
            # Between the read and the acquisition, as a read from the tier takes its time.
            random.choice([self.release, self.pass_time, self.acknowledge])()
        member, deadline = random.choice(self.MEMBERS), self.now + self.LOCK_MS
        may = self.state.can_acquire(limits.in_flight_max)
        given = self.state.acquire(
            member,
            batches,
            limits,
            read_offset=offset,
            deadline_ms=deadline,
            aborted=[batch for batch in batches if batch in self.aborted],
        )
        in_reach = [
            row
            for batch in batches
            for o in range(max(batch.base_offset, offset), batch.last_offset + 1)
            if (row := self.rows.get(o)) is not None and row.state is AVAILABLE
        ]
        if may and any(row.count > 0 for row in in_reach):
            assert given  # What has come back costs no further lock.
        count, before = 0, -1
        for some in given:
            assert before < some.first_offset <= some.last_offset
            before = some.last_offset
            for hidden in self.aborted:
                assert hidden.last_offset < some.first_offset or (
                    hidden.base_offset > some.last_offset
                )
            for offset in range(some.first_offset, some.last_offset + 1):
                row = self.rows.get(offset)
                if row is None:
                    continue  # a hole within what was given
                count += 1
                assert row.state is AVAILABLE
                assert some.delivery_count == row.count + 1
                assert row.count < self.LIMIT
                self.rows[offset] = Row(ACQUIRED, row.count + 1, member, deadline)
        # Over by less than one batch, and by nothing where that was asked for.
        assert count <= limits.records_max + (0 if limits.is_exact else 4)

    def acknowledge(self) -> None:
        acquired = sorted(o for o, row in self.rows.items() if row.state is ACQUIRED)
        if not acquired:
            return
        random = self.random
        first = random.choice(acquired)
        member = self.rows[first].member
        if random.random() < 0.2:
            member = random.choice(self.MEMBERS)
        count = random.randint(1, 6)
        last = first + count - 1
        kinds = random.choices([ACCEPT, RELEASE, REJECT], k=random.choice([1, count]))
        known = {o: self.rows[o] for o in range(first, last + 1) if o in self.rows}
        is_right = all(
            row.state is ACQUIRED and row.member == member
            for offset, row in known.items()
            if offset >= self.state.start_offset
        )
        try:
            self.state.acknowledge(
                member, [Acknowledgement(first, last, bytes(kinds))], deadline_ms=0
            )
        except (InvalidRecordState, InvalidRequest):
            # A hole may be nobody's, or lie past what was ever delivered.
            assert not is_right or len(known) < count
            return
        assert is_right
        for offset, row in known.items():
            if row.state is not ACQUIRED:
                continue
            kind = kinds[0 if len(kinds) == 1 else offset - first]
            if kind == ACCEPT:
                assert offset not in self.accepted
                self.accepted.add(offset)
                self.rows[offset] = Row(ACKNOWLEDGED)
            elif kind == REJECT:
                self.rows[offset] = Row(ARCHIVED)
            else:
                self.come_back(offset)

    def come_back(self, offset: int) -> None:
        count = self.rows[offset].count
        self.rows[offset] = Row(ARCHIVED if count >= self.LIMIT else AVAILABLE, count)

    def release(self) -> None:
        member = self.random.choice(self.MEMBERS)
        self.state.release(member)
        for offset, row in list(self.rows.items()):
            if row.state is ACQUIRED and row.member == member:
                self.rows[offset] = Row(AVAILABLE, row.count - 1)

    def pass_time(self) -> None:
        self.now += self.random.choice([1, 10, 30])
        self.state.expire(self.now)
        for offset, row in list(self.rows.items()):
            if row.state is ACQUIRED and row.deadline <= self.now:
                self.come_back(offset)

    def delete_records(self) -> None:
        self.log_start = min(self.log_start + self.random.randint(1, 8), self.log_end)
        self.log = [batch for batch in self.log if batch.last_offset >= self.log_start]
        self.rows = {o: r for o, r in self.rows.items() if o >= self.log_start}
        self.state.advance_log_start(self.log_start)

    def compact(self) -> None:
        if len(self.log) < 4:
            return
        gone = self.log.pop(self.random.randrange(len(self.log)))
        self.aborted.discard(gone)
        for offset in range(gone.base_offset, gone.last_offset + 1):
            self.rows.pop(offset, None)

    def store(self) -> None:
        self.stored, self.stored_accepted = self.state.stored(), set(self.accepted)
        self.stored_rows = {
            offset: Row(AVAILABLE, row.count - 1) if row.state is ACQUIRED else row
            for offset, row in self.rows.items()
        }

    def begin_again_from_what_is_stored(self) -> None:
        start, batches = self.stored
        self.state = SharePartitionState(start, batches, delivery_count_limit=self.LIMIT)
        self.state.advance_log_start(self.log_start)
        self.accepted = set(self.stored_accepted)
        for offset in self.rows:
            self.rows[offset] = self.stored_rows.get(offset, Row())

    def check(self) -> None:
        state = self.state
        assert self.log_start <= state.start_offset <= state.next_fetch_offset
        assert state.next_fetch_offset <= state.end_offset <= self.log_end
        for offset, row in self.rows.items():
            if row.state in (AVAILABLE, ACQUIRED):
                assert offset >= state.start_offset
            if offset in self.accepted:
                assert row.state.is_terminal

    def accept_all_that_is_left(self) -> None:
        """Whoever goes on acquiring and accepting gets every record that is not done."""
        self.now += self.LOCK_MS
        self.state.expire(self.now)
        missing = {
            offset
            for offset, row in self.rows.items()
            if row.state is AVAILABLE or (row.state is ACQUIRED and row.count < self.LIMIT)
        }
        while True:
            offset = self.state.next_fetch_offset
            batches = [batch for batch in self.log if batch.last_offset >= offset]
            before = self.state.stored()
            given = self.state.acquire(
                "a",
                batches,
                PLENTY,
                read_offset=offset,
                deadline_ms=self.now + 1,
                aborted=[batch for batch in batches if batch in self.aborted],
            )
            for some in given:
                got = set(range(some.first_offset, some.last_offset + 1))
                assert not got & self.accepted
                missing -= got
                say(self.state, *some[:2], ACCEPT)
            if not given and self.state.stored() == before:
                break
        assert not missing
        assert all(offset < self.state.start_offset for offset in self.rows)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_each_record_is_delivered_until_it_is_done_whatever_happens(seed: int) -> None:
    life = Life(seed)
    for _ in range(100):
        life.step()
    life.accept_all_that_is_left()
