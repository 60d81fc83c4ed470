"""DescribeRoles and AlterRoles, APIs of Tidelog's own (``tidelog_core.role_messages``).

Without ``authorizer.class.name`` roles would mean nothing, so nobody can see or change them.
"""

from __future__ import annotations

from tidelog_core.admin.security.roles import RoleAdmin, RoleChange, find_roles
from tidelog_core.errors import StoreUnavailable, TidelogError
from tidelog_core.role_messages import (
    ALTER_ROLES_KEY,
    DESCRIBE_ROLES_KEY,
    AlteredRole,
    AlterRolesRequest,
    AlterRolesResponse,
    DescribedRole,
    DescribeRolesRequest,
    DescribeRolesResponse,
)

from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.handlers.administration import admin_outcome
from tidelog_node.handlers.security.acls import security_disabled
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build


class RoleHandlers:
    """Shows and changes roles."""

    def __init__(self, node: NodeContext) -> None:
        self._view = node.view
        self._admin = RoleAdmin(node.store, node.view)
        self._has_acls = bool(node.static_config.authorizer_class_name)

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [
            Route(DESCRIBE_ROLES_KEY, 0, 0, self.describe),
            Route(ALTER_ROLES_KEY, 0, 0, self.alter),
        ]

    async def describe(
        self, request: DescribeRolesRequest, _: RequestContext
    ) -> DescribeRolesResponse:
        """Answer DescribeRoles."""
        if not self._has_acls:
            return admin_outcome(DescribeRolesResponse, security_disabled())
        try:
            image = await self._view.refresh()
        except StoreUnavailable:
            image = self._view.image
        found = await find_roles(image, request.names, request.members)
        turn = RequestTurn()
        return admin_outcome(
            DescribeRolesResponse,
            None,
            roles=tuple(
                [
                    build(DescribedRole, name=role.name, members=role.members)
                    async for role in turn.each(found)
                ]
            ),
        )

    async def alter(self, request: AlterRolesRequest, _: RequestContext) -> AlterRolesResponse:
        """Answer AlterRoles once the roles are in the store and in this node's image."""
        turn = RequestTurn()
        changes = [
            RoleChange(one.name, one.operation, one.added, one.removed)
            async for one in turn.each(request.alterations)
        ]
        outcomes: dict[str, TidelogError | None]
        if self._has_acls:
            outcomes = await self._admin.alter(changes)
        else:
            outcomes = dict.fromkeys((one.name for one in changes), security_disabled())
        return build(
            AlterRolesResponse,
            results=tuple(
                [
                    admin_outcome(AlteredRole, error, name=name)
                    async for name, error in turn.each(outcomes.items())
                ]
            ),
        )
