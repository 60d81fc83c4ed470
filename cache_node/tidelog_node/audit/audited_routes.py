"""Puts a recorder before each control route that changes something.

It runs before the guard, so requests of clients without the right are recorded with their errors.
Recording is synchronous and bounded; ``publisher`` publishes the events. No answer waits for its
event, except with ``audit.mandatory``: while no event can be recorded, such requests are refused by
closing their connections.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from tidelog_core.audit.events import Resource
from tidelog_core.errors import ErrorCode
from tidelog_core.message_reader import read_message
from tidelog_core.message_schemas import load_response_schema

from tidelog_node.answers import CloseConnection
from tidelog_node.audit.audit_log import AuditLog
from tidelog_node.audit.changes import CHANGING_APIS, ChangingApi
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.requests.session import NO_NODE


def audit_routes(routes: Iterable[Route], log: AuditLog, *, is_mandatory: bool) -> list[Route]:
    """Return the routes, with a recorder before those of ``CHANGING_APIS``."""
    return [
        route
        if (api := CHANGING_APIS.get(route.api_key)) is None
        else _recorded(route, api, log, is_mandatory=is_mandatory)
        for route in routes
    ]


def _recorded(route: Route, api: ChangingApi, log: AuditLog, *, is_mandatory: bool) -> Route:
    async def handle(request: Any, context: RequestContext) -> object:
        if context.session.node_id != NO_NODE:  # The cluster's own request.
            return await route.handle(request, context)
        if is_mandatory and log.is_full:
            raise CloseConnection("the audit log is full, see audit.mandatory")
        answer = await route.handle(request, context)
        if not getattr(request, "validate_only", False):
            _record(api, log, request, answer, context)
        return answer

    return dataclasses.replace(route, handle=handle)


def _record(
    api: ChangingApi, log: AuditLog, request: Any, answer: object, context: RequestContext
) -> None:
    if isinstance(answer, bytes):  # Its handler has encoded it.
        schema: type[Any] = load_response_schema(context.api_key, context.api_version)
        answer = read_message(schema, answer)
    by_error: dict[str, list[Resource]] = {}
    for resource, error in api.changes(request, answer):
        name = "" if error is ErrorCode.none else error.name
        by_error.setdefault(name, []).append(resource)
    log.note_change(context.session, api.name, api.activity, by_error)
