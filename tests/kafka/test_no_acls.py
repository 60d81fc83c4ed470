"""The requests about ACLs to brokers without an authorizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.kafka.compare import compared
from tests.support.acls import acl_filter, creation
from tests.support.peer import Peer


@compared
def test_acls_without_an_authorizer(peer: Peer) -> Iterator[tuple[str, Any]]:
    """Every version."""
    for version in (1, 2, 3):
        yield f"described {version}", peer.call("describe_acls", version, **acl_filter("t"))
        wrong = creation("", principal="alice")
        creations = [creation(), wrong]
        yield f"created {version}", peer.call("create_acls", version, creations=creations)
        filters = [acl_filter(), acl_filter("t")]
        yield f"deleted {version}", peer.call("delete_acls", version, filters=filters)
    yield "nothing created", peer.call("create_acls", 3, creations=[])
    yield "nothing deleted", peer.call("delete_acls", 3, filters=[])
