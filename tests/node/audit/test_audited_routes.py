"""Requests that change something while nothing can be recorded."""

from __future__ import annotations

import pytest
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_groups.v2.response import DeleteGroupsResponse
from tidelog_core.audit.events import Activity, AuditKind
from tidelog_node.answers import CloseConnection
from tidelog_node.audit.audit_log import EVENTS_MAX, AuditLog
from tidelog_node.audit.audited_routes import audit_routes
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.requests.session import Session
from tidelog_node.wire.messages import build

from tests.support.clock import Clock

DELETE_GROUPS_KEY = 42


@pytest.mark.parametrize("is_mandatory", [True, False])
async def test_they_are_refused_only_if_recording_is_mandatory(is_mandatory: bool) -> None:
    log, session = AuditLog([AuditKind.MANAGEMENT], clock_ms=Clock(0)), Session("host", 1, "L")
    for _ in range(EVENTS_MAX):
        log.note_change(session, "CreateTopics", Activity.CREATE, {"": []})
    asked: list[object] = []

    async def handle(request: object, _: RequestContext) -> object:
        asked.append(request)
        return build(DeleteGroupsResponse)

    (route,) = audit_routes(
        [Route(DELETE_GROUPS_KEY, 0, 2, handle)], log, is_mandatory=is_mandatory
    )
    context = RequestContext(DELETE_GROUPS_KEY, 2, 1, session)
    request = build(DeleteGroupsRequest)
    if is_mandatory:
        with pytest.raises(CloseConnection, match="audit log is full"):
            await route.handle(request, context)
        log.take(1)
    await route.handle(request, context)
    assert asked == [request]
