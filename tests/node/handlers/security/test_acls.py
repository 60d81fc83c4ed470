"""DescribeAcls, CreateAcls and DeleteAcls, over the wire formats. ``tests/kafka`` compares."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.admin.security import acls as acl_admin
from tidelog_core.config import NodeConfig
from tidelog_core.errors import ErrorCode

from tests.node.handlers.control_plane import Node, cluster
from tests.node.handlers.unsteady_store import one_node
from tests.support.acls import (
    ALL,
    ANY,
    CLUSTER,
    CREATE_TOKENS,
    DENY,
    GROUP,
    MATCH,
    PREFIXED,
    TOPIC,
    USER,
    WRITE,
    acl_filter,
    creation,
)

DESCRIBE, CREATE, DELETE = 29, 30, 31
WITH_ACLS = NodeConfig(authorizer_class_name="tidelog.acl")
NONE, INVALID = ErrorCode.none, ErrorCode.invalid_request


@asynccontextmanager
async def nodes_with_acls(path: Path, count: int = 1) -> AsyncIterator[list[Node]]:
    """Run nodes whose settings name an authorizer."""
    async with cluster(path, nodes=count, static=WITH_ACLS) as nodes:
        yield nodes


async def create(node: Node, *creations: dict[str, Any], version: int = 3) -> list[Any]:
    """Return the code and text of each."""
    answer = await node.ask(CREATE, version, creations=list(creations))
    return [(one.error_code, one.error_message) for one in answer.results]


async def describe(node: Node, version: int = 3, **fields: Any) -> list[tuple[Any, ...]]:
    """Return the ACLs that the filter fits: resource, name, pattern, principal, operation."""
    answer = await node.ask(DESCRIBE, version, **acl_filter(**fields))
    assert (answer.error_code, answer.error_message) == (NONE, None)
    return [
        (one.resource_type, one.resource_name, one.pattern_type, acl.principal, acl.operation)
        for one in answer.resources
        for acl in one.acls
    ]


async def delete(node: Node, *filters: dict[str, Any], version: int = 3) -> list[Any]:
    """Return the names of the deleted ACLs of each filter, or its error."""
    answer = await node.ask(DELETE, version, filters=list(filters))
    for result in answer.filter_results:
        assert all(one.error_code is NONE for one in result.matching_acls)
    return [
        [one.resource_name for one in result.matching_acls]
        if result.error_code is NONE
        else (result.error_code, result.error_message)
        for result in answer.filter_results
    ]


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_created_acls_are_described_and_deleted_at_every_node(
    tmp_path: Path, version: int
) -> None:
    async with nodes_with_acls(tmp_path, 2) as (one, other):
        created = await create(
            one,
            creation("a"),
            creation("a", operation=WRITE, principal="Group:sales"),
            creation("a", resource_pattern_type=PREFIXED, permission_type=DENY, host="10.0.0.1"),
            creation("g", resource_type=GROUP),
            version=version,
        )
        assert created == [(NONE, None)] * 4
        for node in (one, other):
            assert await describe(node, version) == [
                (TOPIC, "a", 3, "Group:sales", WRITE),
                (TOPIC, "a", 3, "User:alice", 3),
                (TOPIC, "a", PREFIXED, "User:alice", 3),
                (GROUP, "g", 3, "User:alice", 3),
            ]
        matched = acl_filter("about", resource_type_filter=TOPIC, pattern_type_filter=MATCH)
        assert await delete(other, matched, acl_filter("none"), version=version) == [["a"], []]
        assert len(await describe(one, version)) == 3


async def test_fields_of_an_acl_come_back_as_they_were_created(tmp_path: Path) -> None:
    async with nodes_with_acls(tmp_path) as (node,):
        given = creation(
            "ë", resource_type=USER, principal="User:CN=a,O=b", host="::1", operation=CREATE_TOKENS
        )
        await create(node, given)
        (resource,) = (await node.ask(DESCRIBE, 3, **acl_filter())).resources
        (acl,) = resource.acls
        (result,) = (await node.ask(DELETE, 3, filters=[acl_filter()])).filter_results
        (deleted,) = result.matching_acls
        entry = ("principal", "host", "operation", "permission_type")
        for pattern, one in ((resource, acl), (deleted, deleted)):
            assert given == {
                "resource_type": pattern.resource_type,
                "resource_name": pattern.resource_name,
                "resource_pattern_type": pattern.pattern_type,
                **{name: getattr(one, name) for name in entry},
            }


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"resource_type": 0}, "Invalid resourceType UNKNOWN"),
        ({"resource_type": ANY}, "Invalid resourceType ANY"),
        ({"resource_type": 99}, "Invalid resourceType UNKNOWN"),
        ({"resource_pattern_type": 0}, "Invalid patternType UNKNOWN"),
        ({"resource_pattern_type": MATCH}, "Invalid patternType MATCH"),
        ({"operation": 0}, "Invalid operation UNKNOWN"),
        ({"operation": ANY}, "Invalid operation ANY"),
        ({"operation": -1}, "Invalid operation UNKNOWN"),
        ({"permission_type": 4}, "Invalid permissionType UNKNOWN"),
        ({"permission_type": ANY}, "Invalid permissionType ANY"),
        ({"resource_name": ""}, "should not be empty"),
        ({"principal": "alice"}, "Could not parse principal"),
        ({"resource_type": CLUSTER}, "kafka-cluster"),
        ({"resource_name": "x" * 1001}, "1000"),
    ],
)
async def test_wrong_acl_is_refused_and_the_others_are_created(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    async with nodes_with_acls(tmp_path) as (node,):
        first, (code, text), last = await create(
            node, creation("a"), creation(**{"name": "t", **fields}), creation("b")
        )
        assert first == last == (NONE, None)
        assert code is INVALID
        assert said in text
        assert [row[1] for row in await describe(node)] == ["a", "b"]


async def test_filters_with_unknown_numbers_delete_nothing(tmp_path: Path) -> None:
    async with nodes_with_acls(tmp_path) as (node,):
        await create(node, creation("a"))
        results = await delete(
            node,
            acl_filter(resource_type_filter=0),
            acl_filter(pattern_type_filter=99),
            acl_filter(operation=77),
            acl_filter("x"),
            acl_filter(permission_type=-5),
        )
        patterns, entries = (INVALID, "Unknown patternFilter."), (INVALID, "Unknown entryFilter.")
        assert results == [patterns, patterns, entries, [], entries]
        assert len(await describe(node)) == 1


async def test_types_of_a_newer_client_describe_nothing(tmp_path: Path) -> None:
    async with nodes_with_acls(tmp_path) as (node,):
        await create(node, creation("a", operation=ALL))
        for field in ("resource_type_filter", "pattern_type_filter", "operation"):
            assert await describe(node, **{field: 99}) == []
            answer = await node.ask(DESCRIBE, 3, **acl_filter(**{field: 0}))
            assert (answer.error_code, answer.resources) == (INVALID, ())


async def test_without_an_authorizer_nobody_sees_or_changes_acls(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (node,):
        disabled = ErrorCode.security_disabled
        described = await node.ask(DESCRIBE, 3, **acl_filter())
        created = await create(node, creation("a"), creation("", operation=99))
        deleted = await delete(node, acl_filter(), acl_filter(operation=99))
        assert (described.error_code, described.resources) == (disabled, ())
        for code, text in (*created, *deleted, (described.error_code, described.error_message)):
            assert code is disabled
            assert "authorizer.class.name" in text
        assert not (await node.view.refresh()).acls.records


async def test_too_many_changes_are_refused_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes_with_acls(tmp_path) as (node,):
        await create(node, creation("a"), creation("b"))
        monkeypatch.setattr(acl_admin, "CHANGES_MAX", 1)
        assert {code for code, _ in await create(node, creation("c"), creation("d"))} == {INVALID}
        assert [code for code, _ in await delete(node, acl_filter(), acl_filter("a"))] == [
            INVALID,
            INVALID,
        ]
        assert [row[1] for row in await describe(node)] == ["a", "b"]


async def test_store_that_is_away_is_reported_for_each_change(tmp_path: Path) -> None:
    store, node = await one_node(tmp_path, WITH_ACLS)
    assert await create(node, creation("a")) == [(NONE, None)]
    store.is_unreadable = True
    assert [code for code, _ in await create(node, creation("b"), creation("c"))] == [
        ErrorCode.request_timed_out
    ] * 2
    assert [code for code, _ in await delete(node, acl_filter())] == [ErrorCode.request_timed_out]
    assert [row[1] for row in await describe(node)] == ["a"], "as the image had them"
    store.is_unreadable = False
    store.is_away_after_commit = True
    assert await create(node, creation("b")) == [(NONE, None)], "what was committed is done"
    await store.close()
