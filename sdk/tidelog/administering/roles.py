"""Admin calls for roles: named sets of users and groups, to which ACLs may be given."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog_core.role_messages import (
    CHANGE,
    CREATE,
    DELETE,
    AlterRolesRequest,
    DescribeRolesRequest,
    RoleAlteration,
)
from tidelog_core.wire_messages import build

from tidelog.administering.calls import AdminCalls
from tidelog.given_values import several, text
from tidelog.wire.requests import ALTER_ROLES, DESCRIBE_ROLES


class RoleCalls(AdminCalls):
    """Admin calls for roles.

    Each raises ``SecurityDisabled`` if the nodes have no authorizer, and ``UnsupportedVersion`` for
    Kafka's brokers, which have no roles.
    """

    async def describe_roles(
        self, names: Iterable[str] | None = None, *, members: Iterable[str] | None = None
    ) -> dict[str, tuple[str, ...]]:
        """Return the members of roles by the roles' names, by default of all roles.

        ``names`` are the only roles to return; those that are not there are left out. ``members``
        are principals: only roles are returned that have one of them.
        """
        request = build(
            DescribeRolesRequest,
            names=None if names is None else tuple(several(names, "roles")),
            members=None if members is None else tuple(several(members, "members")),
        )

        response = await self._ask(DESCRIBE_ROLES, request, about="roles")
        return {role.name: role.members for role in response.roles}

    async def create_role(self, name: str, members: Iterable[str] = ()) -> None:
        """Create a role with these members: principals such as ``User:alice``, ``Group:sales``.

        Raises ``DuplicateResource`` if it is there, ``InvalidRequest``, ``PolicyViolation``.
        """
        await self._alter_role(name, CREATE, added=members)

    async def change_role(
        self, name: str, *, added: Iterable[str] = (), removed: Iterable[str] = ()
    ) -> None:
        """Add and remove members of a role. A change counts within the poll interval.

        Members that are there already, or not there, are no error. Raises ``ResourceNotFound``,
        ``InvalidRequest``.
        """
        await self._alter_role(name, CHANGE, added=added, removed=removed)

    async def delete_role(self, name: str) -> None:
        """Delete a role; its ACLs stay. Raises ``ResourceNotFound``."""
        await self._alter_role(name, DELETE)

    async def _alter_role(
        self,
        name: str,
        operation: int,
        *,
        added: Iterable[str] = (),
        removed: Iterable[str] = (),
    ) -> None:
        one = build(
            RoleAlteration,
            name=text(name, "name"),
            operation=operation,
            added=tuple(dict.fromkeys(several(added, "members"))),
            removed=tuple(dict.fromkeys(several(removed, "members"))),
        )
        request = build(AlterRolesRequest, alterations=(one,))

        await self._ask_for_each(ALTER_ROLES, [name], lambda _: request, what="role")
