"""Sessions and contexts of requests that tests make."""

from __future__ import annotations

from tidelog_core.metadata.endpoints import PLAINTEXT
from tidelog_node.requests.routes import RequestContext
from tidelog_node.requests.session import NO_NODE, Session


def a_session(port: int = 40_000, *, listener: str = PLAINTEXT, node_id: int = NO_NODE) -> Session:
    """Return the session of a new connection."""
    session = Session("127.0.0.1", port, listener)
    session.node_id = node_id
    return session


def context_of(
    api_version: int,
    *,
    api_key: int = 1,
    correlation_id: int = 1,
    client_id: bytes | None = None,
    session: Session | None = None,
    node_id: int = NO_NODE,
) -> RequestContext:
    """Return the context of a request of this version."""
    session = session or a_session(node_id=node_id)
    session.note_client_id(client_id)
    return RequestContext(api_key, api_version, correlation_id, session)
