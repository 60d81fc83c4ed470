"""Events have the form of OCSF's schema."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from tidelog_core.audit.events import (
    TEXT_SIZE_MAX,
    Activity,
    Actor,
    AuditEvent,
    AuditKind,
    EventSource,
    Resource,
    encode_event,
)

UID = UUID(int=7)
ALICE = Actor("User:alice", "10.0.0.1", 4711, "app", ("sales",), "CLIENTS")
# Source: schema.ocsf.io/1.3.0, the required attributes of both classes.
REQUIRED = {
    "activity_id", "category_uid", "class_uid", "metadata", "severity_id", "time", "type_uid",
}  # fmt: skip
REQUIRED_OF_API = REQUIRED | {"actor", "api", "src_endpoint"}
REQUIRED_OF_LOGIN = REQUIRED | {"user"}


def encoded(event: AuditEvent) -> dict[str, object]:
    found: dict[str, object] = json.loads(encode_event(event, EventSource("cluster", 3), UID))
    return found


def event(
    kind: AuditKind = AuditKind.MANAGEMENT, *, error: str = "", name: str = "t"
) -> AuditEvent:
    topic = Resource("Topic", name, {"retention.ms": "1", "cleanup.policy": None})
    return AuditEvent(kind, ALICE, "CreateTopics", Activity.CREATE, (topic,), error, 1000, 2000, 5)


def test_a_change_is_an_api_activity() -> None:
    found = encoded(event())
    assert found.keys() >= REQUIRED_OF_API
    assert (found["category_uid"], found["class_uid"], found["type_uid"]) == (6, 6003, 600301)
    assert (found["status_id"], found["count"]) == (1, 5)
    assert (found["start_time"], found["end_time"], found["time"]) == (1000, 2000, 2000)
    assert found["actor"] == {
        "user": {"name": "User:alice", "type_id": 1, "groups": [{"name": "sales"}]}
    }
    assert found["resources"] == [
        {"type": "Topic", "name": "t", "data": {"retention.ms": "1", "cleanup.policy": None}}
    ]


def test_a_refused_login_is_an_authentication_that_failed() -> None:
    found = encoded(event(AuditKind.AUTHENTICATE, error="wrong password"))
    assert found.keys() >= REQUIRED_OF_LOGIN
    assert (found["category_uid"], found["class_uid"], found["type_uid"]) == (3, 3002, 300201)
    assert (found["status_id"], found["status_detail"]) == (2, "wrong password")
    assert "resources" not in found


@pytest.mark.parametrize("name", ["x" * 5_000, "\ud800", "ü\n\0", '"'])
def test_texts_of_clients_are_bounded_and_always_json(name: str) -> None:
    (resource,) = encoded(event(name=name))["resources"]  # type: ignore[misc]
    assert len(resource["name"]) <= TEXT_SIZE_MAX
