"""Access control lists: rules for principals, operations and resources, and their filters.

The numbers are those of the protocol. Source: KIP-11, KIP-290 (prefixed patterns); Kafka's
``AclOperation``, ``AclPermissionType``, ``ResourceType``, ``PatternType``, ``AclBindingFilter``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

ANY_NAME = "*"  # of a literal pattern: all resources of the type
ANY_HOST = "*"
ANY_PRINCIPAL = "User:*"
CLUSTER_NAME = "kafka-cluster"  # the only resource of the type CLUSTER


class ResourceType(IntEnum):
    """The kind of a resource; ``ANY`` is for filters alone."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """The comparison of a name; ``ANY`` and ``MATCH`` are only for filters."""

    ANY = 1
    MATCH = 2  # all patterns that apply to the resource of this name
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """An operation on a resource; ``ANY`` is only for filters."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    """Whether an ACL allows or denies the operation; ``ANY`` is only for filters."""

    ANY = 1
    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """One rule: a principal may, or may not, do an operation with some resources."""

    resource_type: ResourceType
    pattern_type: PatternType  # LITERAL or PREFIXED
    name: str  # of the resource, or its beginning
    principal: str  # such as ``User:alice``; ``User:*`` is everyone
    host: str  # the address of the client; ``*`` is any
    operation: AclOperation
    permission: AclPermission

    def covers(self, name: str) -> bool:
        """Return whether the pattern applies to a resource of this type with the name."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, ANY_NAME)


class AclFilter(NamedTuple):
    """Finds ACLs. ``ANY`` and ``None`` fit all."""

    resource_type: ResourceType = ResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY

    def matches(self, acl: Acl) -> bool:
        """Return whether the filter fits the ACL."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_pattern(acl)
            and (self.principal is None or self.principal == acl.principal)
            and (self.host is None or self.host == acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (AclPermission.ANY, acl.permission)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        match self.pattern_type:
            case PatternType.ANY:
                return self.name is None or self.name == acl.name
            case PatternType.MATCH:
                return self.name is None or acl.covers(self.name)
        return self.pattern_type == acl.pattern_type and self.name in (None, acl.name)
