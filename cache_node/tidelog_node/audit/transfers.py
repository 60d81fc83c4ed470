"""Records that clients produce to topics or consume from them, for the hot routes.

One look-up for each topic of a request. Clients are told apart by user, host and client id.
"""

from __future__ import annotations

from uuid import UUID

from tidelog_core.audit.events import AuditKind
from tidelog_core.metadata.image.cluster_view import ClusterView

from tidelog_node.audit.audit_log import AuditLog
from tidelog_node.requests.session import Session


class TransferRecorder:
    """Records one of the two kinds. For the node's event loop."""

    def __init__(self, log: AuditLog, kind: AuditKind, view: ClusterView) -> None:
        self._log = log
        self._kind = kind
        self._view = view

    def note(self, session: Session, topic: bytes, *, is_id: bool) -> None:
        """Record that the client writes or reads the topic, named as its request does."""
        key = (self._kind, session.principal, session.client_host, session.client_id, bytes(topic))
        if self._log.count(key):
            return
        if is_id:
            name = self._view.image.topic_names.get(UUID(bytes=bytes(topic)))
        else:
            known = str(topic, "utf-8", "replace")
            name = known if known in self._view.image.topics else None
        if name is not None:  # Else nothing was written or read.
            self._log.note_transfer(session, self._kind, name, key)
