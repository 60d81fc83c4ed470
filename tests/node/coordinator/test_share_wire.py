"""KIP-932's requests as bytes, and what share groups mean to the requests about any group."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.node.coordinator.test_consumer_wire import CONSUMER_DESCRIBE, partitions_of
from tests.node.coordinator.test_consumer_wire import enter as enter_consumer
from tests.node.coordinator.wire import DELETE, DESCRIBE, LIST, Wire
from tests.support.coordinator_node import topic_id

HEARTBEAT, SHARE_DESCRIBE = 76, 77
DESCRIBE_OFFSETS, ALTER_OFFSETS, DELETE_OFFSETS = 90, 91, 92


async def beat(wire: Wire, member: str, epoch: int, **fields: Any) -> Any:
    given = {"group_id": "g", "subscribed_topic_names": None, **fields}
    return await wire.ask(HEARTBEAT, 1, member_id=member, member_epoch=epoch, **given)


async def enter(wire: Wire, member: str, **fields: Any) -> Any:
    return await beat(wire, member, 0, **{"subscribed_topic_names": ("t",), **fields})


async def test_a_member_joins_is_given_partitions_and_leaves(wire: Wire) -> None:
    answer = await enter(wire, "mine")
    assert (answer.error_code, answer.member_id) == (ErrorCode.none, "mine")
    assert (answer.member_epoch, answer.heartbeat_interval) == (1, timedelta(seconds=5))
    assert partitions_of(answer.assignment) == {topic_id("t"): (0, 1)}
    again = await beat(wire, "mine", 1)
    assert (again.error_code, again.assignment) == (ErrorCode.none, None)
    left = await beat(wire, "mine", -1)
    assert (left.error_code, left.member_epoch) == (ErrorCode.none, -1)


@pytest.mark.parametrize(
    ("member", "epoch", "fields", "code", "message"),
    [
        ("", 1, {}, "invalid_request", "MemberId can't be empty."),
        (" ", -1, {}, "invalid_request", "MemberId can't be empty."),
        ("", 0, {"group_id": ""}, "invalid_request", "MemberId can't be empty."),
        ("m", 1, {"group_id": " "}, "invalid_request", "GroupId can't be empty."),
        ("m", 1, {"rack_id": ""}, "invalid_request", "RackId can't be empty."),
        ("m", -2, {}, "invalid_request", "MemberEpoch is invalid."),
        ("m", 0, {}, "invalid_request", "SubscribedTopicNames must be set in first request."),
        (
            "m",
            0,
            {"subscribed_topic_names": ()},
            "invalid_request",
            "SubscribedTopicNames must be set in first request.",
        ),
        ("m", 1, {"group_id": "x"}, "group_id_not_found", "Share group x not found."),
        ("m", -1, {"group_id": "x"}, "group_id_not_found", "Group x not found."),
        ("m", 1, {"group_id": "c"}, "group_id_not_found", "Group c is not a share group."),
        ("m", 1, {"group_id": "n"}, "group_id_not_found", "Group n is not a share group."),
        ("m", 1, {}, "unknown_member_id", "Member m is not a member of group g."),
        ("a", 9, {}, "fenced_member_epoch", "greater member epoch (9) than the one known by"),
        ("a", 1, {}, "fenced_member_epoch", "does not match the previous member epoch (2)"),
    ],
)
async def test_every_refusal_has_its_code_and_says_why(
    wire: Wire, member: str, epoch: int, fields: dict[str, Any], code: str, message: str
) -> None:
    await enter(wire, "a")
    for known, topics in ((1, ("t", "u")), (2, ("t",))):
        await beat(wire, "a", known, subscribed_topic_names=topics)
    await wire.stable("c")
    await enter_consumer(wire, "n", group_id="n")
    answer = await beat(wire, member, epoch, **fields)
    assert answer.error_code is ErrorCode[code]
    assert message in answer.error_message
    assert (answer.member_id, answer.assignment) == (None, None)


async def test_a_share_group_is_described_to_those_who_ask_for_one(wire: Wire) -> None:
    await enter(wire, "a", rack_id="r")
    await wire.stable("c")
    answer = await wire.ask(SHARE_DESCRIBE, 1, group_ids=("g", "c", "x", ""))
    group, classic, unknown, empty = answer.groups
    assert (group.error_code, group.group_state) == (ErrorCode.none, "Stable")
    assert (group.group_epoch, group.assignment_epoch, group.assignor_name) == (1, 1, "simple")
    (member,) = group.members
    assert (member.member_id, member.rack_id, member.member_epoch) == ("a", "r", 1)
    assert (member.client_id, member.client_host) == ("client", "/127.0.0.1")
    assert member.subscribed_topic_names == ("t",)
    (assigned,) = member.assignment.topic_partitions
    assert (assigned.topic_name, assigned.partitions) == ("t", (0, 1))
    for other, message in (
        (classic, "Group c is not a share group."),
        (unknown, "Group x not found."),
    ):
        assert other.error_code is ErrorCode.group_id_not_found
        assert other.error_message == message
    assert empty.error_code is ErrorCode.invalid_group_id
    (consumers,) = (await wire.ask(CONSUMER_DESCRIBE, 1, group_ids=("g",))).groups
    assert consumers.error_message == "Group g is not a consumer group."
    (classic,) = (await wire.ask(DESCRIBE, 6, groups=("g",))).groups
    assert (classic.group_state, classic.error_message) == (
        "Dead",
        "Group g is not a classic group.",
    )


async def test_share_groups_are_listed_by_type_and_state_and_deleted_when_empty(wire: Wire) -> None:
    await enter(wire, "a")
    await wire.stable("c")

    async def listed(**filters: tuple[str, ...]) -> list[tuple[str, str, str]]:
        answer = await wire.ask(LIST, 5, **filters)
        return [(g.group_id, g.group_type, g.group_state) for g in answer.groups]

    assert await listed(types_filter=("Share",)) == [("g", "share", "Stable")]
    assert await listed(states_filter=("empty",)) == []
    deleted = await wire.ask(DELETE, 2, groups_names=("g",))
    assert deleted.results[0].error_code is ErrorCode.non_empty_group
    await beat(wire, "a", -1)
    assert await listed(states_filter=("empty",)) == [("g", "share", "Empty")]
    deleted = await wire.ask(DELETE, 2, groups_names=("g",))
    assert deleted.results[0].error_code is ErrorCode.none
    assert await listed(types_filter=("share",)) == []


async def test_offsets_of_a_share_group_are_described_altered_and_deleted(wire: Wire) -> None:
    await enter(wire, "a")

    async def told(group: str = "g") -> Any:
        answer = await wire.ask(DESCRIBE_OFFSETS, 0, groups=[{"group_id": group, "topics": None}])
        return answer.groups[0]

    async def alter(**offsets: dict[int, int]) -> Any:
        topics = [
            {
                "topic_name": topic,
                "partitions": [
                    {"partition_index": number, "start_offset": offset}
                    for number, offset in some.items()
                ],
            }
            for topic, some in offsets.items()
        ]
        return await wire.ask(ALTER_OFFSETS, 0, group_id="g", topics=topics)

    async def forget(*topics: str) -> Any:
        wanted = [{"topic_name": topic} for topic in topics]
        return await wire.ask(DELETE_OFFSETS, 0, group_id="g", topics=wanted)

    def offsets(group: Any) -> dict[tuple[str, int], int]:
        return {
            (topic.topic_name, p.partition_index): p.start_offset
            for topic in group.topics
            for p in topic.partitions
        }

    assert offsets(await told()) == {("t", 0): -1, ("t", 1): -1}
    refused = await alter(t={0: 3})
    for answer in (refused, refused.responses[0].partitions[0], await forget("t")):
        assert answer.error_code is ErrorCode.non_empty_group
        assert answer.error_message == "The group is not empty."
    await beat(wire, "a", -1)

    altered = await alter(t={0: 3, 1: 0, 7: 0}, nowhere={0: 0})
    assert altered.error_code is ErrorCode.none
    known, unknown = altered.responses
    assert (known.topic_id, unknown.topic_id) == (topic_id("t"), None)
    assert [p.error_code.name for p in known.partitions] == [
        "none",
        "none",
        "unknown_topic_or_partition",
    ]
    assert unknown.partitions[0].error_code is ErrorCode.unknown_topic_or_partition
    assert offsets(await told()) == {("t", 0): 3, ("t", 1): 0}
    assert (await told("other")).topics == ()
    assert (await told("")).error_code is ErrorCode.invalid_group_id

    deleted = await forget("t", "u", "nowhere")
    assert [(a.error_code.name, a.error_message) for a in deleted.responses] == [
        ("none", None),
        ("unknown_topic_or_partition", "There is no offset information to delete."),
        (
            "unknown_topic_or_partition",
            "This server does not host this topic-partition.",
        ),
    ]
    assert deleted.responses[0].topic_id == topic_id("t")
    assert offsets(await told()) == {}
