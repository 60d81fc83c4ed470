"""Decides whether a client may do something: Kafka's rules for ACLs.

1. A super user may do everything.
2. An ACL applies if its pattern covers the resource and its principal, host and operation fit.
   If one that applies denies, the answer is no; else, if one allows, it is yes.
3. Else the answer is no, unless ``allow.everyone.if.no.acl.found`` is set and no ACL at all covers
   the resource, for any principal.

ALLOW of READ, WRITE, DELETE or ALTER also allows DESCRIBE, and of ALTER_CONFIGS also
DESCRIBE_CONFIGS. A DENY denies its own operation alone.

Source: KIP-11, KIP-679 (``decide_any``); Kafka's ``StandardAuthorizerData`` and ``Authorizer``.
Kafka has one principal for a client. Here it may have several: its user, its groups and its roles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog_core.security.acl import (
    ANY_HOST,
    ANY_NAME,
    ANY_PRINCIPAL,
    Acl,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from tidelog_core.security.acl_set import AclSet

# The operations of an ALLOW that also allow another one.
_ALLOWED_BY: Mapping[AclOperation, frozenset[AclOperation]] = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS}),
}
# Kafka asks for the resource of this name to find out whether a client may do something with
# every resource of a type. The same name makes both decide alike.
_SOME_NAME = "hardcode"


@dataclass(frozen=True, slots=True)
class Client:
    """A client as ACLs know it."""

    principals: tuple[str, ...]  # the user, such as ``User:alice``, then its groups and roles
    host: str  # the address


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a client may do something, and why."""

    is_allowed: bool
    acl: Acl | None = None  # the one that decided
    is_super_user: bool = False


ALLOWED_BY_DEFAULT, DENIED_BY_DEFAULT = Decision(is_allowed=True), Decision(is_allowed=False)
ALLOWED_TO_SUPER_USER = Decision(is_allowed=True, is_super_user=True)


@dataclass(frozen=True, slots=True)
class Authorizer:
    """The rules of a node's settings."""

    super_users: frozenset[str] = frozenset()  # principals
    allows_without_acls: bool = False  # allow.everyone.if.no.acl.found

    def decide(
        self,
        acls: AclSet,
        client: Client,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> Decision:
        """Return whether the client may do the operation with the resource."""
        if self.is_super_user(client):
            return ALLOWED_TO_SUPER_USER
        allowing: Acl | None = None
        has_acls = False
        for by_principal in acls.matching(resource_type, name):
            has_acls = True
            for principal in (*client.principals, ANY_PRINCIPAL):
                for acl in by_principal.get(principal, ()):
                    if not _applies(acl, client.host, operation):
                        continue
                    if acl.permission is AclPermission.DENY:
                        return Decision(is_allowed=False, acl=acl)
                    allowing = acl
        if allowing is not None:
            return Decision(is_allowed=True, acl=allowing)
        if has_acls or not self.allows_without_acls:
            return DENIED_BY_DEFAULT
        return ALLOWED_BY_DEFAULT

    def decide_any(
        self, acls: AclSet, client: Client, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Return whether there can be a resource of the type that the client may use so.

        An ALLOW counts unless a DENY covers everything that it allows. ``operation`` is one that
        no other implies.
        """
        if self.decide(acls, client, operation, resource_type, _SOME_NAME).is_allowed:
            return True
        allowed: list[tuple[PatternType, str]] = []
        denied: set[tuple[PatternType, str]] = set()
        for pattern_type, name, by_principal in acls.of_type(resource_type):
            for principal in (*client.principals, ANY_PRINCIPAL):
                for acl in by_principal.get(principal, ()):
                    if acl.operation not in (operation, AclOperation.ALL):
                        continue
                    if acl.host not in (client.host, ANY_HOST):
                        continue
                    if acl.permission is AclPermission.DENY:
                        denied.add((pattern_type, name))
                    else:
                        allowed.append((pattern_type, name))
        if (PatternType.LITERAL, ANY_NAME) in denied:
            return False
        if (PatternType.LITERAL, ANY_NAME) in allowed:
            return True
        return any(not _is_covered(pattern, denied) for pattern in allowed)

    def is_super_user(self, client: Client) -> bool:
        """Return whether the client may do everything."""
        return not self.super_users.isdisjoint(client.principals)


def _applies(acl: Acl, host: str, operation: AclOperation) -> bool:
    if acl.host not in (host, ANY_HOST):
        return False
    if acl.operation in (operation, AclOperation.ALL):
        return True
    is_allow = acl.permission is AclPermission.ALLOW
    return is_allow and acl.operation in _ALLOWED_BY.get(operation, ())


def _is_covered(pattern: tuple[PatternType, str], denied: set[tuple[PatternType, str]]) -> bool:
    pattern_type, name = pattern
    if pattern_type is PatternType.LITERAL and pattern in denied:
        return True
    return any((PatternType.PREFIXED, name[:size]) in denied for size in range(1, len(name) + 1))
