"""One event of the audit log, and its JSON by the Open Cybersecurity Schema Framework (OCSF).

A record of the audit topic is one event. Logins are OCSF's class Authentication (3002), everything
else its API Activity (6003). Source: schema.ocsf.io, version 1.3.0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

AUDIT_TOPIC = "__tidelog_audit"
OCSF_VERSION = "1.3.0"
TEXT_SIZE_MAX = 1_000  # characters of a text that a client chose

_AUTHENTICATION, _API_ACTIVITY = 3002, 6003
_LOGON = 1
_INFORMATIONAL, _MEDIUM = 1, 3  # severities
_SUCCESS, _FAILURE = 1, 2
_USER = 1  # the type of an actor


class AuditKind(Enum):
    """The subject of an event; the values of ``audit.event.types``."""

    AUTHENTICATE = "authenticate"  # a client has logged in, or was refused
    MANAGEMENT = "management"  # a request that changes topics, settings, users, ACLs and so on
    DENIED = "denied"  # an operation that ACLs do not allow
    PRODUCE = "produce"
    CONSUME = "consume"
    LOSS = "loss"  # events that were not recorded


AUDIT_KINDS = tuple(kind.value for kind in AuditKind if kind is not AuditKind.LOSS)


class Activity(IntEnum):
    """The operation on the resources, by OCSF's numbers for API Activity."""

    CREATE = 1
    READ = 2
    UPDATE = 3
    DELETE = 4
    OTHER = 99


@dataclass(frozen=True, slots=True)
class Actor:
    """A client, as its session knows it."""

    principal: str  # such as User:alice
    host: str
    port: int = 0  # 0: of several connections
    client_id: str = ""
    groups: tuple[str, ...] = ()
    listener: str = ""


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that an operation was about."""

    type: str  # Topic, Group and so on
    name: str
    data: Mapping[str, str | None] = field(default_factory=dict, hash=False)  # the new values


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One event, or the sum of equal ones."""

    kind: AuditKind
    actor: Actor
    operation: str  # an API such as CreateTopics, an ACL operation such as Read, or a mechanism
    activity: Activity
    resources: tuple[Resource, ...]
    error: str  # why it failed, empty: it did not
    begin_ms: int  # Unix time of the first, and of the last
    end_ms: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class EventSource:
    """The node that records events."""

    cluster_id: str
    broker_id: int


def encode_event(event: AuditEvent, source: EventSource, uid: UUID) -> bytes:
    """Return the event's JSON. ``uid`` is the same each time that this event is written."""
    actor, is_login = event.actor, event.kind is AuditKind.AUTHENTICATE
    class_uid = _AUTHENTICATION if is_login else _API_ACTIVITY
    activity = _LOGON if is_login else int(event.activity)
    user: dict[str, Any] = {"name": _cut(actor.principal), "type_id": _USER}
    if actor.groups:
        user["groups"] = [{"name": _cut(group)} for group in actor.groups]
    document: dict[str, Any] = {
        "category_uid": class_uid // 1000,
        "class_uid": class_uid,
        "activity_id": activity,
        "type_uid": 100 * class_uid + activity,
        "severity_id": _MEDIUM if event.error else _INFORMATIONAL,
        "status_id": _FAILURE if event.error else _SUCCESS,
        "time": event.end_ms,
        "start_time": event.begin_ms,
        "end_time": event.end_ms,
        "count": event.count,
        "metadata": {
            "version": OCSF_VERSION,
            "uid": str(uid),
            "event_code": event.kind.value,
            "log_name": AUDIT_TOPIC,
            "product": {"name": "Tidelog", "vendor_name": "Tidelog"},
        },
        "actor": {"user": user},
        "src_endpoint": {"ip": actor.host, "port": actor.port},
        "dst_endpoint": {"uid": str(source.broker_id), "svc_name": source.cluster_id},
        "unmapped": {"client_id": _cut(actor.client_id), "listener": actor.listener},
    }
    if event.error:
        document["status_detail"] = _cut(event.error)
    if is_login:
        document["user"] = user
        document["auth_protocol"] = event.operation
    else:
        document["api"] = {"operation": event.operation, "service": {"name": "kafka"}}
        document["resources"] = [_encode_resource(resource) for resource in event.resources]
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode(
        errors="backslashreplace"
    )


def _encode_resource(resource: Resource) -> dict[str, Any]:
    encoded: dict[str, Any] = {"type": resource.type, "name": _cut(resource.name)}
    if resource.data:
        encoded["data"] = {
            _cut(name): None if value is None else _cut(value)
            for name, value in resource.data.items()
        }
    return encoded


def _cut(text: str) -> str:
    return text[:TEXT_SIZE_MAX]
