"""Roles: named sets of users and groups. ACLs of ``Role:x`` count for each member of the role x.

Roles have no roles as members, so what a client may do can be read from one list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidelog_core.errors import InvalidRequest
from tidelog_core.model import USER_KIND
from tidelog_core.turns import Steps

ROLE_KIND = "Role"  # of a principal
GROUP_KIND = "Group"
MEMBER_KINDS = (USER_KIND, GROUP_KIND)
MEMBERS_MAX = 1_000  # of one role
MEMBERS_SIZE_BYTES_MAX = 131_072  # of one role: an item of DynamoDB has 400 KB
MEMBER_SIZE_MAX = 1_000  # characters of a principal, as in an ACL
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


def check_role_name(name: str) -> None:
    """Raise ``InvalidRequest`` for a name that no role can have."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"The role name {name[:249]!r} is not allowed: use 1 to 249 ASCII letters, digits, '.',"
            " '_' and '-'"
        )


def check_member(principal: str) -> None:
    """Raise ``InvalidRequest`` for a principal that cannot be a member of a role."""
    kind, colon, name = principal.partition(":")
    if kind not in MEMBER_KINDS or not colon or not name:
        raise InvalidRequest(
            f"{principal[:MEMBER_SIZE_MAX]!r} cannot be a member of a role: members are users and"
            " groups, such as User:alice or Group:sales"
        )
    if name == "*":
        raise InvalidRequest(
            f"{principal} cannot be a member of a role: for everyone, add ACLs of User:*"
        )
    if len(principal) > MEMBER_SIZE_MAX:
        raise InvalidRequest(
            f"A principal of {len(principal)} characters, allowed are {MEMBER_SIZE_MAX}"
        )


def check_members(members: Iterable[str]) -> None:
    """Raise ``InvalidRequest`` unless a role can have these members."""
    count = size_bytes = 0
    for principal in members:
        check_member(principal)
        count += 1
        size_bytes += len(principal.encode())
    if count > MEMBERS_MAX:
        raise InvalidRequest(
            f"A role of {count} members, allowed are {MEMBERS_MAX}: make groups its members, or"
            " divide it"
        )
    if size_bytes > MEMBERS_SIZE_BYTES_MAX:
        raise InvalidRequest(
            f"The names of a role's members have {size_bytes} bytes, allowed are"
            f" {MEMBERS_SIZE_BYTES_MAX}: make groups its members, or divide it"
        )


@dataclass(frozen=True)
class RoleSet:
    """All roles, indexed by their members. Never changed."""

    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by the role's name
    _roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)  # by the member
    _member_count: int = 0

    @property
    def member_count(self) -> int:
        """The number of members of all roles together."""
        return self._member_count

    def changing(self, changed: Mapping[str, tuple[str, ...] | None]) -> Steps[RoleSet]:
        """Return the set with these members of roles, in steps; ``None`` removes the role.

        Takes time for the changes, and to copy two tables of pointers.
        """
        members, roles, member_count = dict(self.members), dict(self._roles), self._member_count
        for name, new in changed.items():
            yield
            before = frozenset(members.pop(name, ()))
            after = frozenset(new or ())
            member_count += len(after) - len(before)
            if new is not None:
                members[name] = new
            for principal in before - after:
                left = tuple(role for role in roles[principal] if role != name)
                if left:
                    roles[principal] = left
                else:
                    del roles[principal]
            for principal in after - before:
                roles[principal] = (*roles.get(principal, ()), name)
        return RoleSet(members, roles, member_count)

    def roles_of(self, principal: str) -> tuple[str, ...]:
        """Return the names of the roles that have the principal as a member."""
        return self._roles.get(principal, ())

    def principals(self, principals: tuple[str, ...]) -> tuple[str, ...]:
        """Return the principals, then those of the roles that have one of them as a member."""
        names = {role for principal in principals for role in self.roles_of(principal)}
        return (*principals, *(f"{ROLE_KIND}:{name}" for name in sorted(names)))
