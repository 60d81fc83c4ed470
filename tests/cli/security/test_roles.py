"""``tidelog role`` over a real node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.command import Outcome, called
from tests.support.node_process import NodeProcess


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a node with an authorizer."""
    config = {"authorizer.class.name": "tidelog.acl", "super.users": "User:ANONYMOUS"}
    with NodeProcess(tmp_path_factory.mktemp("roles") / "node", config=config) as node:
        yield node.address


def role(address: str, *arguments: object, status: int = 0) -> Outcome:
    return called("role", *arguments, bootstrap=address, status=status)


def test_roles_are_created_changed_shown_and_deleted(address: str) -> None:
    made = role(address, "create", "engineers", "User:alice", "User:alice", "Group:data")
    assert made.lines == ["role engineers created with 2 members"]
    role(address, "create", "nobody")
    assert role(address, "list", "--json").document == [
        {"role": "engineers", "members": ["Group:data", "User:alice"]},
        {"role": "nobody", "members": []},
    ]
    assert role(address, "add", "engineers", "User:bob").lines == [
        "User:bob has the role engineers"
    ]
    assert role(address, "remove", "engineers", "User:alice", "User:eve").lines == [
        "User:alice does not have the role engineers",
        "User:eve does not have the role engineers",
    ]
    shown = {"role": "engineers", "members": ["Group:data", "User:bob"]}
    assert role(address, "show", "engineers", "--json").document == shown
    assert role(address, "show", "engineers").lines == ["MEMBER", "Group:data", "User:bob"]
    assert role(address, "list", "--member", "User:bob", "--json").document == [shown]
    assert [line.split() for line in role(address, "list").lines] == [
        ["ROLE", "MEMBERS"],
        ["engineers", "2"],
        ["nobody", "0"],
    ]
    assert role(address, "delete", "nobody").lines == ["role nobody deleted"]
    role(address, "delete", "engineers")
    assert role(address, "list", "--json").document == []


def test_explain_knows_the_roles_of_a_user_and_of_its_groups(address: str) -> None:
    role(address, "create", "readers", "User:alice", "Group:data")
    about = ("--topic", "orders", "--operation", "Read")
    called("acl", "add", *about, "--allow-principal", "Role:readers", bootstrap=address)

    def explained(*principals: str, status: int) -> str:
        options = [text for one in principals for text in ("--principal", one)]
        outcome = called("acl", "explain", *options, *about, bootstrap=address, status=status)
        (line,) = outcome.lines
        return line

    allowed = (
        "allowed: ALLOW READ on TOPIC orders to Role:readers from any host, a role of the client"
    )
    assert explained("User:alice", status=0) == explained("User:bob", "Group:data", status=0)
    assert explained("User:alice", status=0) == allowed
    assert explained("User:bob", status=1).startswith("denied: no ACL about the resource")
    called("acl", "add", *about, "--deny-principal", "Role:readers", bootstrap=address)
    assert explained("User:alice", status=1).startswith("denied: DENY READ")
    called("acl", "remove", "--principal", "Role:readers", bootstrap=address)
    role(address, "delete", "readers")


def test_what_is_wrong_is_said(address: str) -> None:
    role(address, "create", "there")
    for arguments, said in (
        (("create", "there"), "there already"),
        (("create", "with space"), "1 to 249"),
        (("create", "x", "Role:there"), "members are users and groups"),
        (("add", "none", "User:a"), "There is no role none"),
        (("delete", "none"), "There is no role none"),
        (("show", "none"), "`tidelog role list`"),
    ):
        outcome = role(address, *arguments, status=1)
        assert said in outcome.errors, arguments
        assert outcome.errors.count("\n") == 1
    for arguments in (
        ("create", "x", "alice"),
        ("add", "there", "alice"),
        ("list", "--member", "x"),
    ):
        assert "User:alice" in role(address, *arguments, status=2).errors
    role(address, "delete", "there")


def test_a_cluster_without_an_authorizer_has_no_roles(bootstrap: str) -> None:
    for arguments in (("list",), ("create", "x")):
        outcome = called("role", *arguments, bootstrap=bootstrap, status=1)
        assert "authorizer.class.name" in outcome.errors
