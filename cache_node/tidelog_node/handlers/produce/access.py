"""Decides which topics of a Produce request its client may write."""

from __future__ import annotations

from dataclasses import replace

from tidelog_core.errors import TidelogError, TransactionalIdAuthorizationFailed
from tidelog_core.security.acl import AclOperation, ResourceType

from tidelog_node.answers import CloseConnection
from tidelog_node.authorization.access import Access
from tidelog_node.counters import NodeCounters
from tidelog_node.handlers.produce.answers import failed_result
from tidelog_node.handlers.produce.pending_answers import Topics
from tidelog_node.requests.routes import RequestContext
from tidelog_node.requests.session import Session
from tidelog_node.wire.produce import API_KEY, TOPIC_ID_FROM, ProduceRequest, ProduceTopic


def authorized_part(
    request: ProduceRequest, context: RequestContext, access: Access, counters: NodeCounters
) -> ProduceRequest:
    """Return the request without the topics that the client may not write.

    They cause no inspection, and become no part of a transaction. Raises ``CloseConnection`` if
    the request wants no answer.
    """
    session, transactional_id = context.session, request.transactional_id
    is_id = context.api_version >= TOPIC_ID_FROM
    refusal: TidelogError | None = None
    if transactional_id is not None:
        name = str(transactional_id, "utf-8", "replace")
        if not access.may(session, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
            refusal = TransactionalIdAuthorizationFailed(
                f"the client may not write with the transactional id {name}"
            )
    elif _may_write_all(request, access, session, is_id=is_id):
        return request
    allowed: list[ProduceTopic] = []
    refused: Topics = []
    for topic, partitions in request.topics:
        error = refusal or access.write_refusal(session, topic, is_id=is_id)
        if error is None:
            allowed.append((topic, partitions))
        else:
            counters.note_error(API_KEY, error.code)
            refused.append((topic, [failed_result(index, None, error) for index, _ in partitions]))
    if not refused:
        return request
    if not request.acks:
        raise CloseConnection("produce with acks=0 was not authorized", is_expected=True)
    return replace(request, topics=allowed, refused=refused)


def _may_write_all(
    request: ProduceRequest, access: Access, session: Session, *, is_id: bool
) -> bool:
    """Return whether no topic is refused: small requests would pay for another list of topics."""
    for topic, _ in request.topics:
        if access.write_refusal(session, topic, is_id=is_id) is not None:
            return False
    return True
