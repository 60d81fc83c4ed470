"""A consumer group's state machine: epochs, errors, static members, topics that change.

What Apache Kafka answers to the same requests is compared in ``tests/kafka``.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.metadata.coordination.consumer_groups import (
    MemberState,
    Partitions,
    TopicIdPartition,
)
from tidelog_core.metadata.records import Topic
from tidelog_node.groups.assignment.target_computation import TargetComputation
from tidelog_node.groups.classic_messages import GroupCaller, MemberIdentity
from tidelog_node.groups.consumer import consumer_members
from tidelog_node.groups.consumer.consumer_group import ConsumerGroup, ConsumerPhase
from tidelog_node.groups.consumer.heartbeat import ConsumerGroupSettings, ConsumerHeartbeat
from tidelog_node.groups.consumer.pattern_matches import PatternMatcher
from tidelog_node.groups.consumer.pattern_view import PatternView
from tidelog_node.groups.heartbeat_answer import HeartbeatAnswer
from tidelog_node.groups.migration import classic_members
from tidelog_node.groups.migration.consumer_protocol import decode_assignment
from tidelog_node.groups.migration.conversion import as_classic_group, with_ids
from tidelog_node.groups.step import Downgrade, Step

from tests.node.coordinator.lines import lines_of
from tests.support.consumer_members import consumer_heartbeat
from tests.support.coordinator_node import topic_id
from tests.support.group_requests import join, subscription_with_owned, sync

SETTINGS = ConsumerGroupSettings(
    assignment_interval_ms=1000,
    session_timeout_ms=45_000,
    heartbeat_interval_ms=5_000,
    members_max=3,
    classic_members_max=10,
    assignors=("uniform", "range"),
    can_upgrade=True,
    can_downgrade=True,
)


def topics(**counts: int) -> dict[str, Topic]:
    return {
        name: Topic(name=name, topic_id=topic_id(name), partition_count=count)
        for name, count in counts.items()
    }


def partitions(*numbers: int, topic: str = "t") -> Partitions:
    return frozenset(TopicIdPartition(topic_id(topic), number) for number in numbers)


class Driver:
    """Feeds one group."""

    def __init__(self, **counts: int) -> None:
        self.group = ConsumerGroup("g", now_ms=0)
        self.topics = topics(**(counts or {"t": 2}))
        self.matcher = PatternMatcher(self.topics)
        self.settings = SETTINGS
        self.now_ms = 0
        self.step = Step()
        self.computation: TargetComputation | None = None  # is under way

    def beat(self, member: str, epoch: int, **fields: Any) -> HeartbeatAnswer:
        request = consumer_heartbeat(member, epoch, **fields)
        self.match(request)
        answer, self.step = consumer_members.heartbeat(
            self.group, request, now_ms=self.now_ms, settings=self.settings, topics=self.topics
        )
        if self.step.computes is not None:
            assert self.computation is None
            self.computation = self.step.computes
        return answer

    def match(self, request: ConsumerHeartbeat | None = None) -> None:
        """Have the group know what its patterns match, and that of this heartbeat."""
        self.matcher.take_topics(self.topics, self.matcher.topics.keys() | self.topics.keys())
        views = {*self.group.patterns_to_match(self.topics)}
        if request is not None:
            known = self.group.roster.get(request.member_id)
            pattern = request.subscribed_pattern or (known and known.subscribed_pattern)
            if pattern:
                views.add(PatternView(pattern, request.viewer))
        if views:
            self.group.subscriptions.take_matches(asyncio.run(self.matcher.match(views)))

    def compute(self) -> Step:
        """End the computation that is under way."""
        computation, self.computation = self.computation, None
        assert computation is not None
        return self.group.computed(computation, computation.run(), now_ms=self.now_ms)

    def move(self, known: Mapping[str, Topic] | None = None) -> None:
        """Have another coordinator go on, to which these topics are known, or all."""
        self.group = ConsumerGroup.restore(
            self.group.to_record(shard=3, clock_offset_ms=0, version=4),
            now_ms=self.now_ms,
            clock_offset_ms=0,
            settings=self.settings,
            topics=self.topics if known is None else known,
        )

    def enter(self, member: str, *names: str, **fields: Any) -> HeartbeatAnswer:
        given = {"rebalance_timeout_ms": 60_000, "owned": frozenset(), **fields}
        return self.beat(member, 0, **{"subscribed_topics": names or ("t",), **given})

    def repeat(self, member: str, epoch: int, *names: str, owned: Partitions) -> HeartbeatAnswer:
        """Send everything, as a member does whose last answer was lost."""
        fields = {"rebalance_timeout_ms": 60_000, "subscribed_topics": names, "owned": owned}
        return self.beat(member, epoch, **fields)

    def settle(self, *members: str) -> int:
        """Have the members give up and take over; return the epoch that all are in then."""
        for _ in range(4):
            for name in members:
                if self.computation is not None:
                    self.compute()
                member = self.group.member(name)
                self.beat(name, member.epoch, instance_id=member.instance_id, owned=member.assigned)
        assert self.group.phase is ConsumerPhase.STABLE
        return self.group.epoch

    def assigned(self, member: str) -> Partitions:
        return self.group.member(member).assigned


def test_a_member_is_given_everything_in_the_first_epoch() -> None:
    driver = Driver()
    answer = driver.enter("a")
    assert (answer.error, answer.member_epoch) == (ErrorCode.none, 1)
    assert (answer.assigned, answer.heartbeat_interval_ms) == (partitions(0, 1), 5_000)
    assert driver.step.must_store
    answer = driver.beat("a", 1)
    assert (answer.assigned, driver.step.must_store) == (None, False)


def test_a_member_gives_up_before_another_gets() -> None:
    driver = Driver()
    driver.enter("a")
    assert driver.enter("b").assigned == frozenset()
    assert driver.group.member("b").state is MemberState.UNRELEASED_PARTITIONS
    told = driver.beat("a", 1)
    assert (told.member_epoch, told.assigned) == (1, driver.group.member("a").target)
    assert driver.group.member("a").state is MemberState.UNREVOKED_PARTITIONS
    assert driver.group.phase is ConsumerPhase.RECONCILING
    assert driver.beat("b", 2).assigned is None
    assert driver.beat("a", 1, owned=partitions(0, 1)).member_epoch == 1
    assert driver.beat("a", 1, owned=driver.assigned("a")).member_epoch == 2
    assert driver.beat("b", 2).assigned == driver.group.member("b").target
    assert driver.assigned("a") | driver.assigned("b") == partitions(0, 1)
    assert driver.group.phase is ConsumerPhase.STABLE


def test_a_member_that_has_not_heard_its_answer_may_ask_in_its_old_epoch_again() -> None:
    driver = Driver()
    driver.enter("a")
    driver.enter("b")
    driver.settle("a", "b")
    driver.beat("b", -1)
    assert driver.beat("a", 2).member_epoch == 3
    kept = driver.assigned("a")
    assert driver.beat("a", 2, owned=kept).member_epoch == 3
    for owned in (None, partitions(9)):
        assert driver.beat("a", 2, owned=owned).error is ErrorCode.fenced_member_epoch
    for epoch in (1, 4):
        answer = driver.beat("a", epoch, owned=kept)
        assert answer.error is ErrorCode.fenced_member_epoch
        assert not driver.step.must_store


def test_a_member_that_has_not_heard_two_answers_may_ask_in_its_old_epoch_again() -> None:
    """Kafka fences it; but what it reports is its own, and nobody else was given any of it."""
    driver = Driver(t=4)
    driver.enter("a")
    driver.enter("b")
    epoch = driver.settle("a", "b")
    kept = driver.assigned("a")
    driver.beat("b", -1)
    assert driver.beat("a", epoch, owned=kept).member_epoch == epoch + 1
    driver.topics = topics(t=5)
    for _ in range(2):
        driver.now_ms += driver.settings.assignment_interval_ms
        answer = driver.repeat("a", epoch, "t", owned=kept)
        assert (answer.error, answer.member_epoch) == (ErrorCode.none, epoch + 2)
    assert answer.assigned == partitions(0, 1, 2, 3, 4)


def test_a_member_that_has_not_heard_what_to_give_up_is_not_fenced() -> None:
    """Nobody is given those partitions before it reports that it has given them up."""
    driver = Driver(t=2, u=2)
    driver.enter("a")
    driver.enter("b", "t", "u")
    epoch = driver.settle("a", "b")
    kept = driver.assigned("a")
    driver.beat("b", -1)
    assert driver.beat("a", epoch, owned=kept).member_epoch == epoch + 1
    for _ in range(2):
        driver.now_ms += driver.settings.assignment_interval_ms
        answer = driver.repeat("a", epoch, "u", owned=kept)
        assert (answer.error, answer.assigned) == (ErrorCode.none, partitions())
        assert kept <= driver.group.member("a").revoking
    answer = driver.beat("a", epoch, owned=partitions())
    assert (answer.member_epoch, answer.assigned) == (
        driver.group.epoch,
        partitions(0, 1, topic="u"),
    )


def test_a_join_of_which_two_answers_were_lost_may_be_repeated() -> None:
    driver = Driver(t=2)
    driver.enter("a")
    driver.topics = topics(t=3)
    for _ in range(2):
        driver.now_ms += driver.settings.assignment_interval_ms
        answer = driver.enter("a")
        assert (answer.error, answer.member_epoch) == (ErrorCode.none, 2)


def test_refusals_change_nothing() -> None:
    driver = Driver()
    for name in ("a", "b"):
        driver.enter(name)
    before = driver.group.to_record(shard=0, clock_offset_ms=0, version=1)
    for member, epoch, fields, error in (
        ("nobody", 1, {}, ErrorCode.unknown_member_id),
        ("nobody", -1, {}, ErrorCode.unknown_member_id),
        ("a", 9, {}, ErrorCode.fenced_member_epoch),
        ("a", 1, {"instance_id": "i"}, ErrorCode.unknown_member_id),
        ("a", -1, {"instance_id": "i"}, ErrorCode.unknown_member_id),
        ("a", 1, {"subscribed_pattern": "("}, ErrorCode.invalid_regular_expression),
        ("d", 0, {"subscribed_topics": ("t",)}, ErrorCode.group_max_size_reached),
    ):
        full = error is ErrorCode.group_max_size_reached
        driver.settings = dataclasses.replace(SETTINGS, members_max=2 if full else 3)
        answer = driver.beat(member, epoch, **fields)
        assert answer.error is error
        assert answer.message
        assert not driver.step.must_store
    assert driver.group.to_record(shard=0, clock_offset_ms=0, version=1) == before


def test_producers_commit_offsets_for_members_of_the_current_epoch() -> None:
    driver = Driver()

    def validate(member: str, epoch: int, instance: str | None = None) -> ErrorCode:
        return driver.group.validate_transactional_commit(GroupCaller(member, instance, epoch))

    assert validate("nobody", -1) is ErrorCode.none  # the group is empty
    driver.enter("a")
    driver.enter("b")
    epoch = driver.settle("a", "b")
    assert validate("a", epoch) is ErrorCode.none
    assert validate("", -1) is ErrorCode.none  # says nothing of members
    assert validate("", -1, "i") is ErrorCode.unknown_member_id
    assert validate("nobody", epoch) is ErrorCode.unknown_member_id
    # TxnOffsetCommit does not know of stale epochs.
    assert validate("a", epoch - 1) is ErrorCode.illegal_generation


def test_a_static_member_leaves_for_now_and_another_takes_its_place_and_partitions() -> None:
    driver = Driver()
    driver.enter("a", instance_id="i")
    driver.enter("b")
    epoch = driver.settle("a", "b")
    kept = driver.assigned("a")
    assert driver.enter("c", instance_id="i").error is ErrorCode.unreleased_instance_id
    assert driver.beat("a", -2, instance_id="i").member_epoch == -2
    answer = driver.enter("c", instance_id="i")
    assert (answer.member_epoch, answer.assigned) == (epoch, kept)
    assert driver.beat("a", epoch, instance_id="i").error is ErrorCode.fenced_instance_id
    assert driver.beat("b", epoch).assigned is None
    driver.now_ms += 44_000
    driver.beat("b", epoch)
    driver.beat("c", epoch, instance_id="i")
    driver.now_ms += 2_000
    assert not driver.group.expire(driver.now_ms, SETTINGS).must_store


def test_a_static_member_that_does_not_come_back_loses_its_place_with_its_session() -> None:
    driver = Driver()
    driver.enter("a", instance_id="i")
    driver.beat("a", -2, instance_id="i")
    driver.now_ms = 45_000
    assert driver.group.expire(driver.now_ms, SETTINGS).must_store
    assert driver.group.is_empty


def test_topics_that_come_grow_and_go_begin_an_epoch_each() -> None:
    driver = Driver(u=1)
    assert driver.enter("a", "t", "u").assigned == partitions(0, topic="u")
    driver.topics = {**driver.topics, **topics(t=1)}
    answer = driver.beat("a", 1)
    assert answer.member_epoch == 2
    assert answer.assigned == partitions(0) | partitions(0, topic="u")
    driver.topics = {**driver.topics, **topics(t=2, other=7)}
    assert driver.beat("a", 2).member_epoch == 3
    driver.topics = topics(t=2, other=8)
    assert driver.beat("a", 3).assigned == partitions(0, 1)
    assert driver.beat("a", 3, owned=partitions(0, 1)).member_epoch == 4
    driver.topics = dict(driver.topics)
    assert driver.beat("a", 4).member_epoch == 4
    assert not driver.step.must_store


def test_a_topic_that_was_created_again_is_another_one() -> None:
    driver = Driver()
    driver.enter("a")
    new = dataclasses.replace(driver.topics["t"], topic_id=topic_id("t again"))
    driver.topics = {"t": new}
    assert driver.beat("a", 1).assigned == frozenset()
    answer = driver.beat("a", 1, owned=frozenset())
    assert answer.assigned == partitions(0, 1, topic="t again")


def test_a_pattern_is_matched_to_topics_as_they_come() -> None:
    driver = Driver(p1=1, q=1)
    answer = driver.enter("a", subscribed_topics=None, subscribed_pattern="p.*")
    assert answer.assigned == partitions(0, topic="p1")
    driver.topics = {**driver.topics, **topics(p2=1, r=1)}
    assert driver.beat("a", 1).assigned == partitions(0, topic="p1") | partitions(0, topic="p2")
    driver.move()
    assert driver.beat("a", 2).member_epoch == 2
    assert not driver.step.must_store
    answer = driver.beat("a", 2, subscribed_pattern="")
    assert driver.beat("a", 2, owned=frozenset()).member_epoch == 3


def test_a_new_coordinator_knows_what_patterns_match_before_anybody_sends_a_heartbeat() -> None:
    driver = Driver(p1=1, p2=1, q=1)
    driver.enter("a", subscribed_topics=None, subscribed_pattern="p.*")
    driver.move()
    driver.match()
    assert driver.group.is_subscribed_to("p2")
    assert not driver.group.is_subscribed_to("q")
    driver.move()
    driver.match()
    assert driver.group.topics.keys() == {"p1", "p2"}
    assert driver.beat("a", 1).member_epoch == 1
    assert not driver.step.must_store


@pytest.mark.parametrize("changed", [topics(t=3, u=1), topics(t=2), topics(t=2, u=1, v=1)])
def test_topics_that_change_while_nobody_coordinates_the_group_begin_an_epoch(
    changed: Mapping[str, Topic],
) -> None:
    driver = Driver(t=2, u=1)
    driver.enter("a", subscribed_topics=None, subscribed_pattern="[tuv]")
    driver.topics = dict(changed)
    driver.move()
    driver.settle("a")
    assert driver.group.epoch == 2
    assert len(driver.assigned("a")) == sum(t.partition_count for t in changed.values())
    driver.move()
    driver.settle("a")
    assert driver.group.epoch == 2


def test_the_assignor_that_most_members_ask_for_is_used() -> None:
    driver = Driver(t=4)
    assert driver.group.preferred_assignor(SETTINGS) == "uniform"
    driver.enter("a", assignor="range")
    assert driver.group.preferred_assignor(SETTINGS) == "range"
    driver.enter("b")
    driver.enter("c", assignor="uniform")
    driver.beat("b", 2, assignor="uniform")
    assert driver.group.preferred_assignor(SETTINGS) == "uniform"
    only_range = dataclasses.replace(SETTINGS, assignors=("range",))
    assert driver.group.preferred_assignor(only_range) == "range"


class TestLargeGroup:
    """More members than are assigned partitions at once."""

    def driver(self, count: int, *, partition_count: int = 4) -> Driver:
        """Return a group with the members m0, m1, …, all of whom have what they are to have."""
        driver = Driver(t=partition_count)
        driver.settings = dataclasses.replace(
            SETTINGS, members_max=10_000, assigned_at_once_members_max=2
        )
        names = [f"m{number}" for number in range(count)]
        for name in names:
            driver.enter(name)
        driver.now_ms += 1000
        driver.settle(*names)
        driver.now_ms += 1000
        return driver

    def test_those_who_join_within_an_interval_are_assigned_partitions_together(self) -> None:
        driver = self.driver(4)
        epoch = driver.group.epoch
        assert driver.enter("first").member_epoch == epoch
        assert driver.compute().must_store
        driver.now_ms += 999
        for number in range(3):
            answer = driver.enter(f"late{number}")
            assert (answer.member_epoch, answer.assigned) == (epoch + 1, frozenset())
            assert driver.step.must_store
        assert driver.computation is None
        assert (driver.group.epoch, driver.group.assignment_epoch) == (epoch + 4, epoch + 1)
        assert driver.group.phase is ConsumerPhase.ASSIGNING
        assert driver.beat("late0", epoch + 1).assigned is None
        assert not driver.step.must_store
        driver.now_ms += 1
        assert driver.beat("late0", epoch + 1).member_epoch == epoch + 1
        driver.compute()
        assert driver.beat("late0", epoch + 1).member_epoch == epoch + 4
        assert driver.settle(*(member.member_id for member in driver.group.roster)) == epoch + 4

    def test_a_computation_is_not_begun_while_another_is_under_way(self) -> None:
        driver = self.driver(4)
        driver.enter("first")
        epoch = driver.group.epoch
        driver.now_ms += 60_000
        driver.enter("second")  # would have its own computation; the driver checks that
        driver.compute()
        assert (driver.group.epoch, driver.group.assignment_epoch) == (epoch + 1, epoch)
        assert driver.group.member("second").target == frozenset()
        driver.now_ms += 1000
        driver.settle("first", "second", *(f"m{number}" for number in range(4)))

    def test_what_was_computed_for_those_who_have_gone_is_theirs_who_stay_in_the_next(
        self,
    ) -> None:
        driver = self.driver(4)
        driver.enter("new")
        (lost,) = driver.assigned("m0")
        driver.beat("m0", -1)
        driver.compute()
        assert all(lost not in member.target for member in driver.group.roster)
        driver.now_ms += 1000
        driver.settle("m1", "m2", "m3", "new")
        assert any(lost in member.assigned for member in driver.group.roster)

    def test_a_static_member_that_comes_back_meanwhile_has_what_was_computed_for_it(self) -> None:
        driver = self.driver(3)
        driver.enter("old", instance_id="i")
        driver.settle("m0", "m1", "m2", "old")
        driver.now_ms += 1000
        driver.enter("more")
        driver.beat("old", -2, instance_id="i")
        assert driver.enter("young", instance_id="i").error is ErrorCode.none
        driver.compute()
        assert driver.group.member("young").target == driver.group.member("young").assigned
        assert driver.group.member("young").target
        driver.settle("m0", "m1", "m2", "young", "more")

    def test_a_computation_for_a_group_that_is_no_more_changes_nothing(self) -> None:
        driver = self.driver(3)
        driver.enter("new")
        for name in ("m0", "m1", "m2", "new"):
            driver.beat(name, -1)
        driver.group.kill()
        assert not driver.compute().must_store

    def test_topics_that_change_meanwhile_are_taken_in_with_the_next(self) -> None:
        driver = self.driver(4)
        driver.enter("new")
        epoch = driver.group.epoch
        driver.compute()
        driver.topics = topics(t=9)
        driver.beat("m0", epoch - 1)
        assert (driver.group.epoch, driver.group.assignment_epoch) == (epoch + 1, epoch)
        driver.now_ms += 1000
        driver.settle("new", *(f"m{number}" for number in range(4)))
        assert sum(len(member.assigned) for member in driver.group.roster) == 9

    def test_topics_that_change_after_targets_were_asked_for_begin_another_epoch(self) -> None:
        driver = self.driver(4)
        driver.enter("new")
        epoch = driver.group.epoch
        driver.topics = topics(t=9)
        driver.beat("m0", epoch - 1)
        assert driver.group.epoch == epoch + 1
        driver.beat("m1", epoch - 1)
        assert driver.group.epoch == epoch + 1
        driver.compute()
        driver.now_ms += 1000
        driver.settle("new", *(f"m{number}" for number in range(4)))
        assert sum(len(member.assigned) for member in driver.group.roster) == 9

    def test_what_a_member_ceases_to_subscribe_to_is_taken_from_it_before_the_next(self) -> None:
        driver = self.driver(3)
        driver.topics = topics(t=4, u=3)
        for name in ("m0", "m1", "m2"):
            driver.beat(name, driver.group.member(name).epoch, subscribed_topics=("t", "u"))
        driver.compute()
        driver.now_ms += 1000
        driver.settle("m0", "m1", "m2")
        driver.now_ms += 1000
        epoch = driver.group.epoch
        driver.enter("opens", "t", "u")
        driver.compute()
        before = driver.assigned("m0")
        kept = frozenset(p for p in before if p.topic_id == topic_id("t"))
        assert kept < before
        answer = driver.beat("m0", epoch, subscribed_topics=("t",))
        assert answer.assigned is not None
        assert answer.assigned <= kept
        assert driver.group.epoch > driver.group.assignment_epoch
        driver.now_ms += 1000
        driver.settle("m0", "m1", "m2", "opens")
        assert sum(len(member.assigned) for member in driver.group.roster) == 7

    def test_a_new_coordinator_does_not_wait_for_the_interval(self) -> None:
        driver = self.driver(4)
        driver.enter("first")
        driver.compute()
        driver.enter("second")
        assert driver.computation is None
        epoch = driver.group.epoch
        driver.move()
        driver.beat("second", epoch - 1)
        driver.compute()
        assert driver.beat("second", epoch - 1).member_epoch == epoch

    def test_what_a_member_does_takes_no_longer_in_a_group_ten_times_as_large(self) -> None:
        """But for what is computed in another thread, once an interval."""

        def lines(count: int) -> list[int]:
            driver = self.driver(count, partition_count=50)
            driver.enter("opens")  # the interval
            driver.compute()
            some = driver.group.member("m7")
            actions: list[Callable[[], object]] = [
                lambda: driver.beat("m7", some.epoch),
                lambda: driver.enter("new"),
                lambda: driver.beat("new", driver.group.member("new").epoch),
                lambda: driver.beat("m1", -1),
                lambda: driver.group.expire(driver.now_ms, driver.settings),
                lambda: driver.group.is_subscribed_to("u"),
                lambda: driver.group.preferred_assignor(driver.settings),
            ]
            return [lines_of(action) for action in actions]

        assert lines(600) == pytest.approx(lines(60), rel=0.1, abs=10)


def test_a_stored_group_is_restored_as_it_was() -> None:
    driver = Driver()
    driver.enter("a", instance_id="i", rack_id="r")
    driver.enter("b")
    driver.beat("a", 1, instance_id="i")
    record = driver.group.to_record(shard=3, clock_offset_ms=100, version=4)
    assert (record.phase, record.generation, record.member_count) == ("Reconciling", 2, 2)
    group = ConsumerGroup.restore(
        record, now_ms=7, clock_offset_ms=100, settings=SETTINGS, topics=driver.topics
    )
    assert group.to_record(shard=3, clock_offset_ms=100, version=4) == record
    assert group.wake_at_ms == 7 + 45_000
    driver.group = group
    answer = driver.beat("a", 1, instance_id="i", owned=group.member("a").assigned)
    assert answer.member_epoch == 2


def test_classic_members_are_told_to_join_until_they_have_their_share() -> None:
    driver = Driver()
    driver.enter("new")
    request = join(new="old", version=9)
    (number, answer), *_ = classic_members.join(
        driver.group, request, now_ms=0, settings=SETTINGS, topics=driver.topics
    ).joins
    assert (number, answer.error) == (request.number, ErrorCode.member_id_required)
    generation = classic_join(driver, "old")
    assert classic_beat(driver, "old", generation) is ErrorCode.none
    assert classic_beat(driver, "old", generation + 1) is ErrorCode.illegal_generation
    assert classic_beat(driver, "new", 1) is ErrorCode.unknown_member_id
    driver.beat("new", 1)
    driver.beat("new", 1, owned=driver.assigned("new"))
    assert classic_beat(driver, "old", generation) is ErrorCode.rebalance_in_progress
    assert classic_join(driver, "old") == generation
    assert len(driver.assigned("old")) == 1
    assert classic_beat(driver, "old", generation) is ErrorCode.none
    driver.enter("third")
    assert classic_beat(driver, "old", generation) is ErrorCode.rebalance_in_progress
    ((_, synced),) = classic_members.sync(driver.group, sync("old", generation), now_ms=0).syncs
    assert synced.error is ErrorCode.rebalance_in_progress


def test_a_classic_member_hears_of_all_its_partitions_from_a_new_coordinator() -> None:
    driver = Driver(t=4)
    driver.enter("new")
    generation = classic_join(driver, "old")
    driver.beat("new", 1)
    driver.beat("new", 1, owned=driver.assigned("new"))
    assert classic_join(driver, "old") == generation
    driver.move()
    assert classic_sync(driver, "old", generation) == driver.assigned("old")
    assert len(driver.assigned("old")) == 2
    # Where its image is behind it has no name for the topic, and nobody would tell the rest.
    driver.move({})
    assert classic_sync(driver, "old", generation) is ErrorCode.rebalance_in_progress
    owned = [("t", p.partition) for p in driver.assigned("old")]
    assert classic_join(driver, "old", owned=owned) == generation
    assert classic_sync(driver, "old", generation) == driver.assigned("old")


@pytest.mark.parametrize("must", ["join", "sync"])
def test_a_classic_member_that_does_not_do_its_part_in_time_is_removed(must: str) -> None:
    driver = Driver()
    driver.enter("new")
    generation = classic_join(driver, "old", rebalance_timeout_ms=20_000)
    if must == "join":
        classic_members.sync(driver.group, sync("old", generation), now_ms=0)
        driver.enter("third")
    for now_ms in (5_000, 10_000, 15_000):
        driver.now_ms = now_ms
        classic_beat(driver, "old", generation)
    driver.group.expire(24_999 if must == "join" else 19_999, SETTINGS)
    assert "old" in driver.group.roster
    driver.group.expire(25_000 if must == "join" else 20_000, SETTINGS)
    assert "old" not in driver.group.roster


def test_a_classic_static_member_takes_the_last_consumers_place_and_the_group_back() -> None:
    driver = Driver()
    driver.enter("new", instance_id="i")
    request = join(new="old", instance="i")
    step = classic_members.join(
        driver.group, request, now_ms=0, settings=SETTINGS, topics=driver.topics
    )
    ((_, answer),) = step.joins
    assert answer.error is ErrorCode.none
    assert step.downgrade == Downgrade(must_rebalance=False)
    classic = as_classic_group(driver.group, must_rebalance=False, now_ms=0)
    assert classic.generation == answer.generation
    assert classic.phase.value == "Stable"
    assert classic.roster.static_member_id("i") == "old"


def test_classic_members_and_administrators_remove_classic_members_only() -> None:
    driver = Driver()
    driver.enter("new", instance_id="i")
    classic_join(driver, "old")
    classic_join(driver, "fixed", instance="j")
    errors, step = classic_members.leave(
        driver.group,
        [
            MemberIdentity("new"),
            MemberIdentity("", "i"),
            MemberIdentity("", "nobody"),
            MemberIdentity("wrong", "j"),
            MemberIdentity("", "j"),
            MemberIdentity("old"),
        ],
        now_ms=0,
    )
    assert errors == [
        *[ErrorCode.unknown_member_id] * 3,
        ErrorCode.fenced_instance_id,
        ErrorCode.none,
        ErrorCode.none,
    ]
    assert step.must_store
    assert [member.member_id for member in driver.group.roster] == ["new"]


def classic_join(
    driver: Driver, name: str, *, owned: Sequence[tuple[str, int]] = (), **options: Any
) -> int:
    protocols = (("range", subscription_with_owned(["t"], owned)),)
    request = join("" if "instance" in options else name, new=name, protocols=protocols, **options)
    ((_, answer),) = classic_members.join(
        driver.group, request, now_ms=driver.now_ms, settings=SETTINGS, topics=driver.topics
    ).joins
    assert (answer.error, answer.member_id) == (ErrorCode.none, name)
    return answer.generation


def classic_sync(driver: Driver, name: str, generation: int) -> Partitions | ErrorCode:
    ((_, answer),) = classic_members.sync(
        driver.group, sync(name, generation), now_ms=driver.now_ms
    ).syncs
    if answer.error is not ErrorCode.none:
        return answer.error
    return with_ids(decode_assignment(answer.assignment), driver.topics)


def classic_beat(driver: Driver, name: str, generation: int) -> ErrorCode:
    return classic_members.heartbeat(
        driver.group, GroupCaller(name, None, generation), now_ms=driver.now_ms
    )
