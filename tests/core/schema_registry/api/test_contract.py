"""Whole stories of requests, each with the answer of Confluent's registry.

Beside ``test_registry_api``, which has one request of each kind. Source: the REST API's reference, and the
resources and error codes of Confluent's registry.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tidelog_core.schema_registry.api.calls import V1_JSON, Call
from tidelog_core.schema_registry.api.registry_api import RegistryApi
from tidelog_core.schema_registry.registry import SchemaRegistry

from tests.support.memory_store import MemoryMetadataStore

Step = tuple[str, str, Any, int, Any]  # method, path, body; status, what counts of the answer


def record(name: str, *fields: str, **types: Any) -> str:
    """Return an Avro record: fields with defaults, and fields with these types."""
    made: list[dict[str, Any]] = [{"name": one, "type": "int", "default": 0} for one in fields]
    made += [{"name": one, "type": of} for one, of in types.items()]
    return json.dumps({"type": "record", "name": name, "fields": made}, separators=(",", ":"))


def avro(text: str, **more: Any) -> dict[str, Any]:
    return {"schema": text, **more}


def of_json(document: Any, **more: Any) -> dict[str, Any]:
    text = json.dumps(document, separators=(",", ":"))
    return {"schema": text, "schemaType": "JSON", **more}


def proto(text: str, **more: Any) -> dict[str, Any]:
    return {"schema": text, "schemaType": "PROTOBUF", **more}


def reference(name: str, subject: str, version: int) -> dict[str, Any]:
    return {"name": name, "subject": subject, "version": version}


def versions(subject: str) -> str:
    return f"/subjects/{subject}/versions"


def check(subject: str, version: str = "latest", query: str = "") -> str:
    return f"/compatibility/subjects/{subject}/versions/{version}{query}"


A, AX, AXY = record("A"), record("A", "x"), record("A", "x", "y")
A_NEEDS = record("A", z="string")
LONG, TEXT = '"long"', '"string"'
NONE = {"compatibility": "NONE"}

ERRORS: list[Step] = [
    ("GET", "/subjects/none/versions", None, 404, 40401),
    ("GET", "/subjects/none/versions?deleted=true", None, 404, 40401),
    ("GET", "/subjects/none/versions/latest", None, 404, 40401),
    ("GET", "/subjects/none/versions/latest/schema", None, 404, 40401),
    ("GET", "/subjects/none/versions/-1", None, 404, 40401),
    ("GET", "/subjects/none/versions/1/referencedby", None, 404, 40401),
    ("DELETE", "/subjects/none?permanent=true", None, 404, 40401),
    ("DELETE", "/subjects/none/versions/latest", None, 404, 40401),
    ("POST", "/subjects/none?deleted=true", avro(A), 404, 40401),
    ("GET", "/schemas/ids/99", None, 404, 40403),
    ("GET", "/schemas/ids/99/schema", None, 404, 40403),
    ("GET", "/schemas/ids/99/subjects", None, 404, 40403),
    ("GET", "/schemas/ids/99/versions", None, 404, 40403),
    ("GET", "/schemas/ids/0", None, 404, 40403),
    ("GET", "/schemas/guids/82ade88d-23a5-1ee8-5542-baf5f39e1bce", None, 404, 40403),
    ("GET", "/subjects/none/versions/-2", None, 422, 42202),
    ("GET", "/subjects/none/versions/2147483648", None, 422, 42202),
    ("GET", "/subjects/none/versions/1.5", None, 422, 42202),
    ("DELETE", "/subjects/none/versions/0", None, 422, 42202),
    ("DELETE", "/subjects/none/versions/newest", None, 422, 42202),
    ("POST", check("none", "0"), avro(A), 422, 42202),
    ("POST", check("none", "abc"), avro(A), 422, 42202),
    ("POST", check("none", "3"), avro(A), 404, 40402),
    ("POST", check("none", "latest"), avro("{"), 422, 42201),
    ("POST", versions("e"), avro("not json {"), 422, 42201),
    ("POST", versions("e"), avro('{"type":"record"}'), 422, 42201),
    ("POST", versions("e"), avro('{"type":"unknown"}'), 422, 42201),
    ("POST", versions("e"), avro('{"type":"fixed","name":"F"}'), 422, 42201),
    ("POST", versions("e"), avro('{"type":"enum","name":"E","symbols":["a","a"]}'), 422, 42201),
    ("POST", versions("e"), avro('["null","null"]'), 422, 42201),
    ("POST", versions("e"), avro(record("A", z="Missing")), 422, 42201),
    ("POST", versions("e"), {"schemaType": "AVRO"}, 422, 42201),
    ("POST", versions("e"), avro(A, schemaType="THRIFT"), 422, 42201),
    ("POST", versions("e"), of_json([1]), 422, 42201),
    ("POST", versions("e"), of_json({"type": "nothing"}), 422, 42201),
    ("POST", versions("e"), of_json({"$ref": "missing.json"}), 422, 42201),
    ("POST", versions("e"), proto("message {"), 422, 42201),
    ("POST", versions("e"), proto('syntax = "proto3"; message A { Missing m = 1; }'), 422, 42201),
    ("POST", versions("e"), proto('import "missing.proto"; message A {}'), 422, 42201),
    ("POST", versions("e"), avro(A, references=[reference("B", "b", 1)]), 422, 42201),
    ("PUT", "/config", {"compatibility": "BACKWARDS"}, 422, 42203),
    ("PUT", "/config/e", {"compatibility": ""}, 422, 42203),
    ("PUT", "/mode", {"mode": "WRITE"}, 422, 42204),
    ("PUT", "/mode/e", {"mode": ""}, 422, 42204),
    ("GET", "/config/e", None, 404, 40408),
    ("GET", "/mode/e", None, 404, 40409),
    ("GET", "/subjects", None, 200, []),
    ("GET", "/schemas", None, 200, []),
    ("GET", "/schemas/types", None, 200, ["JSON", "PROTOBUF", "AVRO"]),
    ("PATCH", "/subjects", None, 405, 405),
    ("DELETE", "/subjects", None, 405, 405),
    ("POST", "/schemas/ids/1", {}, 405, 405),
    ("GET", "/compatibility", None, 404, 404),
    ("GET", "/subjects/a/b/c", None, 404, 404),
]

COMPATIBILITY: list[Step] = [
    ("POST", versions("c"), avro(AX), 200, {"id": 1}),
    ("POST", check("c"), avro(AXY), 200, {"is_compatible": True}),
    ("POST", check("c"), avro(A), 200, {"is_compatible": True}),
    ("POST", check("c"), avro(A_NEEDS), 200, {"is_compatible": False}),
    ("POST", check("c", "1"), avro(A_NEEDS), 200, {"is_compatible": False}),
    ("POST", check("c", "-1"), avro(A), 200, {"is_compatible": True}),
    ("POST", check("c", "2"), avro(A), 404, 40402),
    ("POST", check("c", "latest", "?verbose=true"), avro(A), 200, {"messages": []}),
    (
        "POST",
        check("c", "latest", "?verbose=true"),
        avro(A_NEEDS),
        200,
        "READER_FIELD_MISSING_DEFAULT_VALUE",
    ),
    ("POST", check("c", "latest", "?verbose=true"), avro(A_NEEDS), 200, "{oldSchemaVersion: 1}"),
    ("POST", check("c", "latest", "?verbose=true"), avro(record("B")), 200, "NAME_MISMATCH"),
    ("POST", check("c", "latest", "?verbose=true"), avro(LONG), 200, "TYPE_MISMATCH"),
    ("POST", versions("c"), avro(A_NEEDS), 409, 40901),
    ("POST", versions("c"), of_json({"type": "object"}), 409, 40901),
    ("PUT", "/config/c", {"compatibility": "FORWARD"}, 200, {"compatibility": "FORWARD"}),
    ("GET", "/config/c", None, 200, {"compatibilityLevel": "FORWARD"}),
    ("POST", check("c"), avro(record("A", x="int", z="string")), 200, {"is_compatible": True}),
    ("POST", check("c"), avro(A), 200, {"is_compatible": True}),
    ("PUT", "/config/c", {"compatibility": "FULL"}, 200, {"compatibility": "FULL"}),
    ("POST", check("c"), avro(record("A", x="int", z="string")), 200, {"is_compatible": False}),
    ("POST", check("c"), avro(AXY), 200, {"is_compatible": True}),
    ("POST", versions("c"), avro(AXY), 200, {"id": 2}),
    ("PUT", "/config/c", {"compatibility": "BACKWARD"}, 200, {"compatibility": "BACKWARD"}),
    ("POST", versions("l"), avro('"int"'), 200, {"id": 3, "version": 1}),
    ("POST", versions("l"), avro(LONG), 200, {"id": 4, "version": 2}),
    ("POST", check("l"), avro('"double"'), 200, {"is_compatible": True}),
    ("POST", check("l"), avro('"int"'), 200, {"is_compatible": False}),
    ("POST", versions("l"), avro('"int"'), 200, {"id": 3, "version": 1}),
    ("PUT", "/config/l", {"compatibility": "BACKWARD_TRANSITIVE"}, 200, ...),
    ("POST", "/compatibility/subjects/l/versions", avro('"float"'), 200, {"is_compatible": True}),
    ("POST", "/compatibility/subjects/l/versions", avro(TEXT), 200, {"is_compatible": False}),
    ("PUT", "/config/l", {"compatibility": "full_transitive"}, 200, ...),
    ("POST", "/compatibility/subjects/l/versions", avro('"float"'), 200, {"is_compatible": False}),
    ("PUT", "/config/l", NONE, 200, {"compatibility": "NONE"}),
    ("POST", "/compatibility/subjects/l/versions", avro(TEXT), 200, {"is_compatible": True}),
    ("POST", versions("l"), of_json({"type": "string"}), 200, {"version": 3}),
    ("DELETE", "/config/l", None, 200, {"compatibilityLevel": "NONE"}),
    ("GET", "/config/l", None, 404, 40408),
    ("GET", "/config/l?defaultToGlobal=true", None, 200, {"compatibilityLevel": "BACKWARD"}),
    ("PUT", "/config", {"compatibility": "FORWARD_TRANSITIVE"}, 200, ...),
    (
        "GET",
        "/config/l?defaultToGlobal=true",
        None,
        200,
        {"compatibilityLevel": "FORWARD_TRANSITIVE"},
    ),
    ("DELETE", "/config", None, 200, {"compatibilityLevel": "FORWARD_TRANSITIVE"}),
    ("GET", "/config", None, 200, {"compatibilityLevel": "BACKWARD"}),
    ("POST", check("none"), avro(A), 200, {"is_compatible": True}),
    ("POST", "/compatibility/subjects/none/versions", avro(A), 200, {"is_compatible": True}),
]

DELETES: list[Step] = [
    ("POST", versions("d"), avro(A), 200, {"id": 1, "version": 1}),
    ("POST", versions("d"), avro(AX), 200, {"id": 2, "version": 2}),
    ("POST", versions("d"), avro(AXY), 200, {"id": 3, "version": 3}),
    ("DELETE", "/subjects/d/versions/2?permanent=true", None, 404, 40407),
    ("DELETE", "/subjects/d/versions/2", None, 200, 2),
    ("DELETE", "/subjects/d/versions/2", None, 404, 40406),
    ("DELETE", "/subjects/d/versions/9", None, 404, 40402),
    ("GET", versions("d"), None, 200, [1, 3]),
    ("GET", f"{versions('d')}?deleted=true", None, 200, [1, 2, 3]),
    ("GET", f"{versions('d')}?deletedOnly=true", None, 200, [2]),
    ("GET", "/subjects/d/versions/2", None, 404, 40402),
    ("GET", "/subjects/d/versions/2?deleted=true", None, 200, {"version": 2, "id": 2}),
    ("GET", "/subjects/d/versions/2/schema", None, 404, 40402),
    ("GET", "/subjects/d/versions/2/schema?deleted=true", None, 200, json.loads(AX)),
    ("GET", "/schemas/ids/2", None, 200, {"schema": AX}),
    ("GET", "/schemas/ids/2/versions", None, 200, []),
    (
        "GET",
        "/schemas/ids/2/versions?deleted=true",
        None,
        200,
        [{"subject": "d", "version": 2}],
    ),
    ("GET", "/schemas/ids/2/subjects?deleted=true", None, 200, ["d"]),
    ("POST", "/subjects/d", avro(AX), 404, 40403),
    ("POST", "/subjects/d?deleted=true", avro(AX), 200, {"version": 2, "id": 2}),
    ("POST", versions("d"), avro(AX), 200, {"id": 2, "version": 4}),
    ("GET", versions("d"), None, 200, [1, 3, 4]),
    # The new version has taken the place of the deleted one.
    ("DELETE", "/subjects/d/versions/2?permanent=true", None, 404, 40402),
    ("GET", f"{versions('d')}?deleted=true", None, 200, [1, 3, 4]),
    ("GET", "/schemas/ids/2", None, 200, {"schema": AX}),
    ("DELETE", "/subjects/d/versions/latest", None, 200, 4),
    ("GET", "/subjects/d/versions/latest", None, 200, {"version": 3}),
    ("DELETE", "/subjects/d?permanent=true", None, 404, 40405),
    ("DELETE", "/subjects/d", None, 200, [1, 3]),
    ("GET", "/subjects", None, 200, []),
    ("GET", "/subjects?deleted=true", None, 200, ["d"]),
    ("GET", "/subjects?deletedOnly=true", None, 200, ["d"]),
    ("GET", versions("d"), None, 404, 40401),
    ("GET", f"{versions('d')}?deleted=true", None, 200, [1, 3, 4]),
    ("GET", "/subjects/d/versions/latest", None, 404, 40401),
    ("POST", "/subjects/d", avro(A), 404, 40401),
    ("DELETE", "/subjects/d", None, 404, 40404),
    ("POST", versions("d"), avro(LONG), 200, {"id": 4, "version": 5}),
    ("GET", versions("d"), None, 200, [5]),
    ("DELETE", "/subjects/d", None, 200, [5]),
    ("DELETE", "/subjects/d?permanent=true", None, 200, [1, 3, 4, 5]),
    ("GET", "/subjects?deleted=true", None, 200, []),
    ("GET", "/schemas/ids/1", None, 404, 40403),
    ("GET", "/schemas/ids/4", None, 404, 40403),
    ("DELETE", "/subjects/d", None, 404, 40401),
    ("POST", versions("d"), avro(A), 200, {"id": 5, "version": 1}),
]

SETTINGS_OF_DELETED: list[Step] = [
    ("POST", versions("d"), avro(A), 200, {"id": 1}),
    ("PUT", "/config/d", NONE, 200, {"compatibility": "NONE"}),
    ("PUT", "/mode/d", {"mode": "READWRITE"}, 200, {"mode": "READWRITE"}),
    ("DELETE", "/subjects/d", None, 200, [1]),
    ("GET", "/config/d", None, 404, 40408),
    ("GET", "/mode/d", None, 404, 40409),
    ("POST", versions("d"), avro(A), 200, {"version": 2}),
    ("PUT", "/config/d", NONE, 200, {"compatibility": "NONE"}),
    ("DELETE", "/subjects/d/versions/2", None, 200, 2),
    ("GET", "/config/d", None, 404, 40408),
    ("POST", versions("d"), avro(AX), 200, {"version": 3}),
    ("DELETE", "/subjects/d", None, 200, [3]),
    ("PUT", "/config/d", NONE, 200, {"compatibility": "NONE"}),
    ("DELETE", "/subjects/d?permanent=true", None, 200, [2, 3]),
    ("GET", "/config/d", None, 404, 40408),
]

MODES: list[Step] = [
    ("POST", versions("m"), avro(A), 200, {"id": 1}),
    ("GET", "/mode", None, 200, {"mode": "READWRITE"}),
    ("GET", "/mode/m?defaultToGlobal=true", None, 200, {"mode": "READWRITE"}),
    ("PUT", "/mode/m", {"mode": "READONLY"}, 200, {"mode": "READONLY"}),
    ("GET", "/mode/m", None, 200, {"mode": "READONLY"}),
    ("POST", versions("m"), avro(AX), 422, 42205),
    ("POST", versions("m"), avro(A), 200, {"id": 1}),
    ("POST", "/subjects/m", avro(A), 200, {"id": 1}),
    ("POST", check("m"), avro(AX), 200, {"is_compatible": True}),
    ("DELETE", "/subjects/m", None, 422, 42205),
    ("DELETE", "/subjects/m/versions/1", None, 422, 42205),
    ("PUT", "/config/m", NONE, 422, 42205),
    ("DELETE", "/config/m", None, 404, 40401),
    ("POST", versions("other"), avro(AX), 200, {"id": 2}),
    ("PUT", "/mode/m", {"mode": "READWRITE"}, 200, {"mode": "READWRITE"}),
    ("POST", versions("m"), avro(AX), 200, {"id": 2, "version": 2}),
    ("DELETE", "/mode/m", None, 200, {"mode": "READWRITE"}),
    ("DELETE", "/mode/m", None, 404, 40401),
    ("GET", "/mode/m", None, 404, 40409),
    ("PUT", "/mode", {"mode": "READONLY"}, 200, {"mode": "READONLY"}),
    ("POST", versions("m"), avro(AXY), 422, 42205),
    ("PUT", "/mode/m", {"mode": "READWRITE"}, 200, {"mode": "READWRITE"}),
    ("POST", versions("m"), avro(AXY), 200, {"id": 3, "version": 3}),
    ("PUT", "/mode", {"mode": "READONLY_OVERRIDE"}, 200, {"mode": "READONLY_OVERRIDE"}),
    ("POST", versions("m"), avro(record("A", "x", "y", "q")), 422, 42205),
    ("PUT", "/mode", {"mode": "READWRITE"}, 200, {"mode": "READWRITE"}),
    ("PUT", "/mode/m", {"mode": "IMPORT"}, 422, 42205),
    ("PUT", "/mode/m?force=true", {"mode": "IMPORT"}, 200, {"mode": "IMPORT"}),
    ("PUT", "/mode/imported", {"mode": "IMPORT"}, 200, {"mode": "IMPORT"}),
    ("POST", versions("imported"), avro(LONG, id=70, version=7), 200, {"id": 70, "version": 7}),
    ("POST", versions("imported"), avro(TEXT, id=70, version=8), 422, 42205),
    ("POST", versions("imported"), avro(TEXT), 422, 42205),
    ("GET", versions("imported"), None, 200, [7]),
    ("GET", "/schemas/ids/70", None, 200, {"schema": LONG}),
    ("PUT", "/mode/imported", {"mode": "READWRITE"}, 200, ...),
    ("POST", versions("next"), avro(TEXT), 200, {"id": 71}),
    ("POST", versions("next"), avro(TEXT, id=9), 422, 42205),
]

CONTEXTS: list[Step] = [
    ("POST", versions("a"), avro(A), 200, {"id": 1}),
    ("POST", versions(":.one:a"), avro(LONG), 200, {"id": 1, "version": 1}),
    ("POST", versions(":.one:b"), avro(A), 200, {"id": 2}),
    ("POST", versions(":.two:a"), avro(TEXT), 200, {"id": 1}),
    ("GET", "/contexts", None, 200, [".", ".one", ".two"]),
    ("GET", "/schemas/ids/1", None, 200, {"schema": A}),
    ("GET", "/schemas/ids/1?subject=:.one:a", None, 200, {"schema": LONG}),
    ("GET", "/schemas/ids/1?subject=:.two:", None, 200, {"schema": TEXT}),
    ("GET", "/schemas/ids/2", None, 404, 40403),
    ("GET", "/schemas/ids/2/subjects?subject=:.one:", None, 200, [":.one:b"]),
    ("GET", "/subjects", None, 200, [":.one:a", ":.one:b", ":.two:a", "a"]),
    ("GET", "/subjects?subjectPrefix=:.one:", None, 200, [":.one:a", ":.one:b"]),
    ("GET", "/subjects?subjectPrefix=:*:", None, 200, [":.one:a", ":.one:b", ":.two:a", "a"]),
    ("GET", "/subjects/:.one:a/versions/1", None, 200, {"subject": ":.one:a", "id": 1}),
    ("GET", "/subjects/:.none:a/versions/1", None, 404, 40401),
    ("POST", "/subjects/:.one:a", avro(LONG), 200, {"subject": ":.one:a", "version": 1}),
    ("POST", "/subjects/:.two:a", avro(LONG), 404, 40403),
    ("PUT", "/config/:.one:", NONE, 200, {"compatibility": "NONE"}),
    ("GET", "/config/:.one:", None, 200, {"compatibilityLevel": "NONE"}),
    ("GET", "/config/:.one:a?defaultToGlobal=true", None, 200, {"compatibilityLevel": "NONE"}),
    ("GET", "/config/a?defaultToGlobal=true", None, 200, {"compatibilityLevel": "BACKWARD"}),
    ("POST", versions(":.one:a"), avro(TEXT), 200, {"version": 2}),
    ("POST", versions(":.two:a"), avro(LONG), 409, 40901),
    ("PUT", "/mode/:.two:", {"mode": "READONLY"}, 200, {"mode": "READONLY"}),
    ("POST", versions(":.two:b"), avro(A), 422, 42205),
    ("POST", versions(":.one:c"), avro(A), 200, {"id": 2}),
    ("DELETE", "/subjects/:.one:b", None, 200, [1]),
    ("GET", "/subjects?subjectPrefix=:.one:&deleted=true", None, 200, ...),
    ("GET", "/schemas?subjectPrefix=:.two:", None, 200, ...),
]

ITEM, ORDER = record("Item"), record("Order", item="Item")
REFERS = [reference("Item", "item", 1)]

REFERENCES: list[Step] = [
    ("POST", versions("item"), avro(ITEM), 200, {"id": 1}),
    ("POST", versions("order"), avro(ORDER), 422, 42201),
    ("POST", versions("order"), avro(ORDER, references=REFERS), 200, {"id": 2}),
    ("POST", versions("order"), avro(ORDER, references=REFERS), 200, {"id": 2, "version": 1}),
    ("GET", "/schemas/ids/2", None, 200, {"schema": ORDER, "references": REFERS}),
    ("GET", "/subjects/order/versions/1", None, 200, {"references": REFERS, "id": 2}),
    ("GET", "/subjects/item/versions/1/referencedby", None, 200, [2]),
    ("GET", "/subjects/item/versions/latest/referencedby", None, 200, [2]),
    ("GET", "/subjects/order/versions/1/referencedby", None, 200, []),
    ("POST", "/subjects/order", avro(ORDER, references=REFERS), 200, {"version": 1}),
    ("POST", "/subjects/order", avro(ORDER), 422, 42201),
    ("POST", check("order"), avro(ORDER, references=REFERS), 200, {"is_compatible": True}),
    ("DELETE", "/subjects/item", None, 422, 42206),
    ("DELETE", "/subjects/item/versions/1", None, 422, 42206),
    (
        "POST",
        versions("cart"),
        avro(record("Cart", o="Order"), references=[reference("Order", "order", 1)]),
        200,
        {"id": 3},
    ),
    ("GET", "/subjects/order/versions/1/referencedby", None, 200, [3]),
    ("DELETE", "/subjects/order", None, 422, 42206),
    ("POST", versions("j"), of_json({"type": "integer"}), 200, {"id": 4}),
    (
        "POST",
        versions("k"),
        of_json(
            {"type": "object", "properties": {"n": {"$ref": "j.json"}}},
            references=[reference("j.json", "j", 1)],
        ),
        200,
        {"id": 5, "schemaType": "JSON"},
    ),
    ("POST", versions("p"), proto('syntax = "proto3";\nmessage P {}\n'), 200, {"id": 6}),
    (
        "POST",
        versions("q"),
        proto(
            'syntax = "proto3"; import "p.proto"; message Q { P p = 1; }',
            references=[reference("p.proto", "p", 1)],
        ),
        200,
        {"id": 7, "schemaType": "PROTOBUF"},
    ),
    ("GET", "/subjects/p/versions/1/referencedby", None, 200, [7]),
    ("POST", versions("z"), avro(ORDER, references=[reference("Item", "item", 5)]), 422, 42201),
    ("POST", versions("z"), avro(ORDER, references=[reference("Item", "none", 1)]), 422, 42201),
    ("DELETE", "/subjects/cart", None, 200, [1]),
    ("GET", "/subjects/order/versions/1/referencedby", None, 200, []),
    ("GET", "/subjects/order/versions/1/referencedby?deleted=true", None, 200, [3]),
    ("DELETE", "/subjects/order", None, 200, [1]),
    ("DELETE", "/subjects/cart?permanent=true", None, 200, [1]),
    ("DELETE", "/subjects/order?permanent=true", None, 200, [1]),
    ("DELETE", "/subjects/item", None, 200, [1]),
]

SPACED = '{ "type": "int",  "b": 1, "a": 2 }'
LISTS: list[Step] = [
    *(
        ("POST", versions(f"s{one}"), avro(record(f"R{one}")), 200, {"id": one + 1})
        for one in range(5)
    ),
    ("POST", versions("s0"), avro(record("R0", "x")), 200, {"id": 6, "version": 2}),
    ("GET", "/subjects?offset=1&limit=2", None, 200, ["s1", "s2"]),
    ("GET", "/subjects?offset=4", None, 200, ["s4"]),
    ("GET", "/subjects?offset=9", None, 200, []),
    ("GET", "/subjects?limit=0", None, 200, []),
    ("GET", "/subjects?limit=-1", None, 200, ["s0", "s1", "s2", "s3", "s4"]),
    ("GET", "/subjects?subjectPrefix=s&limit=1", None, 200, ["s0"]),
    ("GET", "/subjects?subjectPrefix=x", None, 200, []),
    ("GET", "/subjects?offset=x", None, 404, 404),
    ("GET", f"{versions('s0')}?limit=1", None, 200, [1]),
    ("GET", f"{versions('s0')}?offset=1", None, 200, [2]),
    ("GET", "/schemas?limit=2", None, 200, 2),
    ("GET", "/schemas?offset=5", None, 200, 1),
    ("GET", "/schemas", None, 200, 6),
    ("GET", "/schemas?latestOnly=true", None, 200, 5),
    ("GET", "/schemas?subjectPrefix=s0", None, 200, 2),
    ("GET", "/schemas?subjectPrefix=s0&latestOnly=true", None, 200, 1),
    ("DELETE", "/subjects/s4", None, 200, [1]),
    ("GET", "/schemas", None, 200, 5),
    ("GET", "/schemas?deleted=true", None, 200, 6),
    ("GET", "/schemas/ids/5/subjects", None, 200, []),
    ("GET", "/schemas/ids/6/versions", None, 200, [{"subject": "s0", "version": 2}]),
    ("GET", "/schemas/ids/1?fetchMaxId=true", None, 200, {"maxId": 6}),
    ("POST", versions("n"), avro(SPACED), 200, {"id": 7, "version": 1}),
    ("GET", "/schemas/ids/7", None, 200, {"schema": '{"type":"int","b":1,"a":2}'}),
    ("POST", f"{versions('n')}?normalize=true", avro(SPACED), 200, {"id": 8, "version": 2}),
    ("GET", "/schemas/ids/8", None, 200, {"schema": '{"type":"int","a":2,"b":1}'}),
    ("POST", "/subjects/n?normalize=true", avro('{"b":1,"a":2,"type":"int"}'), 200, {"id": 8}),
    ("POST", "/subjects/n", avro('{"type":"int","b":1,"a":2}'), 200, {"id": 7}),
    ("POST", versions("t"), avro('{"type":"string"}'), 200, {"id": 9}),
    ("GET", "/schemas/ids/9/schema", None, 200, "string"),
    ("GET", "/subjects/t/versions/1", None, 200, {"schema": '"string"'}),
    ("POST", versions("u"), avro('"string"'), 200, {"id": 9}),
    ("POST", versions("a%20b"), avro(A), 200, {"id": 10}),
    ("GET", "/subjects/a%20b/versions/latest", None, 200, {"subject": "a b"}),
    ("POST", versions("a%2Fb"), avro(A), 200, {"id": 10}),
    ("GET", "/subjects/a%2Fb/versions", None, 200, [1]),
]

STORIES = {
    "errors": ERRORS,
    "compatibility": COMPATIBILITY,
    "deletes": DELETES,
    "settings of deleted subjects": SETTINGS_OF_DELETED,
    "modes": MODES,
    "contexts": CONTEXTS,
    "references": REFERENCES,
    "lists": LISTS,
}


@pytest.mark.parametrize("story", STORIES)
async def test_a_story_of_requests_has_the_answers_of_confluents_registry(story: str) -> None:
    store = MemoryMetadataStore(latency=0)
    api = RegistryApi(SchemaRegistry(store), cluster_id="c", version="1")
    for number, (method, path, body, status, expected) in enumerate(STORIES[story]):
        place, _, query = path.partition("?")
        text = b"" if body is None else json.dumps(body).encode()
        answer = await api.answer(Call(method, place, query, text, V1_JSON))
        found = json.loads(answer.body)
        where = (number, method, path, found)
        assert answer.status == status, where
        if status >= 400:
            assert found["error_code"] == expected, where
            assert set(found) == {"error_code", "message"}, where
            assert found["message"], where
        elif isinstance(expected, str) and isinstance(found, dict):
            assert not found["is_compatible"], where
            assert any(expected in one for one in found["messages"]), where
        elif isinstance(expected, int) and isinstance(found, list):
            assert len(found) == expected, where
        elif isinstance(expected, dict):
            assert {name: found.get(name) for name in expected} == expected, where
        elif expected is not ...:
            assert found == expected, where


def test_with_those_of_each_kind_there_are_three_hundred() -> None:
    assert sum(map(len, STORIES.values())) >= 300 - 98
