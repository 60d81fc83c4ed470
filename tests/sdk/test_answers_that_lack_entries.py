"""Admin calls whose answers lack what was asked for, or have what nobody asked for.

``CALLS`` has every call that asks for things by name, ``NAMELESS`` every other one.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tidelog import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    Admin,
    NewTopic,
    OffsetAndMetadata,
    PatternType,
    QuotaEntity,
    ResourceType,
    TopicPartition,
)
from tidelog.administering.sync_admin import SyncAdmin
from tidelog.errors import EntryNotAnswered, PolicyViolation, SeveralFailed, TidelogError
from tidelog.sync import Blocking
from tidelog.wire import requests
from tidelog.wire.requests import Api
from tidelog_core.message_schemas import load_response_schema
from tidelog_core.wire_messages import build

from tests.sdk.scripted_node import HOST, NODE_ID, ScriptedNode, of

NONE, REFUSED = ErrorCode.none, ErrorCode.policy_violation
T0, T1 = ("t", 0), ("t", 1)
BOTH = (T0, T1)
ACL = Acl(
    ResourceType.TOPIC,
    PatternType.LITERAL,
    "a",
    "User:a",
    "*",
    AclOperation.READ,
    AclPermission.ALLOW,
)
_TOPICS = "topics.name partitions.partition_index"


@dataclasses.dataclass(frozen=True)
class Call:
    """A call that asks for things by name, and where the node's answer has them."""

    make: Callable[[Admin], Awaitable[Any]]
    api: Api
    path: str  # the lists of the answer, each with the field that names its entries
    names: tuple[Any, ...]
    shown: str = ""  # the last name in an error, if it is not the name itself
    asked_count: int = 1  # how many answers may lack entries before the call fails
    stranger: Any = None  # another name, if it has another form

    def answer(self, codes: list[tuple[Any, ErrorCode]]) -> Any:
        """Return an answer with these entries."""
        schema: Any = load_response_schema(self.api.key, self.api.max_version)
        levels = [tuple(level.split(".")) for level in self.path.split()]
        return _filled(schema, levels, [(_path(name), code) for name, code in codes])


def _path(name: Any) -> tuple[Any, ...]:
    return name if type(name) is tuple else (name,)


def _filled(cls: Any, levels: list[tuple[str, ...]], codes: list[tuple[Any, ErrorCode]]) -> Any:
    (field, *naming), *inner = levels
    entry = typing.get_args(typing.get_type_hints(cls)[field])[0]
    if not inner:
        made = [
            build(entry, **_named(entry, naming, path), error_code=code) for path, code in codes
        ]
        return build(cls, **{field: tuple(made)})
    groups: dict[Any, list[tuple[Any, ErrorCode]]] = {}
    for path, code in codes:
        groups.setdefault(path[0], []).append((path[1:], code))
    outer = []
    for name, within in groups.items():
        lists = getattr(_filled(entry, inner, within), inner[0][0])
        outer.append(build(entry, **_named(entry, naming, (name,)), **{inner[0][0]: lists}))
    return build(cls, **{field: tuple(outer)})


def _named(entry: Any, naming: list[str], path: tuple[Any, ...]) -> dict[str, Any]:
    if not naming:
        return {}
    if naming != ["entity"]:
        return {naming[0]: path[0]}
    part = typing.get_args(typing.get_type_hints(entry)["entity"])[0]
    return {"entity": (build(part, entity_type="user", entity_name=path[0]),)}


async def _abort(admin: Admin) -> None:
    await admin.abort_transaction(T0, start_offset=5)


async def _failing(errors: Awaitable[Mapping[Any, TidelogError | None]]) -> None:
    """Raise what a call returns for each thing."""
    failed = {str(name): error for name, error in (await errors).items() if error is not None}
    if len(failed) == 1:
        raise next(iter(failed.values()))
    if failed:
        raise SeveralFailed(failed)


CALLS = {
    "create_topic": Call(
        lambda admin: admin.create_topic("a"), requests.CREATE_TOPICS, "topics.name", ("a",)
    ),
    "create_topics": Call(
        lambda admin: admin.create_topics([NewTopic("a"), NewTopic("b")]),
        requests.CREATE_TOPICS,
        "topics.name",
        ("a", "b"),
    ),
    "delete_topics": Call(
        lambda admin: admin.delete_topics(["a", "b"]),
        requests.DELETE_TOPICS,
        "responses.name",
        ("a", "b"),
    ),
    "describe_topics": Call(
        lambda admin: admin.describe_topics(["a", "b"]),
        requests.METADATA,
        "topics.name",
        ("a", "b"),
    ),
    "create_partitions": Call(
        lambda admin: admin.create_partitions({"a": 2, "b": 3}),
        requests.CREATE_PARTITIONS,
        "results.name",
        ("a", "b"),
    ),
    "delete_records": Call(
        lambda admin: admin.delete_records({T0: 1, T1: 1}),
        requests.DELETE_RECORDS,
        _TOPICS,
        BOTH,
        shown="t-1",
    ),
    "list_offsets": Call(
        lambda admin: admin.list_offsets({T0: 1, T1: 1}),
        requests.LIST_OFFSETS,
        _TOPICS,
        BOTH,
        shown="t-1",
        asked_count=2,
    ),
    "describe_configs": Call(
        lambda admin: admin.describe_configs("topic", "a"),
        requests.DESCRIBE_CONFIGS,
        "results.resource_name",
        ("a",),
    ),
    "describe_several_configs": Call(
        lambda admin: admin.describe_several_configs("topic", ["a", "b"]),
        requests.DESCRIBE_CONFIGS,
        "results.resource_name",
        ("a", "b"),
    ),
    "alter_configs": Call(
        lambda admin: admin.alter_configs("topic", "a", set={"k": "v"}),
        requests.INCREMENTAL_ALTER_CONFIGS,
        "responses.resource_name",
        ("a",),
    ),
    "alter_reassignments": Call(
        lambda admin: _failing(admin.alter_reassignments({T0: [1], T1: None})),
        requests.ALTER_PARTITION_REASSIGNMENTS,
        "responses.name partitions.partition_index",
        BOTH,
        shown="t-1",
    ),
    "elect_leaders": Call(
        lambda admin: _failing(admin.elect_leaders(BOTH)),
        requests.ELECT_LEADERS,
        "replica_election_results.topic partition_result.partition_id",
        BOTH,
        shown="t-1",
    ),
    "describe_groups": Call(
        lambda admin: admin.describe_groups(["g"]),
        requests.DESCRIBE_GROUPS,
        "groups.group_id",
        ("g",),
        shown="group 'g'",
    ),
    "delete_groups": Call(
        lambda admin: admin.delete_groups(["g"]),
        requests.DELETE_GROUPS,
        "results.group_id",
        ("g",),
        shown="group 'g'",
    ),
    "list_group_offsets": Call(
        lambda admin: admin.list_group_offsets("g", BOTH),
        requests.OFFSET_FETCH,
        f"groups.group_id {_TOPICS}",
        (("g", *T0), ("g", *T1)),
        shown="t-1",
        asked_count=2,
        stranger=("g", "stranger", 0),
    ),
    "alter_group_offsets": Call(
        lambda admin: admin.alter_group_offsets("g", {T0: 1, T1: 1}),
        requests.OFFSET_COMMIT,
        _TOPICS,
        BOTH,
        shown="t-1",
        asked_count=2,
    ),
    "delete_group_offsets": Call(
        lambda admin: admin.delete_group_offsets("g", BOTH),
        requests.OFFSET_DELETE,
        _TOPICS,
        BOTH,
        shown="t-1",
    ),
    "list_share_group_offsets": Call(
        lambda admin: admin.list_share_group_offsets("g", BOTH),
        requests.DESCRIBE_SHARE_GROUP_OFFSETS,
        "groups.group_id topics.topic_name partitions.partition_index",
        (("g", *T0), ("g", *T1)),
        shown="t-1",
        stranger=("g", "stranger", 0),
    ),
    "alter_share_group_offsets": Call(
        lambda admin: admin.alter_share_group_offsets("g", {T0: 1, T1: 1}),
        requests.ALTER_SHARE_GROUP_OFFSETS,
        "responses.topic_name partitions.partition_index",
        BOTH,
        shown="t-1",
    ),
    "delete_share_group_offsets": Call(
        lambda admin: admin.delete_share_group_offsets("g", ["a", "b"]),
        requests.DELETE_SHARE_GROUP_OFFSETS,
        "responses.topic_name",
        ("a", "b"),
    ),
    "describe_transactions": Call(
        lambda admin: admin.describe_transactions(["x"]),
        requests.DESCRIBE_TRANSACTIONS,
        "transaction_states.transactional_id",
        ("x",),
        shown="transactional id 'x'",
    ),
    "describe_producers": Call(
        lambda admin: admin.describe_producers([T0]),
        requests.DESCRIBE_PRODUCERS,
        _TOPICS,
        (T0,),
        shown="t-0",
    ),
    "abort_transaction": Call(
        _abort,
        requests.WRITE_TXN_MARKERS,
        f"markers.producer_id {_TOPICS}",
        ((7, *T0),),
        shown="t-0",
        stranger=(8, *T0),
    ),
    "describe_users": Call(
        lambda admin: admin.describe_users(["a", "b"]),
        requests.DESCRIBE_USER_SCRAM_CREDENTIALS,
        "results.user",
        ("a", "b"),
    ),
    "set_password": Call(
        lambda admin: admin.set_password("a", "secret", mechanisms=["SCRAM-SHA-256"]),
        requests.ALTER_USER_SCRAM_CREDENTIALS,
        "results.user",
        ("a",),
    ),
    "delete_credentials": Call(
        lambda admin: admin.delete_credentials("a", ["SCRAM-SHA-256"]),
        requests.ALTER_USER_SCRAM_CREDENTIALS,
        "results.user",
        ("a",),
    ),
    "create_acls": Call(
        lambda admin: admin.create_acls([ACL, ACL._replace(name="b")]),
        requests.CREATE_ACLS,
        "results",
        ("a", "b"),
        shown="ALLOW READ on TOPIC b to User:a from any host",
    ),
    "delete_acls": Call(
        lambda admin: admin.delete_acls([AclFilter(), AclFilter(name="b")]),
        requests.DELETE_ACLS,
        "filter_results",
        ("a", "b"),
        shown="2",
    ),
    "create_role": Call(
        lambda admin: admin.create_role("a"), requests.ALTER_ROLES, "results.name", ("a",)
    ),
    "change_role": Call(
        lambda admin: admin.change_role("a", added=["User:b"]),
        requests.ALTER_ROLES,
        "results.name",
        ("a",),
    ),
    "delete_role": Call(
        lambda admin: admin.delete_role("a"), requests.ALTER_ROLES, "results.name", ("a",)
    ),
    "alter_quotas": Call(
        lambda admin: admin.alter_quotas(
            {QuotaEntity(user): {"request_percentage": 1.0} for user in ("a", "b")}
        ),
        requests.ALTER_CLIENT_QUOTAS,
        "entries.entity",
        ("a", "b"),
        shown="user b",
    ),
}
NAMELESS = {
    "list_topics": "all",
    "describe_cluster": "all",
    "describe_versions": "one answer a node",
    "describe_log_dirs": "one answer a node",
    "list_reassignments": "all",
    "list_groups": "those that filters fit",
    "group_lag": "by list_group_offsets and list_offsets",
    "reset_group_offsets": "by list_offsets and alter_group_offsets",
    "share_group_lag": "by list_share_group_offsets and list_offsets",
    "list_transactions": "those that filters fit",
    "find_hanging_transactions": "by describe_producers and describe_transactions",
    "create_delegation_token": "one token",
    "renew_delegation_token": "one token",
    "expire_delegation_token": "one token",
    "describe_delegation_tokens": "those that owners have",
    "describe_acls": "those that a filter fits",
    "describe_roles": "those of the names that are there",
    "describe_quotas": "those that an entity fits",
    "describe_quota_use": "the most used ones",
}


def test_every_admin_call_is_among_these() -> None:
    calls = {name for name, value in vars(SyncAdmin).items() if isinstance(value, Blocking)}
    assert CALLS.keys() | NAMELESS.keys() == calls
    assert not CALLS.keys() & NAMELESS.keys()


async def outcome(call: Call, codes: list[tuple[Any, ErrorCode]]) -> tuple[Exception | None, int]:
    """Make the call with this answer; return its error, and the number of requests."""
    async with ScriptedNode() as node:
        leaders = {0: NODE_ID, 1: NODE_ID}
        node.set(requests.METADATA, lambda _: node.metadata(partitions=leaders))
        node.set(requests.DESCRIBE_PRODUCERS, lambda _: _open_producer())
        async with Admin(node.address, timeout_ms=30_000) as admin:
            node.set(call.api, lambda _: call.answer(codes))
            before = node.count(call.api)
            try:
                await call.make(admin)
            except TidelogError as error:
                return error, node.count(call.api) - before
            return None, node.count(call.api) - before


def _open_producer() -> Any:
    api = requests.DESCRIBE_PRODUCERS
    producer = of(
        api,
        "ProducerState",
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        current_txn_start_offset=5,
    )
    partition = of(api, "PartitionResponse", partition_index=0, active_producers=(producer,))
    return of(api, topics=(of(api, "TopicResponse", name="t", partitions=(partition,)),))


@pytest.mark.parametrize("name", CALLS)
async def test_whole_answers_are_success(name: str) -> None:
    call = CALLS[name]
    assert await outcome(call, [(one, NONE) for one in call.names]) == (None, 1)


@pytest.mark.parametrize("name", CALLS)
async def test_an_entry_that_is_left_out_is_a_failure_that_names_it(name: str) -> None:
    call = CALLS[name]
    error, count = await outcome(call, [(one, NONE) for one in call.names[:-1]])
    assert isinstance(error, EntryNotAnswered)
    assert error.entries == (call.shown or call.names[-1],)
    assert str(error).endswith(f"the node's answer lacks {error.entries[0]}")
    assert ",:" not in str(error)
    # Whether a change was made is unknown: only calls that may be made twice are made again.
    assert count == call.asked_count


async def test_what_a_former_coordinator_leaves_out_is_asked_of_the_current_one() -> None:
    call = CALLS["list_group_offsets"]
    async with ScriptedNode() as former, ScriptedNode() as current:
        brokers = {NODE_ID: (HOST, former.port), NODE_ID + 1: (HOST, current.port)}
        former.set(requests.METADATA, lambda _: former.metadata(brokers))
        api = requests.FIND_COORDINATOR
        at = [NODE_ID, NODE_ID + 1]

        def coordinator(_: Any) -> Any:
            found = of(api, "Coordinator", key="g", node_id=at[0], host=HOST, port=former.port)
            del at[0]
            return of(api, coordinators=(found,))

        former.set(api, coordinator)
        current.set(api, coordinator)
        former.set(call.api, lambda _: call.answer([]))
        current.set(call.api, lambda _: call.answer([(one, NONE) for one in call.names]))
        async with Admin(former.address, timeout_ms=30_000) as admin:
            assert await admin.list_group_offsets("g", BOTH) == {
                TopicPartition(*at): OffsetAndMetadata(0) for at in BOTH
            }
        assert (former.count(call.api), current.count(call.api), at) == (1, 1, [])


async def test_what_a_former_leader_leaves_out_is_asked_of_the_current_one() -> None:
    call = CALLS["list_offsets"]
    async with ScriptedNode() as former, ScriptedNode() as current:
        brokers = {NODE_ID: (HOST, former.port), NODE_ID + 1: (HOST, current.port)}
        leader = NODE_ID

        def metadata(_: Any) -> Any:
            leaders = {0: NODE_ID, 1: leader}
            return former.metadata(brokers, partitions=leaders, leader_epoch=leader)

        def answer_without_it(_: Any) -> Any:
            nonlocal leader
            leader = NODE_ID + 1
            return call.answer([(T0, NONE)])

        former.set(requests.METADATA, metadata)
        current.set(requests.METADATA, metadata)
        former.set(call.api, answer_without_it)
        current.set(call.api, lambda _: call.answer([(T1, NONE)]))
        async with Admin(former.address, timeout_ms=30_000) as admin:
            assert len(await admin.list_offsets({T0: 1, T1: 1})) == 2
        assert (former.count(call.api), current.count(call.api)) == (1, 1)


@pytest.mark.parametrize("name", [n for n, c in CALLS.items() if "." in c.path])
async def test_entries_that_nobody_asked_for_are_ignored(name: str) -> None:
    call = CALLS[name]
    other = ("stranger", 0) if type(call.names[0]) is tuple else "stranger"
    stranger = call.stranger or other
    codes = [(stranger, REFUSED), *((one, NONE) for one in call.names), (stranger, NONE)]
    assert await outcome(call, codes) == (None, 1)
    error, _ = await outcome(call, codes[:-2])
    assert isinstance(error, EntryNotAnswered)


@pytest.mark.parametrize("name", [n for n, c in CALLS.items() if "." in c.path])
@pytest.mark.parametrize("codes", [(NONE, REFUSED), (REFUSED, NONE)])
async def test_an_error_counts_beside_another_entry_without_one(
    name: str, codes: tuple[ErrorCode, ErrorCode]
) -> None:
    call = CALLS[name]
    entries = [(one, NONE) for one in call.names[:-1]]
    error, count = await outcome(call, entries + [(call.names[-1], code) for code in codes])
    assert isinstance(error, PolicyViolation)
    assert count == 1
