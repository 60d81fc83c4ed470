"""Admin calls for ACLs, against a real node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tidelog import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    Admin,
    PatternType,
    ResourceType,
)
from tidelog.administering.acls import acl_text
from tidelog.errors import InvalidRequest, SecurityDisabled, SeveralFailed

from tests.support.node_process import NodeProcess


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a node with an authorizer."""
    config = {"authorizer.class.name": "tidelog.acl", "super.users": "User:ANONYMOUS"}
    with NodeProcess(tmp_path_factory.mktemp("acls") / "node", config=config) as node:
        yield node.address


def acl(name: str, operation: AclOperation = AclOperation.READ, **fields: object) -> Acl:
    one = Acl(
        ResourceType.TOPIC,
        PatternType.LITERAL,
        name,
        "User:alice",
        "*",
        operation,
        AclPermission.ALLOW,
    )
    return one._replace(**fields)  # type: ignore[arg-type]


async def test_acls_are_created_described_and_deleted(address: str) -> None:
    acls = [
        acl("a"),
        acl("a", AclOperation.WRITE, host="10.0.0.1"),
        acl("b", pattern_type=PatternType.PREFIXED, permission=AclPermission.DENY),
        acl("g", resource_type=ResourceType.GROUP, principal="Group:sales"),
    ]
    async with Admin(address) as admin:
        assert await admin.describe_acls() == []
        await admin.create_acls([*acls, acls[0]])
        await admin.create_acls(acls[:2])
        assert await admin.describe_acls() == sorted(acls)
        about = AclFilter(ResourceType.TOPIC, PatternType.MATCH, "bee")
        assert await admin.describe_acls(about) == [acls[2]]
        assert await admin.delete_acls([about, about, AclFilter(name="none")]) == [acls[2]]
        await admin.create_acls([])
        assert await admin.delete_acls([]) == []
        assert len(await admin.describe_acls()) == 3
        assert set(await admin.delete_acls([AclFilter()])) == {acls[0], acls[1], acls[3]}


async def test_wrong_acls_are_named_and_the_others_created(address: str) -> None:
    async with Admin(address) as admin:
        with pytest.raises(InvalidRequest, match=r"READ on TOPIC t to alice.*principal"):
            await admin.create_acls([acl("t", principal="alice"), acl("right")])
        with pytest.raises(SeveralFailed, match="kafka-cluster"):
            await admin.create_acls([acl(""), acl("c", resource_type=ResourceType.CLUSTER)])
        assert await admin.delete_acls([AclFilter()]) == [acl("right")]


def test_programs_without_a_loop_have_the_same_calls(address: str) -> None:
    with Admin(address).sync() as admin:
        admin.create_acls([acl("sync")])
        assert admin.describe_acls() == admin.delete_acls([AclFilter()]) == [acl("sync")]


async def test_without_an_authorizer_the_error_says_what_to_set(node: NodeProcess) -> None:
    async with Admin(node.address) as admin:
        for call in (
            admin.describe_acls(),
            admin.create_acls([acl("t")]),
            admin.delete_acls([AclFilter()]),
        ):
            with pytest.raises(SecurityDisabled, match=r"authorizer\.class\.name"):
                await call


def test_an_acl_is_told_in_a_line() -> None:
    prefixed = acl("a", pattern_type=PatternType.PREFIXED, host="10.0.0.1")
    assert acl_text(acl("a")) == "ALLOW READ on TOPIC a to User:alice from any host"
    assert acl_text(prefixed) == "ALLOW READ on TOPIC a* to User:alice from 10.0.0.1"
