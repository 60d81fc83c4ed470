"""Programs that give one thing where several are asked for, or a value of another type.

Python takes a text for a list of characters: ``delete_topics("ab")`` deleted two topics.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from tidelog import Admin, Consumer, NewTopic, QuotaEntity, TopicPartition
from tidelog.errors import InvalidRequest, UnsupportedVersion
from tidelog.wire.requests import API_VERSIONS, FIND_COORDINATOR, LIST_GROUPS, METADATA

from tests.sdk.scripted_node import TOPIC, ScriptedNode, of, versions
from tests.sdk.test_answers_that_lack_entries import ACL

# Types are checked by nobody at run time, so anything may come.
ALONE: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "create_topics": lambda admin: admin.create_topics(NewTopic("a")),
    "delete_topics": lambda admin: admin.delete_topics("ab"),
    "describe_topics": lambda admin: admin.describe_topics("ab"),
    "delete_records": lambda admin: admin.delete_records({"ab": 1}),
    "list_offsets": lambda admin: admin.list_offsets({"ab": 1}),
    "describe_several_configs": lambda admin: admin.describe_several_configs("topic", "ab"),
    "describe_configs": lambda admin: admin.describe_configs("topic", "a", keys="k"),
    "alter_configs": lambda admin: admin.alter_configs("topic", "a", delete="k"),
    "describe_log_dirs": lambda admin: admin.describe_log_dirs(1),
    "alter_reassignments": lambda admin: admin.alter_reassignments({(TOPIC, 0): "12"}),
    "alter_reassignments of a node": lambda admin: admin.alter_reassignments({(TOPIC, 0): 1}),
    "elect_leaders": lambda admin: admin.elect_leaders((TOPIC, 0)),
    "elect_leaders of a partition": lambda admin: admin.elect_leaders(TopicPartition(TOPIC, 0)),
    "list_groups by state": lambda admin: admin.list_groups(states="Stable"),
    "list_groups by type": lambda admin: admin.list_groups(types="classic"),
    "describe_groups": lambda admin: admin.describe_groups("gg"),
    "delete_groups": lambda admin: admin.delete_groups("gg"),
    "list_group_offsets": lambda admin: admin.list_group_offsets("g", (TOPIC, 0)),
    "alter_group_offsets": lambda admin: admin.alter_group_offsets("g", {"ab": 1}),
    "reset_group_offsets": lambda admin: admin.reset_group_offsets("g", (TOPIC, 0), to="latest"),
    "delete_group_offsets": lambda admin: admin.delete_group_offsets("g", (TOPIC, 0)),
    "list_share_group_offsets": lambda admin: admin.list_share_group_offsets("g", (TOPIC, 0)),
    "alter_share_group_offsets": lambda admin: admin.alter_share_group_offsets("g", {"ab": 1}),
    "delete_share_group_offsets": lambda admin: admin.delete_share_group_offsets("g", "ab"),
    "list_transactions": lambda admin: admin.list_transactions(states="Ongoing"),
    "list_transactions of one": lambda admin: admin.list_transactions(producer_ids=7),
    "describe_transactions": lambda admin: admin.describe_transactions("xx"),
    "describe_producers": lambda admin: admin.describe_producers((TOPIC, 0)),
    "abort_transaction": lambda admin: admin.abort_transaction(TOPIC, start_offset=1),
    "describe_users": lambda admin: admin.describe_users("alice"),
    "set_password": lambda admin: admin.set_password("a", "b", mechanisms="SCRAM-SHA-256"),
    "create_acls": lambda admin: admin.create_acls(ACL),
    "delete_acls": lambda admin: admin.delete_acls(ACL),
    "describe_roles": lambda admin: admin.describe_roles("ab"),
    "describe_roles of members": lambda admin: admin.describe_roles(members="User:a"),
    "create_role": lambda admin: admin.create_role("r", "User:a"),
    "change_role": lambda admin: admin.change_role("r", added="User:a"),
    "create_delegation_token": lambda admin: admin.create_delegation_token(renewers="User:a"),
    "describe_delegation_tokens": lambda admin: admin.describe_delegation_tokens("User:a"),
}
OF_ANOTHER_TYPE: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "a topic's name": lambda admin: admin.create_topic(5),
    "a count": lambda admin: admin.create_topic("a", partition_count="3"),
    "a config of a topic": lambda admin: admin.create_topic("a", configs={"k": 5}),
    "a config": lambda admin: admin.alter_configs("topic", "a", set={"retention.ms": 5}),
    "a group": lambda admin: admin.list_group_offsets(None),
    "a partition": lambda admin: admin.elect_leaders([(TOPIC, "0")]),
    "a quota": lambda admin: admin.alter_quotas({QuotaEntity(5): {"request_percentage": 1}}),
}


async def refused(call: Callable[[Any], Awaitable[Any]]) -> InvalidRequest:
    """Make the call; it must be refused before a request about it is sent."""
    async with ScriptedNode() as node, Admin(node.address, timeout_ms=5_000) as admin:
        with pytest.raises(InvalidRequest) as error:
            await call(admin)
        before = {API_VERSIONS.key, METADATA.key, FIND_COORDINATOR.key}
        assert set(node.counts) <= before
        await admin.list_topics()  # The connection is as it was.
        assert node.connection_count == 1
        return error.value


@pytest.mark.parametrize("name", ALONE)
async def test_one_thing_is_not_taken_for_a_list_of_things(name: str) -> None:
    error = await refused(ALONE[name])
    assert "alone" in str(error) or "(topic, number)" in str(error)


@pytest.mark.parametrize("name", OF_ANOTHER_TYPE)
async def test_a_value_of_another_type_is_refused(name: str) -> None:
    await refused(OF_ANOTHER_TYPE[name])


@pytest.mark.parametrize("given", ["ab", (TOPIC, 0), TopicPartition(TOPIC, 0), [TOPIC], [(TOPIC,)]])
async def test_a_consumer_refuses_what_is_no_list_of_partitions(given: Any) -> None:
    async with ScriptedNode() as node, Consumer(node.address, group_id="g") as consumer:
        for call in (
            consumer.beginning_offsets,
            consumer.end_offsets,
            consumer.committed,
        ):
            with pytest.raises(InvalidRequest, match=r"alone|\(topic, number\)"):
                await call(given)
        with pytest.raises(InvalidRequest, match=r"alone|\(topic, number\)"):
            consumer.assign(given)


async def test_numbers_of_partitions_may_be_numpys() -> None:
    """As they come out of a table."""
    async with ScriptedNode() as node, Consumer(node.address) as consumer:
        consumer.assign([(TOPIC, np.int64(0))])
        assert consumer.assignment() == {TopicPartition(TOPIC, 0)}
        assert await consumer.end_offsets([(TOPIC, np.int32(0))]) == {TopicPartition(TOPIC, 0): 0}


@pytest.mark.parametrize(
    ("version", "filters"),
    [(3, {"states": ["Stable"]}), (4, {"types": ["classic"]}), (4, {"states": ["Stable"]})],
)
async def test_a_filter_that_a_node_does_not_have_is_not_left_out(
    version: int, filters: dict[str, list[str]]
) -> None:
    """All groups came back, as if they were in that state."""
    async with ScriptedNode(list_groups=lambda _: of(LIST_GROUPS)) as node:
        node.set(API_VERSIONS, lambda _: versions({LIST_GROUPS.key: (0, version)}))
        async with Admin(node.address) as admin:
            assert await admin.list_groups() == []
            if version == 4 and "states" in filters:
                assert await admin.list_groups(**filters) == []
            else:
                with pytest.raises(UnsupportedVersion, match="list_groups"):
                    await admin.list_groups(**filters)
