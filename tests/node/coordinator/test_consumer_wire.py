"""Both versions of KIP-848's requests as bytes, and what it means to the others."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tests.node.coordinator.wire import (
    DELETE,
    DESCRIBE,
    LIST,
    OFFSET_DELETE,
    OFFSET_FETCH,
    Wire,
)
from tests.support.coordinator_node import topic_id

HEARTBEAT, CONSUMER_DESCRIBE = 68, 69
VERSIONS = (0, 1)
ONE_MINUTE = timedelta(minutes=1)


async def beat(wire: Wire, member: str, epoch: int, *, version: int = 1, **fields: Any) -> Any:
    given = {"group_id": "g", "rebalance_timeout": timedelta(milliseconds=-1), **fields}
    return await wire.ask(HEARTBEAT, version, member_id=member, member_epoch=epoch, **given)


async def enter(wire: Wire, member: str, *, version: int = 1, **fields: Any) -> Any:
    given = {"subscribed_topic_names": ("t",), "rebalance_timeout": ONE_MINUTE, **fields}
    return await beat(wire, member, 0, version=version, topic_partitions=(), **given)


def partitions_of(assignment: Any) -> dict[UUID, tuple[int, ...]]:
    return {topic.topic_id: tuple(topic.partitions) for topic in assignment.topic_partitions}


async def test_a_member_joins_and_is_given_partitions_in_both_versions(wire: Wire) -> None:
    for version in VERSIONS:
        group = f"g{version}"
        member = "" if version == 0 else "mine"
        answer = await enter(wire, member, version=version, group_id=group)
        assert (answer.error_code, answer.member_epoch) == (ErrorCode.none, 1)
        assert (answer.member_id == "mine") == (version == 1)
        assert answer.heartbeat_interval == timedelta(seconds=5)
        assert partitions_of(answer.assignment) == {topic_id("t"): (0, 1)}
        again = await beat(wire, answer.member_id, 1, version=version, group_id=group)
        assert (again.error_code, again.assignment) == (ErrorCode.none, None)
        left = await beat(wire, answer.member_id, -1, version=version, group_id=group)
        assert (left.error_code, left.member_epoch) == (ErrorCode.none, -1)


@pytest.mark.parametrize(
    ("member", "epoch", "fields", "code", "message"),
    [
        ("", 1, {}, "invalid_request", "MemberId can't be empty."),
        (" ", -1, {}, "invalid_request", "MemberId can't be empty."),
        ("m", 1, {"group_id": ""}, "invalid_request", "GroupId can't be empty."),
        ("m", 1, {"instance_id": " "}, "invalid_request", "InstanceId can't be empty."),
        ("m", 1, {"rack_id": ""}, "invalid_request", "RackId can't be empty."),
        ("m", -3, {}, "invalid_request", "MemberEpoch is invalid."),
        ("m", -2, {}, "invalid_request", "InstanceId can't be null."),
        ("m", 1, {"server_assignor": "x"}, "unsupported_assignor", "Supported assignors: uniform,"),
        ("m", 1, {"group_id": "x"}, "group_id_not_found", "Consumer group x not found."),
        ("m", -1, {"group_id": "x"}, "group_id_not_found", "Group x not found."),
        ("m", 1, {"group_id": "c"}, "group_id_not_found", "Group c is not a consumer group."),
        ("m", 1, {}, "unknown_member_id", "Member m is not a member of group g."),
        ("a", 2, {}, "fenced_member_epoch", "greater member epoch (2)"),
        ("b", 0, {"instance_id": "i"}, "unreleased_instance_id", "is owned by s member"),
        ("b", 1, {"instance_id": "i"}, "fenced_instance_id", "fenced by member s"),
    ],
)
async def test_every_refusal_has_its_code_and_says_why(
    wire: Wire, member: str, epoch: int, fields: dict[str, Any], code: str, message: str
) -> None:
    await enter(wire, "a")
    await enter(wire, "s", instance_id="i")
    await wire.stable("c")
    if epoch == 0:
        answer = await enter(wire, member, **fields)
    else:
        answer = await beat(wire, member, epoch, **fields)
    assert answer.error_code is ErrorCode[code]
    assert message in answer.error_message
    assert (answer.member_id, answer.assignment) == (None, None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rebalance_timeout": timedelta(milliseconds=-1)}, "RebalanceTimeoutMs must be"),
        ({"subscribed_topic_names": None}, "SubscribedTopicNames or SubscribedTopicRegex must"),
        (
            {"topic_partitions": ({"topic_id": topic_id("t"), "partitions": (0,)},)},
            "TopicPartitions must be empty",
        ),
    ],
)
async def test_a_join_says_everything(wire: Wire, fields: dict[str, Any], message: str) -> None:
    given = {
        "subscribed_topic_names": ("t",),
        "rebalance_timeout": ONE_MINUTE,
        "topic_partitions": (),
        **fields,
    }
    answer = await beat(wire, "m", 0, **given)
    assert answer.error_code is ErrorCode.invalid_request
    assert message in answer.error_message


async def test_a_group_is_described_with_epochs_and_targets(wire: Wire) -> None:
    await enter(wire, "a", rack_id="r", instance_id="i")
    await enter(wire, "b", subscribed_topic_names=None, subscribed_topic_regex="t|u")
    for version in VERSIONS:
        answer = await wire.ask(
            CONSUMER_DESCRIBE,
            version,
            group_ids=("g", "none", "classic"),
            include_authorized_operations=True,
        )
        group, missing, _ = answer.groups
        assert (group.error_code, group.group_state) == (ErrorCode.none, "Reconciling")
        assert (group.group_epoch, group.assignment_epoch) == (2, 2)
        assert (group.assignor_name, group.authorized_operations) == ("uniform", 3400)
        first, second = group.members
        assert (first.member_id, first.instance_id, first.rack_id) == ("a", "i", "r")
        assert (first.member_epoch, first.client_host) == (1, "/127.0.0.1")
        assert first.subscribed_topic_names == ("t",)
        assert second.subscribed_topic_regex == "t|u"
        assert partitions_of(first.assignment) == {topic_id("t"): (0, 1)}
        targets = [*first.target_assignment.topic_partitions]
        targets += second.target_assignment.topic_partitions
        assert {t.topic_name for t in targets} == {"t", "u"}
        assert sum(len(t.partitions) for t in targets) == 4
        if version == 1:
            assert (first.member_type, second.member_type) == (1, 1)
        assert missing.error_code is ErrorCode.group_id_not_found


async def test_groups_are_listed_and_described_by_their_types(wire: Wire) -> None:
    await enter(wire, "a")
    await wire.stable("c")

    async def listed(**fields: Any) -> dict[str, tuple[str, str]]:
        answer = await wire.ask(LIST, 5, **{"states_filter": (), "types_filter": (), **fields})
        return {g.group_id: (g.group_type, g.group_state) for g in answer.groups}

    both = {"g": ("consumer", "Stable"), "c": ("classic", "Stable")}
    assert await listed() == both
    assert await listed(types_filter=("Consumer",)) == {"g": both["g"]}
    assert await listed(types_filter=("classic",)) == {"c": both["c"]}
    assert await listed(states_filter=("empty",)) == {}
    for version, code in ((5, ErrorCode.none), (6, ErrorCode.group_id_not_found)):
        (group,) = (await wire.ask(DESCRIBE, version, groups=("g",))).groups
        assert (group.error_code, group.group_state) == (code, "Dead")
    (group,) = (await wire.ask(CONSUMER_DESCRIBE, 1, group_ids=("c",))).groups
    assert group.error_code is ErrorCode.group_id_not_found


async def test_epochs_hold_commits_and_fetches_of_version_9(wire: Wire) -> None:
    await enter(wire, "a")

    async def commit(version: int, epoch: int, member: str = "a") -> ErrorCode:
        return await wire.commit(
            version, generation_id_or_member_epoch=epoch, member_id=member, partition=0
        )

    async def fetch(version: int, **fields: Any) -> tuple[ErrorCode, int]:
        topic = {"name": "t"} if version < 10 else {"topic_id": topic_id("t")}
        asked = {"group_id": "g", "topics": ({**topic, "partition_indexes": (0,)},), **fields}
        (group,) = (await wire.ask(OFFSET_FETCH, version, groups=(asked,))).groups
        offsets = [p.committed_offset for t in group.topics for p in t.partitions]
        return group.error_code, offsets[0] if offsets else -2

    for version in (9, 10):
        assert await commit(version, 1) is ErrorCode.none
        assert await commit(version, 0) is ErrorCode.stale_member_epoch
        assert await commit(version, 1, "x") is ErrorCode.unknown_member_id
        assert await fetch(version, member_id="a", member_epoch=1) == (ErrorCode.none, 5)
        assert await fetch(version, member_id=None, member_epoch=-1) == (ErrorCode.none, 5)
        stale = await fetch(version, member_id="a", member_epoch=2)
        assert stale == (ErrorCode.stale_member_epoch, -2)
        unknown = await fetch(version, member_id="x", member_epoch=1)
        assert unknown == (ErrorCode.unknown_member_id, -2)
    assert await commit(8, 1) is ErrorCode.unsupported_version
    assert await fetch(8) == (ErrorCode.none, 5)
    topics = ({"name": "t", "partitions": ({"partition_index": 0},)},)
    deleted = await wire.ask(OFFSET_DELETE, 0, group_id="g", topics=topics)
    assert deleted.topics[0].partitions[0].error_code is ErrorCode.group_subscribed_to_topic
    (result,) = (await wire.ask(DELETE, 2, groups_names=("g",))).results
    assert result.error_code is ErrorCode.non_empty_group
    await beat(wire, "a", -1)
    (result,) = (await wire.ask(DELETE, 2, groups_names=("g",))).results
    assert result.error_code is ErrorCode.none
