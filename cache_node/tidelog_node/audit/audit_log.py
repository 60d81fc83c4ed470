"""Collects the events of a node until they are published, up to a limit.

Equal events are summed: the first one is recorded at once, those of the next minute as one event
with their number. Events of changes (``MANAGEMENT``) are never summed. At most ``EVENTS_MAX``
events wait, and ``SUMS_MAX`` sums; further events are lost and counted, and the count is
recorded as an event itself.

A crash of the node loses unpublished events: those of the last second, and sums of the minute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID, uuid4

from tidelog_core.audit.events import Activity, Actor, AuditEvent, AuditKind, Resource
from tidelog_core.model import ANONYMOUS
from tidelog_core.security.acl import AclOperation, ResourceType
from tidelog_core.security.authorization import Client

from tidelog_node.requests.session import Session

EVENTS_MAX = 10_000
SUMS_MAX = 10_000
SUM_MS = 60_000
RESOURCES_MAX = 100  # of one event; an event with more is divided
NOBODY = Actor("", "")

_ACTIVITIES = {
    AclOperation.READ: Activity.READ,
    AclOperation.DESCRIBE: Activity.READ,
    AclOperation.DESCRIBE_CONFIGS: Activity.READ,
    AclOperation.CREATE: Activity.CREATE,
    AclOperation.WRITE: Activity.UPDATE,
    AclOperation.ALTER: Activity.UPDATE,
    AclOperation.ALTER_CONFIGS: Activity.UPDATE,
    AclOperation.DELETE: Activity.DELETE,
}


class Pending(NamedTuple):
    """An event to publish, with the id by which readers find a repeated one."""

    uid: UUID
    event: AuditEvent


SumKey = tuple[Hashable, ...]
"""The fields by which events are equal."""


class _Sum:
    """The events that are equal to one that is recorded already."""

    __slots__ = ("begin_ms", "count", "end_ms", "event")

    def __init__(self, event: AuditEvent) -> None:
        self.event = event
        self.count = 0
        self.begin_ms = self.end_ms = 0


class AuditLog:
    """The events of one node. For its event loop."""

    def __init__(
        self,
        kinds: Iterable[AuditKind],
        *,
        clock_ms: Callable[[], int],
        excluded: Iterable[str] = (),
        is_dry_run: bool = False,
    ) -> None:
        """``excluded`` are principals whose events are not recorded.

        ``is_dry_run``: what is denied is only logged.
        """
        self._kinds = frozenset(kinds)
        self._excluded = frozenset(excluded)
        self._clock_ms = clock_ms
        self._is_dry_run = is_dry_run
        self._pending: deque[Pending] = deque()
        self._sums: dict[SumKey, _Sum] = {}
        self._summed_since_ms = clock_ms()
        self.lost_count = 0

    def wants(self, kind: AuditKind) -> bool:
        """Return whether events of the kind are recorded."""
        return kind in self._kinds

    @property
    def is_full(self) -> bool:
        """Whether a further event would be lost."""
        return len(self._pending) >= EVENTS_MAX

    @property
    def pending_count(self) -> int:
        """The events that wait to be published."""
        return len(self._pending)

    # -- what happened --

    def count(self, key: SumKey) -> bool:
        """Count an event that is equal to an earlier one; return whether there was one."""
        known = self._sums.get(key)
        if known is None:
            return False
        known.end_ms = self._clock_ms()
        if not known.count:
            known.begin_ms = known.end_ms
        known.count += 1
        return True

    def note_login(self, session: Session, method: str) -> None:
        """Record that a client has logged in, by this mechanism or a certificate."""
        self._note_login(session, method, "")

    def note_refused(self, session: Session, reason: str) -> None:
        """Record that a client was refused before it could send requests."""
        self._note_login(session, "", reason)

    def note_denied(
        self, client: Client, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> None:
        """Record that ACLs do not allow the operation."""
        if self.wants(AuditKind.DENIED) and client.principals[0] not in self._excluded:
            key = (AuditKind.DENIED, client, operation, resource_type, name)
            if self.count(key):
                return
            groups = tuple(one.partition(":")[2] for one in client.principals[1:])
            self._begin_sum(
                key,
                self._event(
                    AuditKind.DENIED,
                    Actor(client.principals[0], client.host, groups=groups),
                    _label(operation.name),
                    _ACTIVITIES.get(operation, Activity.OTHER),
                    (Resource(_label(resource_type.name), name),),
                    "" if self._is_dry_run else "denied",
                ),
            )

    def note_transfer(self, session: Session, kind: AuditKind, topic: str, key: SumKey) -> None:
        """Record that a client produces to the topic or consumes from it.

        ``kind`` is one of these two, and wanted. ``key`` is not counted yet.
        """
        if str(session.principal) in self._excluded:
            return
        is_write = kind is AuditKind.PRODUCE
        self._begin_sum(
            key,
            self._event(
                kind,
                replace(actor_of(session), port=0),
                "Produce" if is_write else "Fetch",
                Activity.UPDATE if is_write else Activity.READ,
                (Resource("Topic", topic),),
                "",
            ),
        )

    def note_change(
        self,
        session: Session,
        operation: str,
        activity: Activity,
        resources_by_error: Mapping[str, Sequence[Resource]],
    ) -> None:
        """Record a request's changes by their error; an empty error is a success."""
        if str(session.principal) in self._excluded:
            return
        actor = actor_of(session)
        for error, resources in resources_by_error.items():
            for at in range(0, max(len(resources), 1), RESOURCES_MAX):
                part = tuple(resources[at : at + RESOURCES_MAX])
                self._add(
                    self._event(AuditKind.MANAGEMENT, actor, operation, activity, part, error)
                )

    # -- publishing --

    def take(self, count_max: int) -> list[Pending]:
        """Return the oldest events, which are no longer kept."""
        self._end_sums()
        if self.lost_count and not self.is_full:
            loss = self._event(AuditKind.LOSS, NOBODY, "Audit", Activity.OTHER, (), "not recorded")
            self._pending.append(Pending(uuid4(), replace(loss, count=self.lost_count)))
            self.lost_count = 0
        return [self._pending.popleft() for _ in range(min(count_max, len(self._pending)))]

    def put_back(self, events: Sequence[Pending]) -> None:
        """Keep events that could not be published, before those that came since."""
        self._pending.extendleft(reversed(events))

    def end_sums(self) -> None:
        """Record all sums now, because the node stops."""
        self._end_sums(is_last=True)

    # -- inside --

    def _note_login(self, session: Session, method: str, error: str) -> None:
        if not self.wants(AuditKind.AUTHENTICATE):
            return
        if not error and str(session.principal) in self._excluded:
            return
        key = (session.principal, session.client_host, session.listener, method, error)
        if self.count(key):
            return
        actor = actor_of(session)
        if error and session.principal == ANONYMOUS:
            actor = replace(actor, principal="")  # The client has not proved who it is.
        event = self._event(AuditKind.AUTHENTICATE, actor, method, Activity.OTHER, (), error)
        self._begin_sum(key, event)

    def _event(  # noqa: PLR0917
        self,
        kind: AuditKind,
        actor: Actor,
        operation: str,
        activity: Activity,
        resources: tuple[Resource, ...],
        error: str,
    ) -> AuditEvent:
        now_ms = self._clock_ms()
        return AuditEvent(kind, actor, operation, activity, resources, error, now_ms, now_ms)

    def _begin_sum(self, key: SumKey, event: AuditEvent) -> None:
        if len(self._sums) >= SUMS_MAX:
            self.lost_count += 1
            return
        self._sums[key] = _Sum(event)
        self._add(event)

    def _add(self, event: AuditEvent) -> None:
        if self.is_full:
            self.lost_count += 1
        else:
            self._pending.append(Pending(uuid4(), event))

    def _end_sums(self, *, is_last: bool = False) -> None:
        now_ms = self._clock_ms()
        if now_ms - self._summed_since_ms < SUM_MS and not is_last:
            return
        self._summed_since_ms = now_ms
        sums, self._sums = self._sums, {}
        for one in sums.values():
            if one.count:
                actor = replace(one.event.actor, port=0)
                self._add(
                    replace(
                        one.event,
                        actor=actor,
                        count=one.count,
                        begin_ms=one.begin_ms,
                        end_ms=one.end_ms,
                    )
                )


def actor_of(session: Session) -> Actor:
    """Return the client of a session."""
    return Actor(
        str(session.principal),
        session.client_host,
        session.client_port,
        session.client_id or "",
        session.groups,
        session.listener,
    )


def _label(name: str) -> str:
    """Return the name of an enum's member as Kafka's tools write it: ``AlterConfigs``."""
    return "".join(part.capitalize() for part in name.split("_"))
