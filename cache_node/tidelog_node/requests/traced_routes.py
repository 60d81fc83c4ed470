"""Puts a span around each control route. Produce and Fetch are hot routes, and have none."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from tidelog_core.errors import ErrorCode
from tidelog_core.security.operations import OPERATIONS

from tidelog_node.requests.routes import RequestContext, Route, is_encoded
from tidelog_node.tracing.tracer import Tracer
from tidelog_node.wire.messages import find_error_codes

ELEMENTS_MAX = 1_000  # of an answer that are looked at for errors
TEXT_SIZE_MAX = 249  # characters of a client's id or principal


def trace_routes(routes: Iterable[Route], tracer: Tracer) -> list[Route]:
    """Return the routes, each with a span of its API's name."""
    return [_traced(route, OPERATIONS[route.api_key].name, tracer) for route in routes]


def _traced(route: Route, name: str, tracer: Tracer) -> Route:
    async def handle(request: Any, context: RequestContext) -> object:
        session = context.session
        attributes: dict[str, str | int] = {
            "rpc.system": "kafka",
            "rpc.method": name,
            "client.address": session.client_host,
            "tidelog.api_version": context.api_version,
            "tidelog.listener": session.listener,
            "tidelog.client_id": (context.client_id or "")[:TEXT_SIZE_MAX],
            "tidelog.principal": str(session.principal)[:TEXT_SIZE_MAX],
        }
        with tracer.span(name, attributes) as span:
            answer = await route.handle(request, context)
            if not is_encoded(answer):
                codes = find_error_codes(answer, elements_max=ELEMENTS_MAX)
                if codes:
                    span.note_errors(", ".join(sorted({ErrorCode(one).name for one in codes})))
        return answer

    return dataclasses.replace(route, handle=handle)
