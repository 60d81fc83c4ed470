"""A share group's state machine: who may read what, epochs, errors, topics that change.

What Apache Kafka answers to the same requests is compared in ``tests/kafka``.
"""

from __future__ import annotations

import dataclasses

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kio.schema.errors import ErrorCode
from tidelog_node.groups.share.share_group import ShareGroup, SharePhase

from tests.node.coordinator.share_members import SETTINGS, Driver, partitions, topics


def test_a_member_may_read_everything_in_the_first_epoch() -> None:
    driver = Driver()
    answer = driver.enter("a")
    assert (answer.error, answer.member_epoch) == (ErrorCode.none, 1)
    assert (answer.assigned, answer.heartbeat_interval_ms) == (partitions(0, 1), 5_000)
    assert driver.step.must_store
    answer = driver.beat("a", 1)
    assert (answer.assigned, driver.step.must_store) == (None, False)


def test_members_share_partitions_where_there_are_more_of_them() -> None:
    driver = Driver(t=2)
    for name in "abcde":
        driver.enter(name)
    driver.settle()
    shares = [driver.member(name).assigned for name in "abcde"]
    assert all(len(share) == 1 for share in shares)
    assert sorted(shares.count(partitions(number)) for number in (0, 1)) == [2, 3]


def test_nobody_waits_for_what_another_member_has_yet_to_give_up() -> None:
    driver = Driver(t=2)
    driver.enter("a")
    answer = driver.enter("b")
    assert answer.assigned is not None
    assert len(answer.assigned) == 1
    assert driver.member("a").assigned == partitions(0, 1)
    answer = driver.beat("a", 1)
    assert (answer.member_epoch, answer.assigned) == (2, driver.member("a").target)


def test_a_member_that_leaves_is_replaced_with_the_next_heartbeat() -> None:
    driver = Driver(t=2)
    driver.enter("a")
    driver.enter("b")
    driver.settle()
    answer = driver.beat("b", -1)
    assert (answer.error, answer.member_id, answer.member_epoch) == (ErrorCode.none, "b", -1)
    assert driver.step.must_store
    answer = driver.beat("a", 2)
    assert (answer.member_epoch, answer.assigned) == (3, partitions(0, 1))


def test_a_member_that_says_nothing_for_a_session_is_removed() -> None:
    driver = Driver()
    driver.enter("a")
    driver.now_ms = 44_000
    driver.enter("b")
    assert not driver.group.expire(44_999).must_store
    assert driver.group.expire(45_000).must_store
    assert [member.member_id for member in driver.group.members] == ["b"]
    assert driver.group.wake_at_ms == 44_000 + 45_000
    assert driver.group.expire(89_000).must_store
    assert (driver.group.phase, driver.group.phase_since_ms) == (SharePhase.EMPTY, 89_000)
    assert driver.group.wake_at_ms is None


def test_refusals_change_nothing() -> None:
    driver = Driver()
    driver.settings = dataclasses.replace(SETTINGS, members_max=2)
    driver.enter("a")
    driver.enter("b")
    driver.settle()
    driver.enter("b", "u")
    before = driver.group.to_record(shard=0, clock_offset_ms=0, version=0)
    for answer, error in (
        (driver.enter("c"), ErrorCode.group_max_size_reached),
        (driver.beat("a", 9), ErrorCode.fenced_member_epoch),
        (driver.beat("a", 0), ErrorCode.fenced_member_epoch),
    ):
        assert answer.error is error
        assert not driver.step.must_store
    driver.settings = SETTINGS
    for epoch in (1, -1):
        assert driver.beat("x", epoch).error is ErrorCode.unknown_member_id
        assert not driver.step.must_store
    assert driver.group.to_record(shard=0, clock_offset_ms=0, version=0) == before


def test_a_member_that_did_not_hear_its_last_answer_may_ask_again() -> None:
    driver = Driver()
    driver.enter("a")
    driver.enter("b")
    told = driver.beat("a", 1)
    again = driver.beat("a", 1)
    assert (again.error, again.member_epoch) == (ErrorCode.none, told.member_epoch)
    assert driver.beat("a", 2).error is ErrorCode.none


def test_a_member_that_joins_again_is_told_everything_and_nothing_else_changes() -> None:
    driver = Driver()
    driver.enter("a")
    answer = driver.enter("a")
    assert (answer.member_epoch, answer.assigned) == (1, partitions(0, 1))
    assert not driver.step.must_store


def test_topics_come_grow_and_go() -> None:
    driver = Driver(u=1)
    assert driver.enter("a").assigned == frozenset()
    driver.topics = topics(t=1, u=1)
    answer = driver.beat("a", 1)
    assert (answer.member_epoch, answer.assigned) == (2, partitions(0))
    driver.topics = topics(t=3, u=1)
    answer = driver.beat("a", 2)
    assert (answer.member_epoch, answer.assigned) == (3, partitions(0, 1, 2))
    driver.topics = topics(t=3, u=9)
    assert driver.beat("a", 3).member_epoch == 3
    driver.topics = topics(u=1)
    answer = driver.beat("a", 3)
    assert (answer.member_epoch, answer.assigned) == (4, frozenset())


def test_a_new_subscription_counts_at_once() -> None:
    driver = Driver(t=1, u=1)
    driver.enter("a")
    answer = driver.beat("a", 1, subscribed_topics=("u", "t", "u"))
    assert answer.assigned == partitions(0) | partitions(0, topic="u")
    everything = answer.assigned
    answer = driver.beat("a", 2, subscribed_topics=("t", "u"))
    assert (answer.member_epoch, driver.step.must_store) == (2, False)
    assert answer.assigned == everything, "who says everything is told everything"
    assert driver.beat("a", 2, subscribed_topics=()).assigned == frozenset()


def test_a_deleted_group_takes_nobody() -> None:
    driver = Driver()
    driver.enter("a")
    driver.beat("a", -1)
    driver.group.kill()
    assert driver.enter("a").error is ErrorCode.coordinator_not_available
    assert driver.group.phase is SharePhase.DEAD


def test_a_restored_group_goes_on_where_it_was_with_fresh_sessions() -> None:
    driver = Driver(t=2)
    driver.enter("a")
    driver.enter("b")
    record = driver.group.to_record(shard=0, clock_offset_ms=1000, version=3)
    driver.group = ShareGroup.restore(
        record, now_ms=7, clock_offset_ms=900, settings=SETTINGS, topics=driver.topics
    )
    assert driver.group.to_record(shard=0, clock_offset_ms=900, version=3) == record
    assert driver.group.wake_at_ms == 7 + 45_000
    answer = driver.beat("b", 2)
    assert (answer.member_epoch, answer.assigned, driver.step.must_store) == (2, None, False)
    assert driver.beat("a", 1).member_epoch == 2


MEMBERS = st.sampled_from([f"m{number}" for number in range(6)])
NAMES = ("t", "u", "v")


class ShareGroupMachine(RuleBasedStateMachine):
    """Members come, change, go and stall while topics come, grow and go."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(t=2)
        self.counts = {"t": 2}
        self.told: dict[str, int] = {}  # each member's epoch, as it was last answered
        self.epoch = 0

    @rule(member=MEMBERS, names=st.sets(st.sampled_from(NAMES), min_size=1))
    def joins(self, member: str, names: set[str]) -> None:
        answer = self.driver.enter(member, *sorted(names))
        known = self.told.get(member, 0)
        if answer.error is ErrorCode.none:
            assert answer.assigned is not None
            assert answer.member_epoch >= known
            self.told[member] = answer.member_epoch
        else:
            assert answer.error is ErrorCode.fenced_member_epoch
            assert known > 0, "a new member is not fenced"

    @rule(member=MEMBERS, names=st.none() | st.sets(st.sampled_from(NAMES)), hears=st.booleans())
    def beats(self, member: str, names: set[str] | None, hears: bool) -> None:
        fields = {} if names is None else {"subscribed_topics": tuple(sorted(names))}
        answer = self.driver.beat(member, self.told.get(member, 1), **fields)
        if member not in self.told:
            assert answer.error is ErrorCode.unknown_member_id
        elif answer.error is ErrorCode.fenced_member_epoch:
            # It missed more than one answer: it has to join anew.
            del self.told[member]
            self.driver.beat(member, -1)
        else:
            assert answer.error is ErrorCode.none
            assert answer.member_epoch >= self.told[member]
            if hears:
                self.told[member] = answer.member_epoch

    @rule(member=MEMBERS)
    def leaves(self, member: str) -> None:
        answer = self.driver.beat(member, -1)
        is_known = self.told.pop(member, None) is not None
        assert answer.error is (ErrorCode.none if is_known else ErrorCode.unknown_member_id)

    @rule(seconds=st.integers(0, 60))
    def time_passes(self, seconds: int) -> None:
        self.driver.now_ms += seconds * 1000
        self.driver.group.expire(self.driver.now_ms)
        left = {member.member_id for member in self.driver.group.members}
        self.told = {member: epoch for member, epoch in self.told.items() if member in left}

    @rule(name=st.sampled_from(NAMES), count=st.integers(0, 5))
    def a_topic_changes(self, name: str, count: int) -> None:
        if count:
            self.counts[name] = max(count, self.counts.get(name, 0))
        else:
            self.counts.pop(name, None)
        self.driver.topics = topics(**self.counts)

    @rule()
    @precondition(lambda self: not self.driver.group.is_empty)
    def the_coordinator_moves(self) -> None:
        record = self.driver.group.to_record(shard=0, clock_offset_ms=0, version=0)
        self.driver.group = ShareGroup.restore(
            record,
            now_ms=self.driver.now_ms,
            clock_offset_ms=0,
            settings=SETTINGS,
            topics=self.driver.topics,
        )

    @rule()
    def all_say_that_they_are_there(self) -> None:
        """Two heartbeats of each: the first may change the epoch, with the second all hear."""
        for _ in range(2):
            self.driver.settle()
        for member in self.driver.group.members:
            assert (member.epoch, member.assigned) == (self.driver.group.epoch, member.target)
            self.told[member.member_id] = member.epoch
            answer = self.driver.beat(member.member_id, member.epoch)
            assert (answer.assigned, self.driver.step.must_store) == (None, False)
        self.check_shared_out()

    def check_shared_out(self) -> None:
        members = list(self.driver.group.members)
        wanted = {
            (name, number)
            for name, count in self.counts.items()
            if any(name in member.subscribed_topics for member in members)
            for number in range(count)
        }
        names = {topic.topic_id: name for name, topic in self.driver.topics.items()}
        assigned = {
            member.member_id: {(names[p.topic_id], p.partition) for p in member.assigned}
            for member in members
        }
        assert set().union(*assigned.values()) == wanted
        for member in members:
            assert {name for name, _ in assigned[member.member_id]} <= set(member.subscribed_topics)
            if set(member.subscribed_topics) & self.counts.keys():
                assert assigned[member.member_id], "a member has nothing to do"

    @invariant()
    def epochs_never_go_back(self) -> None:
        group = self.driver.group
        assert group.epoch >= self.epoch
        self.epoch = group.epoch
        for member in group.members:
            assert member.previous_epoch <= member.epoch <= group.assignment_epoch <= group.epoch

    @invariant()
    def the_phase_says_whether_there_are_members(self) -> None:
        phase = SharePhase.STABLE if self.told else SharePhase.EMPTY
        assert self.driver.group.phase is phase


ShareGroupMachine.TestCase.settings = settings(
    deadline=None, max_examples=200, stateful_step_count=30
)
TestShareGroup = ShareGroupMachine.TestCase
