"""``tidelog acl`` over a real node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.command import Outcome, called
from tests.support.node_process import NodeProcess


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a node with an authorizer and super users."""
    config = {
        "authorizer.class.name": "tidelog.acl",
        "super.users": "User:admin;User:ANONYMOUS",
    }
    with NodeProcess(tmp_path_factory.mktemp("acls") / "node", config=config) as node:
        yield node.address


def acl(address: str, *arguments: object, status: int = 0) -> Outcome:
    return called("acl", *arguments, bootstrap=address, status=status)


def listed(address: str, *arguments: object) -> Any:
    return acl(address, "list", *arguments, "--json").document


def test_acls_are_added_listed_and_removed(address: str) -> None:
    added = acl(
        address,
        *("add", "--topic", "orders", "--group", "billing", "--operation", "Read"),
        *("--allow-principal", "User:alice", "--allow-principal", "Group:sales"),
    ).lines
    assert added[0] == "added: ALLOW READ on TOPIC orders to User:alice from any host"
    assert len(added) == 4
    acl(
        address,
        *("add", "--topic", "or", "--resource-pattern-type", "prefixed", "--cluster"),
        *("--deny-principal", "User:*", "--deny-host", "10.0.0.1", "--deny-host", "::1"),
    )
    assert {row["pattern"] for row in listed(address, "--cluster")} == {"LITERAL"}
    lines = acl(address, "list").lines
    assert lines[0].split() == [
        *("RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION")
    ]
    assert len(lines) == 1 + 4 + 4
    about = ("--topic", "orders", "--resource-pattern-type", "match")
    assert {row["permission"] for row in listed(address, *about)} == {"ALLOW", "DENY"}
    assert {row["name"] for row in listed(address, "--topic", "orders")} == {"orders"}
    (one,) = listed(address, "--group", "billing", "--principal", "User:alice")
    assert one == {
        "resource": "GROUP",
        "name": "billing",
        "pattern": "LITERAL",
        "principal": "User:alice",
        "host": "*",
        "operation": "READ",
        "permission": "ALLOW",
    }
    removed = acl(address, "remove", "--topic", "orders", "--principal", "User:alice").lines
    assert removed == [
        "removed: ALLOW READ on TOPIC orders to User:alice from any host",
        "1 ACL removed",
    ]
    assert acl(address, "remove", "--topic", "or").lines == ["0 ACLs removed"]
    assert acl(address, "remove", "--principal", "User:*").lines[-1] == "4 ACLs removed"
    assert acl(address, "remove", "--principal", "Group:sales").lines[-1] == "2 ACLs removed"
    assert [row["name"] for row in listed(address)] == ["billing"]
    assert acl(address, "remove", "--group", "billing").lines[-1] == "1 ACL removed"


def explain(address: str, principal: str, *arguments: object, status: int) -> str:
    outcome = acl(
        address,
        *("explain", "--principal", principal, "--operation", "Describe"),
        *(arguments or ("--topic", "orders")),
        status=status,
    )
    (line,) = outcome.lines
    return line


def test_the_acl_that_decides_is_named(address: str) -> None:
    assert explain(address, "User:eve", status=1) == "denied: no ACL is about the resource"
    allow = ("--operation", "write", "--allow-principal", "User:alice")
    acl(address, "add", "--topic", "ord", "--resource-pattern-type", "prefixed", *allow)
    deny = ("--deny-principal", "Group:interns", "--deny-host", "10.0.0.1")
    acl(address, "add", "--topic", "*", *deny)
    allowed = "allowed: ALLOW WRITE on TOPIC ord* to User:alice from any host"
    assert explain(address, "User:alice", status=0) == allowed
    assert "no ACL about the resource allows" in explain(address, "User:eve", status=1)
    assert explain(address, "User:admin", status=0) == "allowed: a super user (super.users)"
    topic = ("--topic", "orders", "--principal", "Group:interns")
    assert explain(address, "User:alice", *topic, status=0) == allowed
    assert explain(address, "User:alice", *topic, "--host", "10.0.0.1", status=1) == (
        "denied: DENY ALL on TOPIC * to Group:interns from 10.0.0.1"
    )
    for kind in (("--group", "g"), ("--transactional-id", "x"), ("--cluster",)):
        assert explain(address, "User:alice", *kind, status=1).startswith("denied")
    acl(address, "remove", "--principal", "User:alice")
    acl(address, "remove", "--principal", "Group:interns")


WHO = ("--allow-principal", "User:alice")
ASKED = ("explain", "--principal", "User:a", "--operation", "Read")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "--topic", "t"), "--allow-principal or --deny-principal"),
        (("add", *WHO), "name a resource"),
        (("add", "--topic", "t", "--allow-principal", "alice"), "User:alice"),
        (("add", "--topic", "t", *WHO, "--operation", "Any"), "DESCRIBE_CONFIGS"),
        (("add", "--topic", "t", *WHO, "--resource-pattern-type", "match"), "literal, prefixed"),
        (("add", "--topic", "t", *WHO, "--deny-host", "10.0.0.1"), "needs --deny-principal"),
        (("remove",), "name a resource or a --principal"),
        (("remove", "--operation", "Read"), "name a resource or a --principal"),
        (("list", "--resource-pattern-type", "some"), "literal, prefixed, any, match"),
        ((*ASKED, "--topic", "t", "--group", "g"), "name one resource"),
        (ASKED, "name one resource"),
        (("explain", "--topic", "t", "--operation", "Read"), "--principal"),
    ],
)
def test_wrong_command_lines_are_refused(arguments: tuple[str, ...], said: str) -> None:
    outcome = called("acl", *arguments, status=2)
    assert said in outcome.errors


def test_a_cluster_without_an_authorizer_has_no_acls(bootstrap: str) -> None:
    outcome = called("acl", "list", bootstrap=bootstrap, status=1)
    assert "authorizer.class.name" in outcome.errors
    assert outcome.errors.count("\n") == 1
