"""The owner of a chain: what it does with each event."""

from __future__ import annotations

import time
from dataclasses import replace
from uuid import UUID

import pytest
from tidelog_core.diskless.chain.chain_writer import (
    BuildObject,
    ChainWriter,
    Committed,
    Decision,
    Deposed,
    PutObject,
    PutOutcome,
    ReadHeader,
    WriterLimits,
)
from tidelog_core.diskless.chain.noted_ranges import ForeignRange, NotedRange
from tidelog_core.diskless.chain.put_pace import PaceLimits
from tidelog_core.diskless.wal.build import BuiltObject, WalSlice, build_seal
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.header import WalHeader
from tidelog_core.metadata.epoch_chains import EpochChain

from tests.support.data_objects import build_data_object
from tests.support.wal_objects import CHAIN, HEIR, TOPIC_ID, batch, foreign_slice, name

P0, P1 = PartitionName(TOPIC_ID, 0), PartitionName(TOPIC_ID, 1)
FIRST = (EpochChain(7, CHAIN, 0),)
LIMITS = WriterLimits(
    flush_bytes=1_000,
    buffer_bytes_max=3_000,
    pace=PaceLimits(in_flight_max=3, puts_per_second_max=0.0, first_hedge_ms=200.0),
)
STORED, TAKEN, UNKNOWN = PutOutcome.STORED, PutOutcome.TAKEN, PutOutcome.UNKNOWN


class Owner:
    """A writer, with objects that are built as they are ordered."""

    def __init__(self, limits: WriterLimits = LIMITS) -> None:
        self.now = 1_000.0
        self.writer = ChainWriter(CHAIN, now_ms=self.now, limits=limits)
        self.writer.enter(P0, FIRST, end_offset=0)
        self.writer.enter(P1, FIRST, end_offset=0)
        self.built: dict[int, BuiltObject] = {}
        self.ends = {P0: 0, P1: 0}

    def take(self, decisions: list[Decision]) -> list[Decision]:
        """Return the decisions, with objects built at once."""
        taken: list[Decision] = []
        for decision in decisions:
            taken.append(decision)
            if isinstance(decision, BuildObject):
                slices = [WalSlice(TOPIC_ID, 0, 7, batch(decision.sequence))]
                place = name(
                    decision.sequence,
                    committed_end=decision.committed_end,
                    previous_crc=decision.previous_crc,
                )
                built = self.built[decision.sequence] = build_data_object(place, slices)
                taken += self.take(self.writer.on_built(decision.sequence, built.header, self.now))
        return taken

    def note(self, size_bytes: int = 100, partition: PartitionName = P0) -> list[Decision]:
        base = self.ends[partition]
        self.ends[partition] = base + 1
        return self.take(
            self.writer.note(NotedRange(partition, 7, base, base + 1, size_bytes), self.now)
        )

    def tick(self, after_ms: float) -> list[Decision]:
        self.now += after_ms
        return self.take(self.writer.tick(self.now))

    def put(self, sequence: int, outcome: PutOutcome, attempt: int = 1) -> list[Decision]:
        return self.take(self.writer.on_put(sequence, attempt, outcome, self.now))

    def header(self, sequence: int, header: WalHeader | None) -> list[Decision]:
        return self.take(self.writer.on_header(sequence, header, self.now))

    def header_unreadable(self, sequence: int) -> list[Decision]:
        return self.take(self.writer.on_header_unreadable(sequence, self.now))

    def delay(self) -> float | None:
        return self.writer.delay_ms(self.now)

    def fill(self, count: int) -> None:
        """Have so many objects in flight."""
        for _ in range(count):
            assert len(self.note(1_000)) == 2


def names(decisions: list[Decision]) -> list[str]:
    return [type(decision).__name__ for decision in decisions]


def test_an_idle_chain_flushes_soon_and_a_busy_one_at_the_interval() -> None:
    owner = Owner()
    assert owner.note() == []
    assert owner.delay() == 10
    assert owner.tick(9) == []
    assert names(owner.tick(1)) == ["BuildObject", "PutObject"]
    assert owner.note() == []
    assert owner.delay() == 100
    assert owner.tick(99) == []
    assert names(owner.tick(1)) == ["BuildObject", "PutObject"]


def test_what_has_waited_before_it_is_noted_is_flushed_no_later() -> None:
    owner = Owner()
    owner.writer.add(NotedRange(P0, 7, 0, 1, 100), owner.now, waited_ms=4.0)
    owner.writer.add(NotedRange(P1, 7, 0, 1, 100), owner.now, waited_ms=1.0)
    assert owner.delay() == 6
    assert owner.tick(5) == []
    build, _ = owner.tick(1)
    assert isinstance(build, BuildObject)
    assert build.content.ends() == {P0: 1, P1: 1}


def test_what_was_added_fills_a_buffer_when_time_passes() -> None:
    owner = Owner()
    owner.fill(1)
    owner.writer.add_foreign(ForeignRange(P0, 1, 600), owner.now)
    owner.writer.add(NotedRange(P0, 7, 1, 2, 400), owner.now)
    assert names(owner.tick(0)) == ["BuildObject", "PutObject"]


def test_after_a_commit_more_is_gathered_with_what_waited() -> None:
    """So one object has what all clients send, instead of two by turns."""
    owner = Owner(replace(LIMITS, gather_ms=15.0))
    owner.note()
    assert owner.delay() == 10  # Nothing was committed before.
    owner.tick(10)
    owner.note()
    owner.now += 30
    assert names(owner.put(0, STORED)) == ["Committed"]
    assert owner.delay() == 15
    assert owner.tick(14) == []
    owner.note(partition=P1)
    assert owner.delay() == 1
    (build, _) = owner.tick(1)
    assert isinstance(build, BuildObject)
    assert build.content.ends() == {P0: 2, P1: 1}


def test_nothing_is_gathered_when_a_flush_is_due_for_its_size_or_later() -> None:
    owner = Owner(replace(LIMITS, gather_ms=15.0))
    owner.fill(1)
    owner.note(900)
    owner.put(0, STORED)
    assert names(owner.note(100)) == ["BuildObject", "PutObject"]
    owner.put(1, STORED)
    owner.now += 40
    owner.note()
    assert owner.delay() == 10


def test_an_idle_chain_goes_on_by_an_object_without_records() -> None:
    owner = Owner()
    owner.fill(1)
    assert owner.writer.put_empty_object(owner.now) == []  # something is pending
    owner.put(0, STORED)
    owner.note(1)
    assert owner.writer.put_empty_object(owner.now) == []  # something waits
    owner.tick(10)
    owner.put(1, STORED)
    build, put = owner.take(owner.writer.put_empty_object(owner.now))
    assert isinstance(build, BuildObject)
    assert (build.sequence, build.committed_end, build.content.ranges) == (2, 2, ())
    assert put == PutObject(2, 1)
    (committed,) = owner.put(2, STORED)
    assert isinstance(committed, Committed)
    assert committed.ends == {}


def test_a_full_buffer_flushes_at_once() -> None:
    owner = Owner()
    assert owner.note(999) == []
    build, put = owner.note(1)
    assert isinstance(build, BuildObject)
    assert build.content.ranges == (NotedRange(P0, 7, 0, 2, 1_000),)
    assert put == PutObject(0, 1)


def test_a_build_that_failed_is_ordered_again_and_nothing_overtakes_it() -> None:
    owner = Owner()
    owner.fill(1)
    writer = owner.writer
    first, *others = writer.note(NotedRange(P0, 7, 1, 2, 1_000), owner.now)
    assert isinstance(first, BuildObject)
    assert (first.sequence, others) == (1, [])
    assert writer.on_build_failed(1, owner.now) == []
    assert writer.note(NotedRange(P0, 7, 2, 3, 1_000), owner.now) == []  # waits for it
    assert owner.delay() == 50
    assert writer.tick(owner.now + 49) == []
    # What is committed meanwhile changes nothing: it is the same object.
    assert names(owner.put(0, STORED)) == ["Committed"]
    owner.now += 50
    assert writer.tick(owner.now) == [first]
    assert owner.delay() is None
    assert writer.on_build_failed(1, owner.now) == []
    assert owner.delay() == 100  # longer every time
    owner.now += 100
    assert owner.take(writer.tick(owner.now))[:2] == [first, PutObject(1, 1)]
    assert writer.next_sequence == 3  # the one that has waited is built behind it
    assert owner.built[2].header.previous_crc == owner.built[1].header.crc
    owner.put(1, UNKNOWN)
    assert owner.delay() == 50  # failures of the build are not the PUT's


def test_a_failed_build_of_an_object_that_is_built_or_not_there_changes_nothing() -> None:
    owner = Owner()
    owner.fill(1)
    before = owner.delay()
    for sequence in (0, 1, 7):
        assert owner.writer.on_build_failed(sequence, owner.now) == []
    assert owner.delay() == before
    owner.writer.note(NotedRange(P0, 7, 1, 2, 1_000), owner.now)
    owner.put(0, TAKEN)
    assert names(owner.header(0, build_seal(name(0), HEIR).header)) == ["Deposed"]
    assert owner.writer.on_build_failed(1, owner.now) == []
    assert owner.delay() is None


def test_objects_are_chained_and_say_what_was_committed() -> None:
    owner = Owner()
    owner.fill(2)
    owner.put(0, STORED)
    (build, _) = owner.note(1_000)
    assert isinstance(build, BuildObject)
    assert (build.sequence, build.committed_end) == (2, 1)
    assert build.previous_crc == owner.built[1].header.crc
    assert owner.built[0].header.previous_crc == 0


def test_no_more_than_the_window_is_in_flight() -> None:
    owner = Owner()
    owner.fill(3)
    assert owner.note(1_000) == []
    assert owner.tick(150) == []
    assert owner.put(1, STORED) == []  # the window begins at the committed end
    committed, build, put = owner.put(0, STORED)
    assert isinstance(committed, Committed)
    assert committed.committed_end == 2
    assert isinstance(build, BuildObject)
    assert put == PutObject(3, 1)


def test_what_has_waited_for_long_goes_into_objects_of_a_bounded_size() -> None:
    """After an hour without a store, one object of all that waits might never be stored in time."""
    limits = WriterLimits(flush_bytes=1_000, object_bytes_max=1_500, pace=LIMITS.pace)
    owner = Owner(limits)
    owner.fill(3)
    for _ in range(4):
        assert owner.note(600) == owner.note(600, P1) == []
    owner.note(5_000, P1)  # One range is not split.
    built: list[tuple[NotedRange, ...]] = []
    for sequence in range(8):
        decisions = owner.put(sequence, STORED)
        built += [one.content.ranges for one in decisions if isinstance(one, BuildObject)]
    assert built == [
        (NotedRange(P0, 7, 3, 5, 1_200),),
        (NotedRange(P1, 7, 0, 2, 1_200),),
        (NotedRange(P0, 7, 5, 7, 1_200),),
        (NotedRange(P1, 7, 2, 4, 1_200),),
        (NotedRange(P1, 7, 4, 5, 5_000),),
    ]
    assert owner.writer.buffered_bytes == 0
    assert not owner.writer.has_uncommitted(P1)


def test_acks_are_released_in_order_only() -> None:
    owner = Owner()
    owner.fill(3)
    assert owner.put(2, STORED) == []
    assert owner.put(1, STORED) == []
    (committed,) = owner.put(0, STORED)
    assert isinstance(committed, Committed)
    assert (committed.committed_end, committed.ends) == (3, {P0: 3})
    assert [sequence for sequence, _ in committed.contents] == [0, 1, 2]
    assert owner.writer.buffered_bytes == 0


def test_a_late_put_is_hedged_once_with_the_same_object() -> None:
    owner = Owner()
    owner.fill(1)
    assert owner.delay() == 200
    assert owner.tick(200) == [PutObject(0, 2)]
    assert owner.tick(200) == []
    assert owner.delay() is None
    assert names(owner.put(0, STORED, attempt=2)) == ["Committed"]
    assert owner.put(0, TAKEN, attempt=1) == []  # the one that lost


def test_nothing_is_given_up() -> None:
    owner = Owner()
    owner.fill(1)
    for attempt in range(1, 30):
        assert owner.put(0, UNKNOWN, attempt) == []
        delay_ms = owner.delay()
        assert delay_ms is not None
        assert 50 <= delay_ms <= 2_000
        assert owner.tick(delay_ms) == [PutObject(0, attempt + 1)]
    assert names(owner.put(0, STORED, attempt=30)) == ["Committed"]


def test_a_taken_key_is_read_and_ours_counts() -> None:
    owner = Owner()
    owner.fill(1)
    assert owner.put(0, TAKEN) == [ReadHeader(0)]
    assert names(owner.header(0, owner.built[0].header)) == ["Committed"]


def test_a_key_that_was_taken_and_is_free_is_put_again() -> None:
    """409: somebody was about to write it."""
    owner = Owner()
    owner.fill(1)
    owner.put(0, TAKEN)
    assert owner.header(0, None) == []
    assert owner.tick(50) == [PutObject(0, 2)]


def test_a_key_that_was_taken_and_whose_header_cannot_be_read_is_put_again() -> None:
    owner = Owner()
    owner.fill(1)
    owner.put(0, TAKEN)
    assert owner.header_unreadable(0) == []
    assert owner.tick(50) == [PutObject(0, 2)]


def test_a_seal_deposes_and_nothing_is_committed_after_it() -> None:
    owner = Owner()
    owner.fill(3)
    assert owner.put(1, STORED) == []
    owner.put(0, TAKEN)
    seal = build_seal(name(0), HEIR).header
    assert owner.header(0, seal) == [Deposed(0, "sealed")]
    assert owner.put(2, STORED) == []
    assert owner.tick(10_000) == []
    assert owner.delay() is None
    assert owner.writer.committed_end == 0


def test_another_object_in_our_place_deposes() -> None:
    """Two processes with one chain id: a machine that was cloned."""
    owner = Owner()
    owner.fill(1)
    owner.put(0, TAKEN)
    other = build_data_object(name(0), [WalSlice(TOPIC_ID, 0, 7, batch(5))]).header
    (deposed,) = owner.header(0, other)
    assert deposed == Deposed(0, f"taken by {CHAIN}")


def test_a_throttled_store_gets_fewer_puts_and_no_hedges() -> None:
    owner = Owner()
    owner.fill(3)
    for sequence in range(3):
        assert owner.put(sequence, PutOutcome.THROTTLED) == []
    assert sorted(d.sequence for d in owner.tick(50) if isinstance(d, PutObject)) == [0, 1, 2]
    assert owner.tick(900) == []
    for sequence in range(3):
        owner.put(sequence, STORED, attempt=2)
    assert names(owner.note(1_000)) == ["BuildObject", "PutObject"]
    assert owner.note(1_000) == []  # one at a time
    assert owner.put(3, STORED)


def test_an_answer_after_the_object_is_stored_changes_nothing() -> None:
    """It waits for its predecessor, and must not be put once more."""
    owner = Owner()
    owner.fill(2)
    owner.tick(200)  # hedges
    owner.put(1, STORED, attempt=1)
    owner.put(1, UNKNOWN, attempt=2)
    owner.put(0, UNKNOWN, attempt=1)
    assert owner.delay() is None


def test_puts_cost_tokens_but_a_full_buffer_need_not_wait() -> None:
    pace = PaceLimits(in_flight_max=8, puts_per_second_max=2.0, hedge_percentile=0.0)
    owner = Owner(WriterLimits(flush_bytes=1_000, pace=pace))
    owner.fill(3)
    for sequence in range(3):
        owner.put(sequence, STORED)
    owner.note(10)
    assert owner.delay() == 500
    assert owner.tick(499) == []
    assert names(owner.tick(1)) == ["BuildObject", "PutObject"]


def test_a_partition_enters_only_when_its_item_names_the_chain() -> None:
    writer = ChainWriter(CHAIN, now_ms=0)
    other = (EpochChain(0, HEIR, 0),)
    for stored in ((), other):
        with pytest.raises(ValueError, match="does not name the chain"):
            writer.enter(P0, stored, end_offset=0)
    with pytest.raises(ValueError, match="is not in the chain"):
        writer.note(NotedRange(P0, 0, 0, 1, 1), 0)
    entered = (*other, EpochChain(1, CHAIN, 5))
    with pytest.raises(ValueError, match="does not begin there"):
        writer.enter(P0, entered, end_offset=6)
    writer.enter(P0, entered, end_offset=5, previous_sequence=9)
    with pytest.raises(ValueError, match="is not in the chain in epoch 0"):
        writer.note(NotedRange(P0, 0, 5, 6, 1), 0)
    writer.note(NotedRange(P0, 1, 5, 6, 1), 0)
    (build,) = writer.tick(10)
    assert isinstance(build, BuildObject)
    (row,) = build.content.epochs
    assert (row.leader_epoch, row.first_offset, row.previous_sequence) == (1, 5, 9)
    assert UUID(bytes=row.previous_chain_id) == HEIR.chain_id


def test_a_partition_that_has_left_does_not_come_back_by_a_stale_item() -> None:
    owner = Owner()
    owner.note()
    owner.writer.leave(P0)
    assert owner.writer.has_uncommitted(P0)
    assert not owner.writer.has_uncommitted(P1)
    with pytest.raises(ValueError, match="stale"):
        owner.writer.enter(P0, FIRST, end_offset=0)
    owner.tick(10)
    assert owner.writer.has_uncommitted(P0)
    owner.put(0, STORED)
    assert not owner.writer.has_uncommitted(P0)
    later = (*FIRST, EpochChain(8, HEIR, 1), EpochChain(9, CHAIN, 4))
    owner.writer.enter(P0, later, end_offset=4)


def test_asking_for_every_partition_costs_no_square_of_them() -> None:
    """A node that stops asks for all that it leads, on its event loop."""
    writer = ChainWriter(CHAIN, now_ms=0)
    partitions = [PartitionName(TOPIC_ID, number) for number in range(3_000)]
    for partition in partitions:
        writer.enter(partition, FIRST, end_offset=0)
        writer.note(NotedRange(partition, 7, 0, 1, 1), 0)
    (build,) = writer.tick(10)
    assert isinstance(build, BuildObject)
    begun = time.thread_time()
    assert all(map(writer.has_uncommitted, partitions))
    assert time.thread_time() - begun < 0.5


def test_ranges_must_follow_each_other() -> None:
    owner = Owner()
    owner.note()
    with pytest.raises(ValueError, match="does not follow 1"):
        owner.writer.note(NotedRange(P0, 7, 2, 3, 1), owner.now)


def test_nothing_is_missing_between_two_objects() -> None:
    """Nobody could replay the chain, and its records were acknowledged."""
    owner = Owner()
    owner.note()
    assert "BuildObject" in names(owner.tick(10))
    with pytest.raises(ValueError, match="does not follow 1"):
        owner.writer.note(NotedRange(P0, 7, 2, 3, 1), owner.now)


def test_a_reference_needs_a_partition_that_has_entered() -> None:
    owner = Owner()
    other_epoch = foreign_slice(sequence=2, base_offset=0)._replace(leader_epoch=8)
    with pytest.raises(ValueError, match="is not in the chain in epoch 8"):
        owner.writer.note_reference(other_epoch, owner.now, gateway_committed_end=3)


def test_a_reference_is_put_only_after_the_gateways_object() -> None:
    owner = Owner()
    given = foreign_slice(sequence=2, base_offset=0)
    with pytest.raises(ValueError, match="not known to be committed"):
        owner.writer.note_reference(given, owner.now, gateway_committed_end=2)
    owner.writer.note_reference(given, owner.now, gateway_committed_end=3)
    owner.writer.note(NotedRange(P1, 7, 4, 5, 50), owner.now)
    (build, *_) = owner.take(owner.writer.tick(owner.now + 10))
    assert isinstance(build, BuildObject)
    assert build.content.references == (given,)
    assert build.content.ends() == {P1: 5}


def test_a_clock_that_jumps_costs_a_flush_and_stops_nothing() -> None:
    owner = Owner()
    owner.note()
    owner.now -= 3_600_000
    assert owner.delay() == 10
    assert names(owner.tick(10)) == ["BuildObject", "PutObject"]
    owner.note()
    assert "BuildObject" in names(owner.tick(3_600_000))


def test_a_reference_does_not_wait_as_long_as_records_do() -> None:
    """Its producer has waited for the gateway's object already."""
    owner = Owner()
    owner.take(owner.writer.note(NotedRange(P0, 7, 0, 1, 10), owner.now))
    owner.now += LIMITS.idle_flush_ms
    owner.take(owner.writer.tick(owner.now))  # In flight: the chain is not idle.
    owner.writer.note(NotedRange(P0, 7, 1, 2, 10), owner.now)
    assert owner.writer.delay_ms(owner.now) == LIMITS.flush_ms
    owner.now += 5
    given = foreign_slice(sequence=2, base_offset=0)
    owner.writer.note_reference(given, owner.now, gateway_committed_end=3)
    assert owner.writer.delay_ms(owner.now) == LIMITS.reference_flush_ms
    owner.now += LIMITS.reference_flush_ms
    (build,) = owner.writer.tick(owner.now)
    assert isinstance(build, BuildObject)
    assert build.content.references == (given,)
    assert len(build.content.ranges) == 1
