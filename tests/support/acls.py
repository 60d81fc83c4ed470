"""ACLs and filters as messages name them."""

from __future__ import annotations

from typing import Any

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN, USER = range(2, 8)  # resources
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4  # patterns
ALL, READ, WRITE, DESCRIBE, CLUSTER_ACTION = 2, 3, 4, 8, 9  # operations
CREATE_TOKENS, DESCRIBE_TOKENS = 13, 14
DENY, ALLOW = 2, 3  # permissions


def creation(name: str = "t", **fields: Any) -> dict[str, Any]:
    """Return an ACL of CreateAcls: Alice may read the topic, unless the fields say otherwise."""
    return {
        "resource_type": TOPIC,
        "resource_name": name,
        "resource_pattern_type": LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
        **fields,
    }


def acl_filter(name: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return a filter of DescribeAcls or DeleteAcls: all ACLs, unless the fields say otherwise."""
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": name,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
        **fields,
    }
