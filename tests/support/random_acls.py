"""ACLs for tests: one with few words, and any of a small world."""

from __future__ import annotations

from hypothesis import strategies as st
from tidelog_core.security.acl import (
    Acl,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)

ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
READ, WRITE = AclOperation.READ, AclOperation.WRITE
TOPIC = ResourceType.TOPIC
TYPES = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
NAMES = ("a", "ab", "abc", "b", "ba", "ha", "hard", "*")
OPERATIONS = [one for one in AclOperation if one is not AclOperation.ANY]
USERS = ("alice", "bob", "*")
HOSTS = ("10.0.0.1", "10.0.0.2")


def acl(
    name: str = "t",
    operation: AclOperation = READ,
    permission: AclPermission = ALLOW,
    *,
    pattern_type: PatternType = LITERAL,
    principal: str = "User:alice",
    host: str = "*",
) -> Acl:
    """Return an ACL of a topic."""
    return Acl(TOPIC, pattern_type, name, principal, host, operation, permission)


acls_drawn = st.builds(
    Acl,
    st.sampled_from(TYPES),
    st.sampled_from((LITERAL, PREFIXED)),
    st.sampled_from(NAMES),
    st.sampled_from([f"User:{user}" for user in USERS]),
    st.sampled_from((*HOSTS, "*")),
    st.sampled_from(OPERATIONS),
    st.sampled_from((ALLOW, DENY)),
)
