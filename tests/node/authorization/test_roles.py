"""Roles on a running node: who may administer them, and that a change counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tidelog_core.role_messages import CHANGE, CREATE, DELETE

from tests.support.acl_rules import (
    ALTER,
    CLIENT,
    DESCRIBE,
    READ,
    WITH_ACLS,
    change,
    leave_to_admin,
    rule,
)
from tests.support.acls import CLUSTER, TOPIC
from tests.support.node_process import NodeProcess
from tests.support.peer import Peer

TOPIC_NAME = "t"
ANONYMOUS = "User:ANONYMOUS"
REFUSED = "cluster_authorization_failed"


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """The administrator of a node that leaves nothing to others."""
    with NodeProcess(tmp_path_factory.mktemp("roles") / "node", config=WITH_ACLS) as node:
        peer = Peer("tidelog", node.port)
        peer.create_topic(TOPIC_NAME)
        leave_to_admin(peer)
        yield peer
        peer.close()


@pytest.fixture
def client(admin: Peer) -> Iterator[Peer]:
    """A client without an ACL."""
    change(admin)
    peer = Peer("tidelog", admin.port, address=CLIENT)
    yield peer
    peer.close()


def alter(peer: Peer, name: str, operation: int, **members: list[str]) -> str:
    one = {"name": name, "operation": operation, **members}
    (result,) = peer.call("alter_roles", 0, alterations=[one])["results"]
    assert result["name"] == name
    code: str = result["error_code"]
    return code


def described(peer: Peer, **wanted: Any) -> Any:
    answer = peer.call("describe_roles", 0, **wanted)
    assert answer["error_code"] == "none"
    return {role["name"]: role["members"] for role in answer["roles"]}


def test_a_role_counts_as_soon_as_its_change_is_answered(admin: Peer, client: Peer) -> None:
    """On the node that stored it; also for the connection that is there."""
    change(admin, {**rule(TOPIC, READ), "principal": "Role:readers"})

    def error() -> str:
        code: str = client.fetch(TOPIC_NAME, 0)["responses"][0]["partitions"][0]["error_code"]
        return code

    assert error() == "topic_authorization_failed"
    assert alter(admin, "readers", CREATE, added=[ANONYMOUS]) == "none"
    assert error() == "none"
    assert alter(admin, "readers", CHANGE, removed=[ANONYMOUS]) == "none"
    assert error() == "topic_authorization_failed"
    assert alter(admin, "readers", CHANGE, added=[ANONYMOUS]) == "none"
    assert error() == "none"
    assert alter(admin, "readers", DELETE) == "none"
    assert error() == "topic_authorization_failed"


def test_roles_need_rights_of_the_cluster(admin: Peer, client: Peer) -> None:
    assert alter(client, "x", CREATE) == REFUSED
    assert client.call("describe_roles", 0)["error_code"] == REFUSED
    change(admin, rule(CLUSTER, DESCRIBE))
    assert alter(client, "x", CREATE) == REFUSED
    assert described(client) == {}
    change(admin, rule(CLUSTER, ALTER))  # which also allows to describe
    assert alter(client, "x", CREATE, added=["User:b", "User:a"]) == "none"
    assert described(client) == {"x": ["User:a", "User:b"]}
    assert described(client, names=["y"]) == described(client, members=["User:c"]) == {}
    assert alter(client, "x", DELETE) == "none"


def test_strange_alterations_are_refused(admin: Peer) -> None:
    assert alter(admin, "x", 0) == alter(admin, "", CREATE) == "invalid_request"
    assert alter(admin, "x", CREATE, added=["Role:x"]) == "invalid_request"
    assert alter(admin, "x", CHANGE) == alter(admin, "x", DELETE) == "resource_not_found"
    many = [{"name": f"r{number}", "operation": CREATE} for number in range(1_001)]
    results = admin.call("alter_roles", 0, alterations=many)["results"]
    codes = [one["error_code"] for one in results]
    assert (codes.count("none"), codes.count("policy_violation")) == (1_000, 1)
    assert len(described(admin)) == 1_000
