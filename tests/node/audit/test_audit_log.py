"""Events are summed, bounded, and never silently lost."""

from __future__ import annotations

from tidelog_core.audit.events import Activity, AuditKind, Resource
from tidelog_core.model import Principal
from tidelog_core.security.acl import AclOperation, ResourceType
from tidelog_core.security.authorization import Client
from tidelog_node.audit.audit_log import EVENTS_MAX, RESOURCES_MAX, SUM_MS, SUMS_MAX, AuditLog
from tidelog_node.requests.session import Session

from tests.support.clock import Clock

EVE = Client(("User:eve", "Group:a"), "10.0.0.9")
ALL = tuple(kind for kind in AuditKind if kind is not AuditKind.LOSS)


def log(*kinds: AuditKind, **settings: object) -> tuple[AuditLog, Clock]:
    clock = Clock(1_000)
    return AuditLog(kinds or ALL, clock_ms=clock, **settings), clock  # type: ignore[arg-type]


def session(user: str = "alice", port: int = 4711) -> Session:
    found = Session("10.0.0.1", port, "CLIENTS")
    found.become(Principal("User", user))
    return found


def deny(audit: AuditLog, name: str = "secret") -> None:
    audit.note_denied(EVE, AclOperation.READ, ResourceType.TOPIC, name)


def test_equal_events_are_one_at_once_and_one_for_the_rest_of_the_minute() -> None:
    audit, clock = log()
    for _ in range(5):
        deny(audit)
        clock.now_ms += 10
    (first,) = audit.take(10)
    assert (first.event.count, first.event.begin_ms, first.event.error) == (1, 1_000, "denied")
    assert first.event.actor.groups == ("a",)
    assert audit.take(10) == []
    clock.now_ms += SUM_MS
    (rest,) = audit.take(10)
    assert (rest.event.count, rest.event.begin_ms, rest.event.end_ms) == (4, 1_010, 1_040)
    assert rest.uid != first.uid
    deny(audit)  # the next minute
    assert [one.event.count for one in audit.take(10)] == [1]


def test_sums_are_recorded_when_the_node_stops() -> None:
    audit, _ = log()
    deny(audit)
    deny(audit)
    audit.end_sums()
    assert [one.event.count for one in audit.take(10)] == [1, 1]


def test_logins_of_other_users_methods_and_reasons_are_other_events() -> None:
    audit, _ = log()
    for port in (1, 2):
        audit.note_login(session(port=port), "SCRAM-SHA-256")
        audit.note_login(session("bob", port), "SCRAM-SHA-256")
        audit.note_login(session(port=port), "PLAIN")
        audit.note_refused(Session("10.0.0.1", port, "CLIENTS"), "wrong password")
    found = [(one.event.actor.principal, one.event.error) for one in audit.take(10)]
    assert found == [
        ("User:alice", ""), ("User:bob", ""), ("User:alice", ""), ("", "wrong password"),
    ]  # fmt: skip


def test_changes_are_never_summed_and_large_ones_divided() -> None:
    audit, _ = log()
    topics = [Resource("Topic", f"t{number}") for number in range(RESOURCES_MAX + 1)]
    for _ in range(2):
        audit.note_change(session(), "CreateTopics", Activity.CREATE, {"": topics, "bad": []})
    found = [(len(one.event.resources), one.event.error) for one in audit.take(10)]
    assert found == [(RESOURCES_MAX, ""), (1, ""), (0, "bad")] * 2


def test_what_is_not_wanted_is_not_recorded() -> None:
    audit, _ = log(AuditKind.MANAGEMENT, excluded=("User:eve", "User:alice"))
    deny(audit)
    audit.note_login(session("bob"), "PLAIN")
    audit.note_change(session(), "CreateTopics", Activity.CREATE, {"": []})
    assert audit.take(10) == []
    assert not audit.wants(AuditKind.DENIED)


def test_events_are_bounded_and_lost_ones_are_counted_in_an_event() -> None:
    audit, _ = log()
    for number in range(SUMS_MAX + 5):
        deny(audit, f"t{number}")
    assert audit.pending_count == EVENTS_MAX
    audit.note_change(session(), "CreateTopics", Activity.CREATE, {"": []})
    assert audit.is_full
    assert audit.lost_count == 6
    taken = audit.take(100)
    assert audit.lost_count == 6  # There was no room for the event before.
    audit.put_back(taken[1:])
    rest = audit.take(EVENTS_MAX)
    assert rest[:99] == taken[1:]
    assert (rest[-1].event.kind, rest[-1].event.count) == (AuditKind.LOSS, 6)


def test_events_that_could_not_be_published_keep_their_place_and_id() -> None:
    audit, _ = log()
    for name in "abc":
        deny(audit, name)
    taken = audit.take(2)
    deny(audit, "d")
    audit.put_back(taken)
    names = [one.event.resources[0].name for one in audit.take(10)]
    assert names == ["a", "b", "c", "d"]
