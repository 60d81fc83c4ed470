"""Who gets which partitions: pure."""

from __future__ import annotations

import random
import struct

import pytest
from tidelog.consuming.assignors import ASSIGNORS_BY_NAME, Assignment
from tidelog.consuming.group_protocol import (
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tidelog.errors import MalformedResponse
from tidelog_core.model import TopicPartition

STICKY = ("sticky", "cooperative-sticky")


def member(name: str, *topics: str, **rest: object) -> MemberSubscription:
    return MemberSubscription(name, topics or ("t",), **rest)  # type: ignore[arg-type]


def counts(assignment: Assignment) -> dict[str, int]:
    return {name: len(partitions) for name, partitions in assignment.items()}


def test_range_gives_runs_of_each_topic_to_members_in_order() -> None:
    assign = ASSIGNORS_BY_NAME["range"].assign
    assignment = assign([member("b", "t", "u"), member("a", "t", "u")], {"t": 3, "u": 3})
    assert assignment == {
        "a": [("t", 0), ("t", 1), ("u", 0), ("u", 1)],
        "b": [("t", 2), ("u", 2)],
    }


def test_range_orders_static_members_by_instance() -> None:
    assign = ASSIGNORS_BY_NAME["range"].assign
    members = [member("x", group_instance_id="2"), member("y", group_instance_id="1")]
    assert assign(members, {"t": 3}) == {"x": [("t", 2)], "y": [("t", 0), ("t", 1)]}


def test_round_robin_deals_across_topics() -> None:
    assign = ASSIGNORS_BY_NAME["roundrobin"].assign
    assignment = assign([member("a", "t", "u"), member("b", "t", "u")], {"t": 3, "u": 3})
    assert assignment == {
        "a": [("t", 0), ("t", 2), ("u", 1)],
        "b": [("t", 1), ("u", 0), ("u", 2)],
    }


def test_round_robin_passes_over_members_that_do_not_want_the_topic() -> None:
    assign = ASSIGNORS_BY_NAME["roundrobin"].assign
    assignment = assign([member("a", "t"), member("b", "u")], {"t": 2, "u": 1})
    assert assignment == {"a": [("t", 0), ("t", 1)], "b": [("u", 0)]}


@pytest.mark.parametrize("name", ASSIGNORS_BY_NAME)
def test_topics_that_do_not_exist_are_left_out(name: str) -> None:
    assignment = ASSIGNORS_BY_NAME[name].assign([member("a", "t", "missing")], {"t": 1})
    assert assignment == {"a": [("t", 0)]}


@pytest.mark.parametrize("name", ASSIGNORS_BY_NAME)
def test_every_partition_has_exactly_one_owner_of_its_topic(name: str) -> None:
    """Random groups; for the cooperative one from scratch, where nothing has to move."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(60):
        topics = {f"t{n}": chance.randint(0, 7) for n in range(chance.randint(1, 4))}
        members = [
            member(f"m{n}", *chance.sample(sorted(topics), chance.randint(1, len(topics))))
            for n in range(chance.randint(1, 5))
        ]
        assignment = ASSIGNORS_BY_NAME[name].assign(members, topics)
        given = [partition for part in assignment.values() for partition in part]
        wanted = {t for m in members for t in m.topics}
        assert sorted(given) == sorted((t, n) for t in wanted for n in range(topics[t]))
        for each in members:
            assert {p.topic for p in assignment[each.member_id]} <= set(each.topics)


def with_previous(
    name: str, member_id: str, owned: list[TopicPartition], generation: int
) -> MemberSubscription:
    data = ASSIGNORS_BY_NAME[name].user_data(owned, generation)
    return member(member_id, owned=tuple(owned), generation=generation, user_data=data)


@pytest.mark.parametrize("name", STICKY)
def test_sticky_moves_only_what_balance_needs(name: str) -> None:
    owned = {
        "a": [TopicPartition("t", n) for n in range(3)],
        "b": [TopicPartition("t", n) for n in range(3, 6)],
    }
    members = [with_previous(name, m, part, 4) for m, part in owned.items()]
    assert ASSIGNORS_BY_NAME[name].assign(members, {"t": 6}) == owned
    grown = ASSIGNORS_BY_NAME[name].assign([*members, member("c")], {"t": 6})
    assert set(grown["a"]) < set(owned["a"])
    assert set(grown["b"]) < set(owned["b"])
    # In the cooperative round the new member waits until the others have let go.
    assert counts(grown) == {"a": 2, "b": 2, "c": 2 if name == "sticky" else 0}


@pytest.mark.parametrize("name", STICKY)
def test_sticky_hands_the_partitions_of_a_member_that_left_to_the_others(name: str) -> None:
    left = with_previous(name, "a", [TopicPartition("t", 0), TopicPartition("t", 1)], 1)
    assignment = ASSIGNORS_BY_NAME[name].assign([left, member("b")], {"t": 4})
    assert assignment == {"a": [("t", 0), ("t", 1)], "b": [("t", 2), ("t", 3)]}


@pytest.mark.parametrize("name", STICKY)
def test_sticky_believes_the_later_generation(name: str) -> None:
    partition = TopicPartition("t", 0)
    members = [with_previous(name, "a", [partition], 1), with_previous(name, "b", [partition], 2)]
    assignment = ASSIGNORS_BY_NAME[name].assign(members, {"t": 1})
    assert assignment["a"] == []
    # A partition that two members hold is no one's until one of them has let go.
    assert assignment["b"] in ([partition], [])


@pytest.mark.parametrize("name", STICKY)
def test_sticky_balances_members_with_different_topics(name: str) -> None:
    members = [member("a", "t"), member("b", "t", "u"), member("c", "u")]
    assignment = ASSIGNORS_BY_NAME[name].assign(members, {"t": 4, "u": 5})
    assert sorted(counts(assignment).values()) == [3, 3, 3]


def test_cooperative_rounds_converge_without_two_owners() -> None:
    assign = ASSIGNORS_BY_NAME["cooperative-sticky"].assign
    owned: Assignment = {"a": [TopicPartition("t", n) for n in range(7)]}
    for names in (["a", "b"], ["a", "b", "c"], ["b", "c"]):
        for generation in range(3):
            owned = {m: owned.get(m, []) for m in names}
            members = [
                member(m, owned=tuple(part), generation=generation) for m, part in owned.items()
            ]
            new = assign(members, {"t": 7})
            for m in names:
                for other in names:
                    assert m == other or not set(new[m]) & set(owned[other])
            owned = new
        assert sum(counts(owned).values()) == 7
        assert max(counts(owned).values()) - min(counts(owned).values()) <= 1


@pytest.mark.parametrize(
    "garbage", [b"\xff", b"\x7f\xff\xff\xff", struct.pack(">ih", 1, -5), b"\0" * 7]
)
def test_sticky_ignores_user_data_it_cannot_read(garbage: bytes) -> None:
    members = [member("a", user_data=garbage), member("b")]
    assert counts(ASSIGNORS_BY_NAME["sticky"].assign(members, {"t": 2})) == {"a": 1, "b": 1}


def test_subscription_round_trip() -> None:
    given = MemberSubscription(
        "m",
        ("a", "b"),
        "static",
        (TopicPartition("a", 1), TopicPartition("b", 0)),
        7,
        b"\1\2",
        "rack",
    )
    assert decode_subscription("m", "static", encode_subscription(given)) == given


def test_subscription_of_version_0_lacks_what_came_later() -> None:
    data = struct.pack(">hih1si", 0, 1, 1, b"t", -1)
    assert decode_subscription("m", None, data) == MemberSubscription("m", ("t",))


def test_assignment_round_trip() -> None:
    partitions = [TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)]
    assert decode_assignment(encode_assignment(partitions)) == partitions
    assert decode_assignment(b"") == []


@pytest.mark.parametrize("garbage", [b"\0", b"\0\3\xff\xff", b"\0\1\x7f\xff\xff\xff"])
def test_subscriptions_that_do_not_parse_are_refused(garbage: bytes) -> None:
    with pytest.raises(MalformedResponse):
        decode_subscription("m", None, garbage)
    with pytest.raises(MalformedResponse):
        decode_assignment(garbage)
