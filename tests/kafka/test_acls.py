"""ACLs: created, described and deleted, by brokers with an authorizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.kafka.compare import Pair, compared
from tests.support.acls import (
    ALL,
    ANY,
    CLUSTER,
    CLUSTER_ACTION,
    CREATE_TOKENS,
    DENY,
    DESCRIBE,
    GROUP,
    LITERAL,
    MATCH,
    PREFIXED,
    TOPIC,
    TRANSACTIONAL_ID,
    USER,
    WRITE,
    acl_filter,
    creation,
)
from tests.support.node_process import NodeProcess
from tests.support.peer import Peer
from tools import kafka_broker
from tools.places import ToolAbsent

SUPER = {"super.users": "User:ANONYMOUS"}
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Give brokers with an authorizer, to which everyone is a super user."""
    root = tmp_path_factory.mktemp("acls")
    with ExitStack() as stack:
        try:
            port = stack.enter_context(
                kafka_broker.serve(root / "kafka", SUPER | {"authorizer.class.name": AUTHORIZER})
            )
        except ToolAbsent as absent:
            pytest.skip(str(absent))
        config = SUPER | {"authorizer.class.name": "tidelog.acl"}
        node = stack.enter_context(NodeProcess(root / "tidelog", config=config))
        peers = Pair(Peer("kafka", port), Peer("tidelog", node.port))
        yield peers
        peers.close()


def create(peer: Peer, *creations: dict[str, object], version: int = 3) -> Any:
    return peer.call("create_acls", version, creations=list(creations))


def describe(peer: Peer, name: str | None = None, *, version: int = 3, **fields: object) -> Any:
    return peer.call("describe_acls", version, **acl_filter(name, **fields))


def delete(peer: Peer, *filters: dict[str, object], version: int = 3) -> Any:
    return peer.call("delete_acls", version, filters=list(filters))


def settled(peer: Peer, expected_count: int) -> Any:
    """Return all ACLs once there are so many: Kafka's broker follows its controller."""
    return peer.until(
        lambda: describe(peer),
        lambda answer: sum(len(one["acls"]) for one in answer["resources"]) == expected_count,
    )


CREATED = (
    creation("a"),
    creation("a", operation=WRITE, principal="Group:sales"),
    creation("a", operation=DESCRIBE, permission_type=DENY, host="10.0.0.1"),
    creation("ab", resource_pattern_type=PREFIXED, principal="User:*"),
    creation("*", resource_type=GROUP, operation=ALL),
    creation("kafka-cluster", resource_type=CLUSTER, operation=CLUSTER_ACTION),
    creation("x", resource_type=TRANSACTIONAL_ID, principal="User:CN=a,O=b"),
    creation("User:bob", resource_type=USER, operation=CREATE_TOKENS),
    creation("t", resource_type=USER, principal="a:b:c", host="no address"),
)
MATCHING = {"resource_type_filter": TOPIC, "pattern_type_filter": MATCH}


@compared
def test_acls_are_created_described_and_deleted(peer: Peer) -> Iterator[tuple[str, Any]]:
    yield "none", describe(peer)
    yield "nothing", create(peer)
    yield "created", create(peer, *CREATED)
    yield "again", create(peer, *CREATED[:2], CREATED[0])
    yield "all", settled(peer, len(CREATED))
    for version in (1, 2):
        yield f"all, version {version}", describe(peer, version=version)
    for pattern in (ANY, MATCH, LITERAL, PREFIXED):
        for name in ("a", "ab", "abc", "*", "", None):
            yield f"{name} by {pattern}", describe(peer, name, pattern_type_filter=pattern)
    yield "principal", describe(peer, principal_filter="Group:sales")
    yield "no principal", describe(peer, principal_filter="sales")
    yield "everyone's", describe(peer, principal_filter="User:*")
    yield "host", describe(peer, host_filter="10.0.0.1")
    yield "any host", describe(peer, host_filter="*")
    yield "operation", describe(peer, operation=ALL)
    yield "denied", describe(peer, permission_type=DENY)
    yield "deleted nothing", delete(peer)
    yield "deleted", delete(peer, acl_filter("abc", **MATCHING), acl_filter("none"))
    yield "left", settled(peer, len(CREATED) - 1)
    one = acl_filter("a", operation=WRITE)
    yield "deleted twice", delete(peer, one, one, acl_filter("a"), version=1)
    yield "still left", settled(peer, len(CREATED) - 4)
    yield "deleted all", delete(peer, acl_filter())
    yield "gone", settled(peer, 0)


UNKNOWN = 99


@compared
def test_acls_that_are_refused(peer: Peer) -> Iterator[tuple[str, Any]]:
    """Each with one that is right."""
    for label, fields in {
        "no name": {"resource_name": ""},
        "another cluster": {"resource_type": CLUSTER},
        "no colon": {"principal": "alice"},
        "no principal": {"principal": ""},
        "resource": {"resource_type": UNKNOWN},
        "pattern": {"resource_pattern_type": UNKNOWN},
        "operation": {"operation": UNKNOWN},
        "permission": {"permission_type": UNKNOWN},
        "resource 0": {"resource_type": 0},
        "operation 0": {"operation": 0},
        "any resource": {"resource_type": ANY},
        "matching pattern": {"resource_pattern_type": MATCH},
        "any operation": {"operation": ANY},
        "any permission": {"permission_type": ANY},
    }.items():
        yield label, create(peer, creation("t", **fields), creation("right"))
        peer.close()
    yield "created", settled(peer, 1)
    yield "only a kind", create(peer, creation("t", principal="User:"))
    yield "no kind", create(peer, creation("t", principal=":alice"))
    yield "no host", create(peer, creation("t", host=""))
    delete(peer, acl_filter())
    yield "gone", settled(peer, 0)


@compared
def test_filters_that_are_refused(peer: Peer) -> Iterator[tuple[str, Any]]:
    create(peer, creation("a"))
    settled(peer, 1)
    for field in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
        for number in (0, UNKNOWN, -1):
            wrong = {field: number}
            yield f"describe {field} {number}", describe(peer, **wrong)
            peer.close()
            yield f"delete {field} {number}", delete(peer, acl_filter(**wrong), acl_filter("b"))
            peer.close()
    yield "left", settled(peer, 1)
    delete(peer, acl_filter())
    settled(peer, 0)
