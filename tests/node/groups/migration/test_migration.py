"""A classic group's members on their way to a consumer group and back, as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tidelog_core.metadata.coordination.consumer_groups import ConsumerMember, TopicIdPartition
from tidelog_core.metadata.records import Topic
from tidelog_core.model import TopicPartition
from tidelog_node.groups.classic.classic_group import Phase
from tidelog_node.groups.migration.consumer_protocol import (
    ELEMENTS_MAX,
    VERSION_MAX,
    MalformedProtocol,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from tidelog_node.groups.migration.conversion import downgraded, upgraded

from tests.support.coordinator_node import topic_id
from tests.support.group_requests import (
    Driver,
    join,
    subscription,
    subscription_with_owned,
    sync,
)

TOPICS: Mapping[str, Topic] = {
    name: Topic(name=name, topic_id=topic_id(name), partition_count=4) for name in "tu"
}


def assignment(*partitions: tuple[str, int]) -> bytes:
    return encode_assignment((TopicPartition(*p) for p in partitions), version=1)


def held(members: list[ConsumerMember]) -> dict[str, set[tuple[str, int]]]:
    names = {topic.topic_id: name for name, topic in TOPICS.items()}
    return {m.member_id: {(names[p.topic_id], p.partition) for p in m.assigned} for m in members}


def cooperative(*owned: tuple[str, int]) -> tuple[tuple[str, bytes], ...]:
    return (("cooperative-sticky", subscription_with_owned(["t"], owned)),)


def test_members_keep_what_they_were_assigned_in_the_generation_as_epoch() -> None:
    driver = Driver()
    generation = driver.stable("a", "b", protocols=(("range", subscription("t", "u")),))
    shares = {"a": assignment(("t", 0), ("gone", 1)), "b": assignment(("t", 1), ("u", 0))}
    for name, share in shares.items():
        driver.group.roster.get(name).assignment = share  # type: ignore[union-attr]
    members = upgraded(driver.group, TOPICS)
    assert held(members) == {"a": {("t", 0)}, "b": {("t", 1), ("u", 0)}}
    for member in members:
        assert (member.epoch, member.target) == (generation, member.assigned)
        assert member.subscribed_topics == ("t", "u")
        assert member.classic is not None
        assert member.classic.session_timeout_ms == 10_000


def test_a_cooperative_member_has_what_it_has_not_heard_that_it_gives_up() -> None:
    """The leader has assigned the generation, but the member's sync has not come yet."""
    driver = Driver()
    driver.member("a", protocols=cooperative(("t", 0), ("t", 1)))
    driver.member("b", protocols=cooperative())
    driver.advance(1)
    driver.join(join("a", protocols=cooperative(("t", 0), ("t", 1))))
    assert driver.group.phase is Phase.COMPLETING_REBALANCE
    shares = {"a": assignment(("t", 0)), "b": assignment()}
    driver.sync(sync(driver.group.roster.leader or "", driver.group.generation, shares))
    assert driver.group.phase is Phase.STABLE
    assert held(upgraded(driver.group, TOPICS)) == {"a": {("t", 0), ("t", 1)}, "b": set()}


def test_what_two_claim_stays_with_whom_it_was_assigned_to() -> None:
    driver = Driver()
    driver.stable("a", "b", protocols=cooperative(("t", 0)))
    for name, share in {"a": assignment(), "b": assignment(("t", 0))}.items():
        driver.group.roster.get(name).assignment = share  # type: ignore[union-attr]
    assert held(upgraded(driver.group, TOPICS)) == {"a": set(), "b": {("t", 0)}}


def test_members_that_cannot_be_read_are_refused() -> None:
    driver = Driver()
    driver.stable("a")  # assigned text that is no assignment
    with pytest.raises(MalformedProtocol):
        upgraded(driver.group, TOPICS)


def test_going_back_gives_each_member_its_target_in_the_version_that_it_speaks() -> None:
    driver = Driver()
    driver.stable("a", "b", protocols=(("range", subscription("t")),))
    for name in ("a", "b"):
        driver.group.roster.get(name).assignment = assignment()  # type: ignore[union-attr]
    members: list[Any] = upgraded(driver.group, TOPICS)
    target = frozenset({TopicIdPartition(topic_id("t"), 3), TopicIdPartition(topic_id("gone"), 0)})
    members[0] = ConsumerMember(
        member_id="a", instance_id="i", target=target, classic=members[0].classic
    )
    names = {topic.topic_id: name for name, topic in TOPICS.items()}
    group = downgraded("g", 7, members, topic_names=names, now_ms=5)
    assert (group.phase, group.generation, group.protocol_name) == (Phase.STABLE, 7, "range")
    assert group.roster.static_member_id("i") == "a"
    member = group.roster.get("a")
    assert member is not None
    assert decode_assignment(member.assignment) == {("t", 3)}
    assert member.assignment[:2] == b"\x00\x00"
    assert group.is_subscribed_to("t")
    assert group.wake_at_ms == 5 + 10_000


def test_every_version_of_a_subscription_is_read_and_a_newer_one_as_the_newest() -> None:
    plain = subscription("b", "a")
    owned = subscription_with_owned(["b", "a"], [("b", 2), ("b", 1), ("a", 0)])
    generation, rack = (9).to_bytes(4, "big"), b"\x00\x02r1"
    kept = {("b", 1), ("b", 2), ("a", 0)}
    for version, data, partitions, rack_id in (
        (0, plain, set(), None),
        (1, owned, kept, None),
        (2, b"\x00\x02" + owned[2:] + generation, kept, None),
        (3, b"\x00\x03" + owned[2:] + generation + rack, kept, "r1"),
        (VERSION_MAX, b"\x00\x09" + owned[2:] + generation + rack + b"more", kept, "r1"),
    ):
        read = decode_subscription(data)
        assert (read.version, read.topics, read.rack_id) == (version, ("a", "b"), rack_id)
        assert read.owned == partitions
    for version in range(VERSION_MAX + 1):
        data = encode_assignment([TopicPartition("t", 1)], version=version)
        assert decode_assignment(data) == {("t", 1)}
        assert int.from_bytes(data[:2], "big") == version
    assert decode_assignment(b"") == frozenset()


TOO_MANY_TOPICS = bytes(2) + (ELEMENTS_MAX + 1).to_bytes(4, "big") + bytes(2 * ELEMENTS_MAX + 6)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00", b"\x00\x00", b"\x00\x00\xff\xff\xff\xff", b"text", TOO_MANY_TOPICS],
    ids=["nothing", "a byte", "a version", "null topics", "text", "too many topics"],
)
def test_what_is_not_a_subscription_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedProtocol):
        decode_subscription(data)
