"""The state machine of a group, one rule at a time. Names of members are their ids."""

from __future__ import annotations

import dataclasses

import pytest
from kio.schema.errors import ErrorCode
from tidelog_node.groups.classic.classic_group import ClassicGroup, Phase
from tidelog_node.groups.classic_messages import GroupLimits, MemberIdentity

from tests.support.group_requests import Driver, join, subscription, sync


def test_a_client_without_member_id_gets_one_and_must_come_back_with_it() -> None:
    driver = Driver()
    first = driver.join(join(new="a"))
    answer = driver.joins[first.number]
    assert (answer.error, answer.member_id) == (ErrorCode.member_id_required, "a")
    assert len(driver.group.roster) == 0

    second = driver.join(join("a"))
    driver.advance(0)
    answer = driver.joins[second.number]
    assert (answer.error, answer.member_id, answer.leader) == (ErrorCode.none, "a", "a")
    assert answer.generation == 1


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_old_clients_become_members_with_their_first_request(version: int) -> None:
    driver = Driver()
    request = driver.join(join(new="a", version=version))
    driver.advance(0)
    assert driver.joins[request.number].generation == 1


def test_a_member_id_that_is_not_used_in_time_is_forgotten() -> None:
    driver = Driver()
    driver.join(join(new="a", session_timeout_ms=6000))
    driver.advance(6000)
    assert driver.group.is_vacant
    late = driver.join(join("a"))
    assert driver.joins[late.number].error is ErrorCode.unknown_member_id


def test_a_pending_member_holds_up_the_rebalance_until_it_joins_or_times_out() -> None:
    driver = Driver()
    generation = driver.stable("a")
    driver.join(join(new="b", session_timeout_ms=6000))
    rejoin = driver.join(join("a"))
    assert rejoin.number not in driver.joins
    driver.advance(6000)
    assert driver.joins[rejoin.number].generation == generation + 1


def test_the_first_rebalance_waits_for_more_members() -> None:
    driver = Driver()
    driver.limits = GroupLimits(initial_rebalance_delay_ms=3000, members_max=10)
    first = driver.member("a")
    driver.advance(2000)
    second = driver.member("b")
    driver.advance(2000)
    assert not driver.joins.keys() & {first.number, second.number}
    driver.advance(2000)
    assert driver.joins[first.number].generation == driver.joins[second.number].generation == 1


def test_the_first_rebalance_waits_no_longer_than_the_rebalance_timeout() -> None:
    driver = Driver()
    driver.limits = GroupLimits(initial_rebalance_delay_ms=3000, members_max=10)
    first = driver.member("a0", rebalance_timeout_ms=7000)
    for index in range(1, 5):
        driver.advance(2000)
        if first.number in driver.joins:
            break
        driver.member(f"a{index}", rebalance_timeout_ms=7000)
    assert driver.joins[first.number].generation == 1
    assert driver.now_ms <= 8000


def test_only_the_leader_learns_of_the_members() -> None:
    driver = Driver()
    requests = [driver.member(name) for name in ("a", "b", "c")]
    driver.advance(0)
    leader, *others = (driver.joins[request.number] for request in requests)
    assert [member.member_id for member in leader.members] == ["a", "b", "c"]
    assert [answer.members for answer in others] == [(), ()]
    assert {answer.leader for answer in (leader, *others)} == {"a"}


def test_the_protocol_with_most_votes_that_all_speak_is_chosen() -> None:
    driver = Driver()
    votes = {
        "a": (("x", b""), ("range", b""), ("sticky", b"")),
        "b": (("sticky", b""), ("range", b"")),
        "c": (("sticky", b""), ("y", b""), ("range", b"")),
    }
    requests = [driver.member(name, protocols=some) for name, some in votes.items()]
    driver.advance(0)
    assert {driver.joins[r.number].protocol_name for r in requests} == {"sticky"}


def test_a_member_that_speaks_no_common_protocol_is_turned_away() -> None:
    driver = Driver()
    driver.stable("a")
    for request in (
        join(new="b", protocols=(("sticky", b""),)),
        join(new="b", protocol_type="connect"),
        join(new="b", protocols=()),
    ):
        driver.join(request)
        assert driver.joins[request.number].error is ErrorCode.inconsistent_group_protocol
    assert driver.group.phase is Phase.STABLE


def test_members_get_what_the_leader_assigned_once_it_is_stored() -> None:
    driver = Driver()
    for name in ("a", "b"):
        driver.member(name)
    driver.advance(0)
    follower = driver.sync(sync("b", 1))
    assert follower.number not in driver.syncs
    before = driver.stored_count
    leader = driver.sync(sync("a", 1, {"a": b"1", "b": b"2"}))
    assert driver.stored_count == before + 1
    assert driver.syncs[leader.number].assignment == b"1"
    assert driver.syncs[follower.number].assignment == b"2"
    assert driver.group.phase is Phase.STABLE


def test_a_late_follower_gets_its_assignment_from_the_stable_group() -> None:
    driver = Driver()
    for name in ("a", "b"):
        driver.member(name)
    driver.advance(0)
    driver.sync(sync("a", 1, {"b": b"2"}))
    follower = driver.sync(sync("b", 1))
    assert driver.syncs[follower.number].assignment == b"2"


def test_members_that_do_not_sync_in_time_are_dropped() -> None:
    driver = Driver()
    for name in ("a", "b"):
        driver.member(name, session_timeout_ms=100_000, rebalance_timeout_ms=20_000)
    driver.advance(0)
    driver.sync(sync("a", 1, {}))
    driver.advance(20_000)
    assert "b" not in driver.group.roster
    assert driver.group.phase is Phase.PREPARING_REBALANCE
    assert driver.heartbeat("a", 1) is ErrorCode.rebalance_in_progress


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (sync("nobody", 1), ErrorCode.unknown_member_id),
        (sync("a", 7), ErrorCode.illegal_generation),
        (sync("a", 1, instance="i"), ErrorCode.unknown_member_id),
        (sync("a", 1, protocol_type="connect"), ErrorCode.inconsistent_group_protocol),
        (sync("a", 1, protocol_name="sticky"), ErrorCode.inconsistent_group_protocol),
    ],
)
def test_sync_is_refused(request_, error) -> None:  # type: ignore[no-untyped-def]
    driver = Driver()
    driver.member("a")
    driver.advance(0)
    driver.sync(request_)
    assert driver.syncs[request_.number].error is error


def test_a_join_makes_a_stable_group_rebalance() -> None:
    driver = Driver()
    generation = driver.stable("a")
    newcomer = driver.member("b")
    assert driver.heartbeat("a", generation) is ErrorCode.rebalance_in_progress
    assert driver.commit("a", generation) is ErrorCode.none  # before it revokes partitions
    rejoin = driver.join(join("a"))
    assert driver.joins[rejoin.number].generation == generation + 1
    assert driver.joins[newcomer.number].leader == "a"
    assert driver.commit("a", generation) is ErrorCode.illegal_generation
    assert driver.commit("a", generation + 1) is ErrorCode.rebalance_in_progress


def test_members_that_do_not_rejoin_in_time_are_dropped_and_a_leader_is_elected() -> None:
    driver = Driver()
    driver.stable("a", "b", session_timeout_ms=300_000, rebalance_timeout_ms=30_000)
    rejoin = driver.join(join("b", protocols=(("range", subscription("u")),)))
    driver.advance(59_999)
    assert rejoin.number not in driver.joins  # "a" has 60 s from its own last join
    driver.advance(1)
    answer = driver.joins[rejoin.number]
    assert (answer.leader, [m.member_id for m in answer.members]) == ("b", ["b"])
    assert driver.heartbeat("a", answer.generation) is ErrorCode.unknown_member_id


def test_a_member_without_heartbeats_is_dropped() -> None:
    driver = Driver()
    generation = driver.stable("a", "b", session_timeout_ms=10_000)
    for _ in range(4):
        driver.advance(3000)
        driver.heartbeat("a", generation)
    assert "b" not in driver.group.roster
    assert driver.heartbeat("a", generation) is ErrorCode.rebalance_in_progress


def test_commits_keep_a_session_alive() -> None:
    driver = Driver()
    generation = driver.stable("a", session_timeout_ms=10_000)
    for _ in range(5):
        driver.advance(9000)
        assert driver.commit("a", generation) is ErrorCode.none


def test_a_member_that_waits_is_not_expected_to_send_heartbeats() -> None:
    driver = Driver()
    generation = driver.stable("a", "b", session_timeout_ms=10_000)
    waiting = driver.join(join("a", protocols=(("range", subscription("u")),)))
    for _ in range(5):
        driver.advance(9000)
        assert driver.heartbeat("b", generation) is ErrorCode.rebalance_in_progress
    assert "a" in driver.group.roster
    driver.join(join("b"))
    assert driver.joins[waiting.number].error is ErrorCode.none


def test_a_new_member_that_is_never_answered_is_dropped_after_five_minutes() -> None:
    driver = Driver()
    generation = driver.stable("a", session_timeout_ms=10_000, rebalance_timeout_ms=3_600_000)
    newcomer = driver.member("b")
    for _ in range(60):
        driver.advance(5000)
        driver.heartbeat("a", generation)
    assert driver.joins[newcomer.number].error is ErrorCode.unknown_member_id
    assert "b" not in driver.group.roster


def test_the_last_to_leave_empties_the_group_and_ends_the_generation() -> None:
    driver = Driver()
    generation = driver.stable("a")
    errors, step = driver.group.leave([MemberIdentity("a")], now_ms=driver.now_ms)
    assert errors == [ErrorCode.none]
    assert step.must_store
    assert driver.group.phase is Phase.EMPTY
    assert driver.group.generation == generation + 1
    assert driver.commit("a", generation) is ErrorCode.unknown_member_id


def test_leaving_is_answered_for_each_member() -> None:
    driver = Driver()
    driver.stable("a", "b")
    driver.join(join(new="s", instance="i"))
    driver.join(join(new="p"))
    identities = [
        MemberIdentity("a"),
        MemberIdentity("nobody"),
        MemberIdentity("", "i"),
        MemberIdentity("", "j"),
        MemberIdentity("p"),
        MemberIdentity("b", "i"),
    ]
    errors, _ = driver.group.leave(identities, now_ms=driver.now_ms)
    assert errors == [
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.none,
        ErrorCode.unknown_member_id,
    ]
    assert [member.member_id for member in driver.group.roster] == ["b"]


def test_who_leaves_while_it_waits_is_answered() -> None:
    driver = Driver()
    for name in ("a", "b"):
        driver.member(name)
    driver.advance(0)
    waiting = driver.sync(sync("b", 1))
    _, step = driver.group.leave([MemberIdentity("b")], now_ms=driver.now_ms)
    driver.take(step)
    assert driver.syncs[waiting.number].error is ErrorCode.unknown_member_id


def test_a_repeated_join_answers_the_first_one_too() -> None:
    driver = Driver()
    driver.stable("a", "b")
    changed = (("range", subscription("u")),)
    first = driver.join(join("b", protocols=changed))
    driver.join(join("b", protocols=changed))
    assert driver.joins[first.number].error is ErrorCode.rebalance_in_progress


def test_a_follower_that_missed_its_answer_gets_it_again() -> None:
    driver = Driver()
    generation = driver.stable("a", "b")
    again = driver.join(join("b"))
    assert driver.joins[again.number].generation == generation
    assert driver.group.phase is Phase.STABLE


def test_the_leader_rejoins_to_have_partitions_assigned_again() -> None:
    driver = Driver()
    driver.stable("a", "b")
    driver.join(join("a"))
    assert driver.group.phase is Phase.PREPARING_REBALANCE


class TestStaticMembers:
    def _stable(self, version: int = 9) -> tuple[Driver, int]:
        driver = Driver()
        for name in ("a", "b"):
            driver.join(join(new=name, instance=f"i-{name}", version=version))
        driver.advance(0)
        driver.sync(sync("a", 1, {"a": b"1", "b": b"2"}, instance="i-a"))
        driver.sync(sync("b", 1, instance="i-b"))
        assert driver.group.phase is Phase.STABLE
        return driver, 1

    def test_one_that_comes_back_takes_its_place_without_a_rebalance(self) -> None:
        driver, generation = self._stable()
        back = driver.join(join(new="b2", instance="i-b"))
        answer = driver.joins[back.number]
        assert (answer.generation, answer.member_id) == (generation, "b2")
        assert driver.group.phase is Phase.STABLE
        synced = driver.sync(sync("b2", generation, instance="i-b"))
        assert driver.syncs[synced.number].assignment == b"2"

    def test_its_former_self_is_fenced(self) -> None:
        driver, generation = self._stable()
        driver.join(join(new="b2", instance="i-b"))
        assert driver.heartbeat("b", generation, "i-b") is ErrorCode.fenced_instance_id
        assert driver.commit("b", generation, "i-b") is ErrorCode.fenced_instance_id
        assert driver.commit("b", generation) is ErrorCode.unknown_member_id
        old = driver.join(join("b", instance="i-b"))
        assert driver.joins[old.number].error is ErrorCode.fenced_instance_id

    def test_a_leader_that_comes_back_is_told_to_skip_the_assignment(self) -> None:
        driver, _ = self._stable()
        back = driver.join(join(new="a2", instance="i-a"))
        answer = driver.joins[back.number]
        assert answer.skip_assignment
        assert answer.leader == "a2"
        assert [member.member_id for member in answer.members] == ["b", "a2"]

    def test_an_old_leader_that_comes_back_hears_of_its_former_self(self) -> None:
        driver, _ = self._stable()
        back = driver.join(join(new="a2", instance="i-a", version=8))
        answer = driver.joins[back.number]
        assert not answer.skip_assignment
        assert (answer.leader, answer.members) == ("a", ())

    def test_one_that_comes_back_during_the_assignment_causes_a_rebalance(self) -> None:
        driver = Driver()
        for name in ("a", "b"):
            driver.join(join(new=name, instance=f"i-{name}"))
        driver.advance(0)
        waiting = driver.sync(sync("b", 1, instance="i-b"))
        driver.join(join(new="b2", instance="i-b"))
        assert driver.syncs[waiting.number].error is ErrorCode.fenced_instance_id
        assert driver.group.phase is Phase.PREPARING_REBALANCE

    def test_one_whose_join_waits_is_fenced_by_its_next_self(self) -> None:
        driver, _ = self._stable()
        driver.join(join(new="c", instance="i-c"))
        waiting = driver.join(join("b", instance="i-b"))
        driver.join(join(new="b2", instance="i-b"))
        assert driver.joins[waiting.number].error is ErrorCode.fenced_instance_id

    def test_one_that_does_not_rejoin_stays_until_its_session_ends(self) -> None:
        driver, generation = self._stable()
        newcomer = driver.member("c", session_timeout_ms=100_000, rebalance_timeout_ms=5000)
        driver.join(join("a", instance="i-a", rebalance_timeout_ms=5000))
        driver.advance(9000)
        assert newcomer.number not in driver.joins
        driver.advance(1000)
        answer = driver.joins[newcomer.number]
        assert answer.generation == generation + 1
        assert "b" not in driver.group.roster

    def test_a_leader_that_does_not_rejoin_hands_over_to_one_that_does(self) -> None:
        driver, generation = self._stable()
        rejoin = driver.join(
            join("b", instance="i-b", protocols=(("range", b"changed"),), session_timeout_ms=90_000)
        )
        for _ in range(12):
            driver.advance(5000)
            driver.heartbeat("a", generation, "i-a")
        answer = driver.joins[rejoin.number]
        assert answer.leader == "b"
        assert {member.member_id for member in answer.members} == {"a", "b"}

    def test_one_that_comes_back_before_its_sync_must_sync_under_its_new_id(self) -> None:
        driver = Driver()
        for name in ("a", "b"):
            driver.join(join(new=name, instance=f"i-{name}", rebalance_timeout_ms=20_000))
        driver.advance(0)
        driver.sync(sync("a", 1, {"b": b"2"}, instance="i-a"))
        driver.join(join(new="b2", instance="i-b", session_timeout_ms=90_000))
        driver.heartbeat("a", 1, "i-a")
        driver.advance(9_000)
        driver.heartbeat("a", 1, "i-a")
        driver.advance(9_000)
        driver.heartbeat("a", 1, "i-a")
        driver.advance(2_000)
        assert "b2" not in driver.group.roster

    def test_a_change_of_protocol_causes_a_rebalance(self) -> None:
        both = (("range", b""), ("sticky", b""))
        driver = Driver()
        for name in ("a", "b"):
            driver.join(join(new=name, instance=f"i-{name}", protocols=both))
        driver.advance(0)
        driver.sync(sync("a", 1, instance="i-a"))
        driver.sync(sync("b", 1, instance="i-b"))
        driver.join(join(new="b2", instance="i-b", protocols=(("sticky", b""),)))
        assert driver.group.phase is Phase.PREPARING_REBALANCE


class TestGroupMaxSize:
    def test_newcomers_are_turned_away_from_a_full_stable_group(self) -> None:
        driver = Driver()
        driver.limits = GroupLimits(initial_rebalance_delay_ms=0, members_max=2)
        driver.stable("a", "b")
        newcomer = driver.join(join(new="c"))
        assert driver.joins[newcomer.number].error is ErrorCode.group_max_size_reached
        again = driver.join(join("b"))
        assert driver.joins[again.number].error is ErrorCode.none

    def test_the_last_to_rejoin_is_turned_away_when_the_limit_was_lowered(self) -> None:
        driver = Driver()
        driver.stable("a", "b", "c")
        driver.limits = GroupLimits(initial_rebalance_delay_ms=0, members_max=2)
        first = driver.join(join("a"))
        second = driver.join(join("b"))
        third = driver.join(join("c"))
        assert driver.joins[third.number].error is ErrorCode.group_max_size_reached
        assert driver.joins[first.number].error is ErrorCode.none
        assert driver.joins[second.number].error is ErrorCode.none


class TestCommits:
    def test_without_generation_they_are_for_empty_groups(self) -> None:
        driver = Driver()
        assert driver.commit("", -1) is ErrorCode.none
        driver.stable("a")
        assert driver.commit("", -1) is ErrorCode.unknown_member_id

    def test_of_a_member_need_its_generation(self) -> None:
        driver = Driver()
        generation = driver.stable("a")
        assert driver.commit("a", generation) is ErrorCode.none
        assert driver.commit("a", generation - 1) is ErrorCode.illegal_generation
        assert driver.commit("a", -1) is ErrorCode.illegal_generation
        assert driver.commit("b", generation) is ErrorCode.unknown_member_id


class TestRestore:
    def _restored(self, driver: Driver) -> Driver:
        record = driver.group.to_record(shard=0, clock_offset_ms=50, version=3)
        after = Driver(ClassicGroup.restore(record, now_ms=1_000_000, clock_offset_ms=50))
        after.now_ms = 1_000_000
        assert after.group.to_record(shard=0, clock_offset_ms=50, version=3) == record
        return after

    def test_a_stable_group_goes_on_in_its_generation(self) -> None:
        driver = Driver()
        generation = driver.stable("a", "b")
        after = self._restored(driver)
        assert after.heartbeat("a", generation) is ErrorCode.none
        assert after.commit("b", generation) is ErrorCode.none
        again = after.sync(sync("b", generation))
        assert after.syncs[again.number].assignment == b"assigned b"

    def test_members_that_do_not_come_back_are_dropped_after_a_fresh_session(self) -> None:
        driver = Driver()
        generation = driver.stable("a", "b", session_timeout_ms=10_000)
        driver.advance(9000)
        after = self._restored(driver)
        after.advance(9000)
        assert after.heartbeat("a", generation) is ErrorCode.none
        after.advance(1000)
        assert "b" not in after.group.roster

    def test_a_generation_without_assignment_is_completed(self) -> None:
        driver = Driver()
        for name in ("a", "b"):
            driver.member(name)
        driver.advance(0)
        after = self._restored(driver)
        follower = after.sync(sync("b", 1))
        after.sync(sync("a", 1, {"b": b"2"}))
        assert after.syncs[follower.number].assignment == b"2"

    def test_a_generation_that_nobody_syncs_is_given_up(self) -> None:
        driver = Driver()
        driver.member("a", rebalance_timeout_ms=20_000, session_timeout_ms=100_000)
        driver.advance(0)
        after = self._restored(driver)
        after.advance(20_000)
        assert after.group.phase is Phase.EMPTY
        assert after.group.generation == 2

    def test_the_leader_stays_the_leader(self) -> None:
        driver = Driver()
        driver.stable("a", "b")
        record = driver.group.to_record(shard=0, clock_offset_ms=0, version=1)
        record = dataclasses.replace(record, leader="b")
        group = ClassicGroup.restore(record, now_ms=0, clock_offset_ms=0)
        assert group.roster.leader == "b"


class TestSubscriptions:
    def test_a_group_consumes_what_its_members_subscribe_to(self) -> None:
        driver = Driver()
        driver.member("a", protocols=(("range", subscription("t", "u")),))
        driver.member("b", protocols=(("range", subscription("v") + b"more"),))
        driver.advance(0)
        consumed = [t for t in "stuvw" if driver.group.is_subscribed_to(t)]
        assert consumed == ["t", "u", "v"]

    def test_a_consumer_group_with_unreadable_metadata_may_consume_anything(self) -> None:
        driver = Driver()
        driver.member("a", protocols=(("range", b"\x00\x00\x00\x00\x00\x09\x00"),))
        driver.advance(0)
        assert driver.group.is_subscribed_to("anything")

    def test_workers_of_another_kind_consume_nothing(self) -> None:
        driver = Driver()
        driver.member("a", protocol_type="connect", protocols=(("default", b""),))
        driver.advance(0)
        assert not driver.group.is_subscribed_to("anything")
