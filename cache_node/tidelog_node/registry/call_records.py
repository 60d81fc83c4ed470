"""Records the registry's calls: counters for metrics, and changes for the audit log."""

from __future__ import annotations

from tidelog_core.audit.events import Activity, Resource
from tidelog_core.schema_registry.api.audited_changes import Change, Operation
from tidelog_core.schema_registry.api.call_kinds import CallKind, kind_of
from tidelog_core.schema_registry.api.calls import Answer
from tidelog_core.schemas.refusals import RegistryRefusal

from tidelog_node.audit.audit_log import AuditLog
from tidelog_node.counters import SchemaTraffic
from tidelog_node.requests.session import Session

OK, REFUSED, FAILED = "ok", "refused", "failed"  # by the caller's fault, and by ours
_CHANGING = frozenset({CallKind.REGISTER, CallKind.DELETE, CallKind.CHANGE_SETTINGS})
_ACTIVITIES = {
    Operation.REGISTER: Activity.CREATE,
    Operation.DELETE_SUBJECT: Activity.DELETE,
    Operation.DELETE_VERSION: Activity.DELETE,
    Operation.SET_CONFIG: Activity.UPDATE,
    Operation.DELETE_CONFIG: Activity.UPDATE,
    Operation.SET_MODE: Activity.UPDATE,
    Operation.DELETE_MODE: Activity.UPDATE,
}


class CallRecords:
    """The records of one registry. For the node's event loop."""

    def __init__(
        self, traffic: SchemaTraffic, audit: AuditLog | None = None, *, is_mandatory: bool = False
    ) -> None:
        """``is_mandatory``: nothing is changed while no event can be recorded."""
        self._traffic = traffic
        self._audit = audit
        self._is_mandatory = is_mandatory

    def note(self, method: str, segments: list[str], answer: Answer, seconds: float) -> None:
        """Count an answer."""
        outcome = OK if answer.status < 400 else REFUSED if answer.status < 500 else FAILED
        self._traffic.note(kind_of(method, segments), outcome, seconds)

    def require_room(self, method: str, segments: list[str]) -> None:
        """Raise ``RegistryRefusal`` if the call would change something without an event."""
        if self._audit is None or not self._is_mandatory or not self._audit.is_full:
            return
        if kind_of(method, segments) in _CHANGING:
            raise RegistryRefusal(503, "the audit log is full, see audit.mandatory: try again")

    def note_change(self, session: Session, change: Change | None) -> None:
        """Record a change, or that the caller could not make it."""
        if self._audit is None or change is None:
            return
        kind = "Subject" if change.subject else "SchemaRegistry"
        resource = Resource(kind, change.subject or "schema-registry", change.data)
        error = str(change.error_code) if change.error_code else ""
        activity = _ACTIVITIES[change.operation]
        self._audit.note_change(session, change.operation.value, activity, {error: [resource]})
