"""Puts a guard before each control route of a node with an authorizer.

The hot routes ask ``Access`` themselves, for each partition that they read or write.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from tidelog_core.metadata.image.cluster_view import ClusterView

from tidelog_node.authorization.access import Access
from tidelog_node.authorization.group_guards import GROUP_GUARDS
from tidelog_node.authorization.guard import Guard, GuardedCall
from tidelog_node.authorization.token_guards import TOKEN_GUARDS
from tidelog_node.authorization.topic_guards import TOPIC_GUARDS
from tidelog_node.authorization.transaction_guards import TRANSACTION_GUARDS
from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.requests.routes import RequestContext, Route

GUARDS: Mapping[int, Guard] = {
    **TOPIC_GUARDS,
    **GROUP_GUARDS,
    **TRANSACTION_GUARDS,
    **TOKEN_GUARDS,
}


def guard_routes(routes: Iterable[Route], access: Access, view: ClusterView) -> list[Route]:
    """Return the routes with their guards. Raises ``KeyError`` for an API that has none."""
    return [_guarded(route, GUARDS[route.api_key], access, view) for route in routes]


def _guarded(route: Route, guard: Guard, access: Access, view: ClusterView) -> Route:
    async def handle(request: Any, context: RequestContext) -> object:
        return await guard(GuardedCall(request, context, route, access, view, RequestTurn()))

    return dataclasses.replace(route, handle=handle)
