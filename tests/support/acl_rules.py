"""ACLs of a client that differs from the administrator by its address alone."""

from __future__ import annotations

from typing import Any

from tests.support.acls import ALL, CLUSTER, GROUP, TOPIC, TRANSACTIONAL_ID, acl_filter, creation
from tests.support.peer import Peer

ADMIN, CLIENT = "127.0.0.1", "127.0.0.2"
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = range(3, 9)
CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = range(9, 13)
TWO_PHASE_COMMIT = 15
OPERATIONS = {
    TOPIC: (READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    GROUP: (READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    TRANSACTIONAL_ID: (WRITE, DESCRIBE),
    CLUSTER: (
        *(CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS),
        *(DELETE, IDEMPOTENT_WRITE),
    ),
}
NAMES = {TOPIC: "*", GROUP: "*", TRANSACTIONAL_ID: "*", CLUSTER: "kafka-cluster"}
OPEN = {"allow.everyone.if.no.acl.found": "true"}  # before there are any ACLs
WITH_ACLS = OPEN | {"authorizer.class.name": "tidelog.acl"}


def leave_to_admin(peer: Peer) -> None:
    """Leave everything to the administrator's address."""
    change(peer, *(rule(kind, ALL, host=ADMIN) for kind in NAMES))


def rule(kind: int, operation: int, *, host: str = CLIENT) -> dict[str, Any]:
    return creation(
        NAMES[kind],
        resource_type=kind,
        operation=operation,
        principal="User:ANONYMOUS",
        host=host,
    )


def change(peer: Peer, *rules: dict[str, Any]) -> None:
    """Leave the client no ACLs but these; return once the broker decides by them."""
    peer.call("delete_acls", 3, filters=[acl_filter(host_filter=CLIENT)])
    peer.call("create_acls", 3, creations=list(rules))
    administrator = {one["host"] for one in rules} == {ADMIN}
    wanted = sorted((one["resource_type"], one["operation"]) for one in rules)
    address = ADMIN if administrator else CLIENT

    def standing() -> list[tuple[int, int]]:
        answer = peer.call("describe_acls", 3, **acl_filter(host_filter=address))
        return sorted(
            (resource["resource_type"], acl["operation"])
            for resource in answer["resources"]
            for acl in resource["acls"]
        )

    assert peer.until(standing, lambda found: found == wanted) == wanted
