"""What a registry counts of its requests, and what of them is in the audit log."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from tidelog_core.audit.events import Activity, AuditEvent, AuditKind
from tidelog_core.metadata.store import Check, Write
from tidelog_core.model import USER_KIND, Principal
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.schema_registry.api.audited_changes import Change, Operation, change_of
from tidelog_core.schema_registry.api.call_kinds import CallKind, kind_of
from tidelog_core.schema_registry.api.calls import Permissions, Right
from tidelog_core.schema_registry.api.registry_api import RegistryApi
from tidelog_core.schema_registry.journal.journal import RegistryJournal
from tidelog_core.schema_registry.journal.journal_checkpoints import JournalHealth
from tidelog_core.schema_registry.registry import SchemaRegistry
from tidelog_node.audit import audit_log
from tidelog_node.audit.audit_log import AuditLog
from tidelog_node.counters import SchemaTraffic
from tidelog_node.monitoring.registry_source import COUNTED_EVERY_SECONDS, RegistrySource
from tidelog_node.monitoring.scrape import Scrape
from tidelog_node.registry.call_records import CallRecords
from tidelog_node.registry.callers import KnownCaller, RequestOfCaller
from tidelog_node.registry.http_server import RegistryServer
from tidelog_node.requests.session import Session

from tests.support.memory_store import MemoryMetadataStore

NOW_MS = 1_700_000_000_000


class Reader(KnownCaller):
    """A caller that may only read."""

    def may(self, right: Right, subject: str) -> bool:
        del subject
        return right in (Right.READ, Right.READ_SETTINGS)


class NamedDesk:
    """Calls everyone alice, or eve who may only read."""

    async def admit(self, request: RequestOfCaller) -> Permissions:
        session = Session(request.host, request.port, "EXTERNAL")
        session.become(Principal(USER_KIND, request.authorization or "alice"))
        return Reader(session) if request.authorization else KnownCaller(session)


@dataclass
class World:
    """A registry that is recorded."""

    audit: AuditLog = field(
        default_factory=lambda: AuditLog([AuditKind.MANAGEMENT], clock_ms=lambda: NOW_MS)
    )
    traffic: SchemaTraffic = field(default_factory=SchemaTraffic)
    store: MemoryMetadataStore = field(default_factory=lambda: MemoryMetadataStore(latency=0))
    port: int = 0

    def server(self) -> RegistryServer:
        journal = RegistryJournal(self.store, MemoryObjectStore(), "c")
        api = RegistryApi(
            SchemaRegistry(self.store, committer=journal), cluster_id="c", version="1"
        )
        records = CallRecords(self.traffic, self.audit, is_mandatory=True)
        return RegistryServer(api, NamedDesk(), lambda: None, records=records)

    async def call(self, method: str, path: str, body: Any = None, user: str = "") -> int:
        """Return the status of an answer."""

        def ask() -> int:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            text = None if body is None else json.dumps(body)
            headers = {"Content-Type": "application/json"}
            if user:
                headers["Authorization"] = user
            connection.request(method, path, text, headers)
            response = connection.getresponse()
            response.read()
            connection.close()
            return response.status

        return await asyncio.to_thread(ask)

    def events(self) -> list[AuditEvent]:
        return [one.event for one in self.audit.take(100)]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    server = made.server()
    made.port = await server.start("127.0.0.1", 0)
    try:
        yield made
    finally:
        await server.close()


INT, TEXT = {"schema": '"int"'}, {"schema": '"string"'}


async def test_changes_are_recorded_with_who_made_them(world: World) -> None:
    for method, path, body, user, status in (
        ("POST", "/subjects/a/versions", INT, "", 200),
        ("POST", "/subjects/a/versions", INT, "", 200),  # It is there already.
        ("POST", "/subjects/a/versions", TEXT, "", 409),
        ("POST", "/subjects/b/versions", TEXT, "eve", 403),
        ("GET", "/subjects/a/versions", None, "eve", 200),
        ("POST", "/compatibility/subjects/a/versions", TEXT, "", 200),
        ("PUT", "/config", {"compatibility": "FULL"}, "", 200),
        ("PUT", "/config/a", {"compatibility": "NONE"}, "", 200),
        ("DELETE", "/config/a", None, "", 200),
        ("PUT", "/mode/b", {"mode": "READONLY"}, "", 200),
        ("DELETE", "/mode/b", None, "", 200),
        ("DELETE", "/subjects/a/versions/1", None, "", 200),
        ("DELETE", "/subjects/a?permanent=true", None, "", 200),
    ):
        assert await world.call(method, path, body, user) == status, path
    events = world.events()
    shown = [
        (one.operation, one.resources[0].name, dict(one.resources[0].data), one.error)
        for one in events
    ]
    everything = "schema-registry"
    assert shown == [
        ("RegisterSchema", "a", {"id": "1", "version": "1", "schemaType": "AVRO"}, ""),
        ("RegisterSchema", "a", {}, "40901"),
        ("RegisterSchema", "b", {}, "40301"),
        ("SetSchemaConfig", everything, {"compatibility": "FULL"}, ""),
        ("SetSchemaConfig", "a", {"compatibility": "NONE"}, ""),
        ("DeleteSchemaConfig", "a", {"compatibilityLevel": "NONE"}, ""),
        ("SetSchemaMode", "b", {"mode": "READONLY"}, ""),
        ("DeleteSchemaMode", "b", {"mode": "READONLY"}, ""),
        ("DeleteSchemaVersion", "a", {"version": "1", "permanent": "false"}, ""),
        ("DeleteSubject", "a", {"versions": "1", "permanent": "true"}, ""),
    ]
    assert [one.actor.principal for one in events] == [
        *["User:alice"] * 2,
        "User:eve",
        *["User:alice"] * 7,
    ]
    assert {one.kind for one in events} == {AuditKind.MANAGEMENT}
    assert events[0].activity is Activity.CREATE
    assert events[-1].activity is Activity.DELETE


async def test_a_change_whose_client_is_gone_is_recorded_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun may still be made, so to hang up hides nothing."""
    assert await world.call("POST", "/subjects/a/versions", INT) == 200
    world.events()
    has_begun = asyncio.Event()

    async def hang(writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
        del writes, checks
        has_begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(world.store, "commit", hang)
    _, writer = await asyncio.open_connection("127.0.0.1", world.port)
    body = json.dumps(TEXT).encode()
    head = "POST /subjects/b/versions HTTP/1.1\r\nHost: localhost\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    async with asyncio.timeout(60):
        await has_begun.wait()
        writer.close()
        while not (events := world.events()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    (event,) = events
    assert (event.operation, event.resources[0].name) == ("RegisterSchema", "b")
    assert event.error == "50002"


async def test_nothing_changes_while_a_mandatory_audit_log_is_full(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "EVENTS_MAX", 1)
    assert await world.call("POST", "/subjects/a/versions", INT) == 200
    assert await world.call("POST", "/subjects/a/versions", TEXT) == 503
    assert await world.call("DELETE", "/subjects/a") == 503
    assert await world.call("GET", "/subjects/a/versions") == 200
    world.events()
    assert await world.call("DELETE", "/subjects/a") == 200


async def test_requests_are_counted_by_kind_and_outcome(world: World) -> None:
    now = [0.0]
    health = JournalHealth(damaged_object_count=3, failed_checkpoint_count=2)
    source = RegistrySource(world.traffic, world.store, health, clock=lambda: now[0])

    async def scraped() -> dict[str, Any]:
        scrape = Scrape()
        await source.collect(scrape)
        return {name: dict(series) for name, series in scrape.series.items()}

    empty = await scraped()
    assert empty == {
        "tidelog_schema_registry_subjects": {(): 0},
        "tidelog_schema_registry_schemas": {(): 0},
        "tidelog_schema_registry_journal_damaged_objects_total": {(): 3},
        "tidelog_schema_registry_checkpoint_failures_total": {(): 2},
    }
    assert await world.call("POST", "/subjects/a/versions", INT) == 200
    assert await world.call("POST", "/subjects/:.x:a/versions", TEXT) == 200
    assert await world.call("POST", "/subjects/b/versions", INT) == 200
    assert await world.call("POST", "/subjects/a/versions", TEXT) == 409
    assert await world.call("GET", "/schemas/ids/1") == 200
    assert await world.call("GET", "/nothing") == 404
    assert await world.call("DELETE", "/subjects/b") == 200
    found = await scraped()
    assert found["tidelog_schema_registry_requests_total"] == {
        ("register", "ok"): 3,
        ("register", "refused"): 1,
        ("read", "ok"): 1,
        ("other", "refused"): 1,
        ("delete", "ok"): 1,
    }
    times = found["tidelog_schema_registry_request_seconds"]
    assert {labels: sum(one.counts) for labels, one in times.items()} == {
        ("register",): 4,
        ("read",): 1,
        ("other",): 1,
        ("delete",): 1,
    }
    assert found["tidelog_schema_registry_schemas"] == {(): 0}  # as counted within the minute
    now[0] += COUNTED_EVERY_SECONDS
    found = await scraped()
    assert found["tidelog_schema_registry_subjects"] == {(): 2}
    assert found["tidelog_schema_registry_schemas"] == {(): 2}


@pytest.mark.parametrize(
    ("method", "path", "kind", "operation"),
    [
        ("GET", "", CallKind.READ, None),
        ("GET", "subjects/config/versions", CallKind.READ, None),
        ("POST", "subjects/a", CallKind.LOOK_UP, None),
        ("POST", "subjects/a/versions", CallKind.REGISTER, Operation.REGISTER),
        ("POST", "subjects/a/other", CallKind.LOOK_UP, None),
        ("DELETE", "subjects/a", CallKind.DELETE, Operation.DELETE_SUBJECT),
        ("DELETE", "subjects/a/versions/latest", CallKind.DELETE, Operation.DELETE_VERSION),
        ("DELETE", "subjects/a/other/1", CallKind.DELETE, None),
        ("PUT", "subjects/a", CallKind.OTHER, None),
        ("GET", "config/a", CallKind.READ_SETTINGS, None),
        ("PUT", "mode", CallKind.CHANGE_SETTINGS, Operation.SET_MODE),
        ("POST", "config", CallKind.OTHER, None),
        ("PATCH", "schemas", CallKind.OTHER, None),
        ("GET", "x", CallKind.OTHER, None),
    ],
)
def test_calls_have_a_kind_and_some_an_operation(
    method: str, path: str, kind: CallKind, operation: Operation | None
) -> None:
    segments = [one for one in path.split("/") if one]
    assert kind_of(method, segments) is kind
    change = change_of(method, segments, {}, None, 404)
    assert (None if change is None else change.operation) == operation
    if isinstance(change, Change):
        assert change.error_code == 404
