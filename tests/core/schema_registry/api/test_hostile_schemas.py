"""Schemas and requests that are made to take memory or time. Each is refused soon."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tidelog_core.schema_registry.api.calls import V1_JSON, Call
from tidelog_core.schema_registry.api.registry_api import RegistryApi
from tidelog_core.schema_registry.registry import SchemaRegistry

from tests.support.memory_store import MemoryMetadataStore

CPU_SECONDS_MAX = 10.0  # of the whole process, on a slow machine; each takes a fraction of one
DEEP = 10_000


def nested_proto(depth: int) -> str:
    """Return a file with messages within messages."""
    parts = "".join(f"message M{number} {{" for number in range(depth))
    return 'syntax = "proto3";' + parts + "}" * depth


def record_in_record(depth: int) -> str:
    """Return records of Avro within each other."""
    text = '"int"'
    for number in range(depth):
        text = f'{{"type":"record","name":"R{number}","fields":[{{"name":"f","type":{text}}}]}}'
    return text


def body(text: str, kind: str, **more: Any) -> bytes:
    return json.dumps({"schema": text, "schemaType": kind, **more}).encode()


@pytest.fixture
def api() -> RegistryApi:
    store = MemoryMetadataStore(latency=0)
    return RegistryApi(SchemaRegistry(store), cluster_id="c", version="1")


async def answer(api: RegistryApi, path: str, data: bytes) -> tuple[int, Any]:
    """Return status and body, once it is known that they took little time."""
    before = time.process_time()
    path, _, query = path.partition("?")
    answered = await api.answer(Call("POST", path, query, data, V1_JSON))
    assert time.process_time() - before < CPU_SECONDS_MAX
    return answered.status, json.loads(answered.body)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("AVRO", '{"type":"array","items":' * 10_000 + '"int"' + "}" * 10_000),
        ("AVRO", "[" * 100_000 + "]" * 100_000),
        ("AVRO", record_in_record(2_000)),
        ("AVRO", '{"type":' * 20_000 + '"int"' + "}" * 20_000),
        ("JSON", '{"not":' * 30_000 + "{}" + "}" * 30_000),
        ("JSON", '{"items":' * 20_000 + "{}" + "}" * 20_000),
        ("JSON", '{"enum":' + "[" * 100_000 + "]" * 100_000 + "}"),
        ("JSON", '{"properties":{"a":' * 10_000 + "true" + "}}" * 10_000),
        ("PROTOBUF", nested_proto(10_000)),
        ("PROTOBUF", "message M { oneof a {" * 10_000),
        ("PROTOBUF", "/*" * 100_000),
        ("PROTOBUF", "message M { string a = 1 [" + "(" * 100_000),
    ],
    ids=[
        *("arrays", "unions", "records", "types", "nots", "items", "enum", "properties"),
        *("messages", "oneofs", "comments", "parentheses"),
    ],
)
async def test_deep_and_endless_schemas_are_refused(api: RegistryApi, kind: str, text: str) -> None:
    for path in ("/subjects/a/versions", "/compatibility/subjects/a/versions", "/subjects/a"):
        status, found = await answer(api, path, body(text, kind))
        # The subject has no version yet, so that Confluent's registry does not look at the text.
        assert (status, found.get("error_code")) in {(422, 42201), (404, 40401)}, (path, found)
        assert path != "/subjects/a/versions" or status == 422, found
        assert len(found["message"]) < 2_000


@pytest.mark.parametrize(("start", "end"), [("{a:", "}"), ("[", "]")], ids=["objects", "lists"])
async def test_options_of_protobuf_may_nest_because_nothing_descends_into_them(
    api: RegistryApi, start: str, end: str
) -> None:
    value = "{a:" + start * DEEP + "1" + end * DEEP + "}"
    text = f'syntax = "proto3"; option (a) = {value};'
    for path in ("/subjects/a/versions", "/compatibility/subjects/a/versions", "/subjects/a"):
        status, found = await answer(api, f"{path}?normalize=true", body(text, "PROTOBUF"))
        assert status == 200, found


async def test_ten_thousand_references_are_refused_before_one_is_looked_up(
    api: RegistryApi,
) -> None:
    many = [{"name": f"N{one}", "subject": "s", "version": 1} for one in range(10_000)]
    for kind, text in (("AVRO", '"N1"'), ("JSON", "{}"), ("PROTOBUF", 'syntax = "proto3";')):
        data = body(text, kind, references=many)
        status, found = await answer(api, "/subjects/a/versions", data)
        assert (status, found["error_code"]) in {(422, 42201), (413, 413)}, found


async def test_patterns_that_take_ages_to_match_are_not_tried_in_python(api: RegistryApi) -> None:
    """A name of 40 letters takes Python's ``re`` hours with these patterns."""
    name = "a" * 40 + "!"
    for pattern in ("^(a+)+$", "^(a|a)*$", "^(a|aa)+$", "(.*a){30}$", "^(a*)*b$"):
        old = {
            "type": "object",
            "patternProperties": {pattern: {"type": "integer"}},
            "additionalProperties": False,
        }
        new = {"type": "object", "properties": {name: {"type": "integer"}}}
        subject = f"s{len(pattern)}"
        status, _ = await answer(
            api, f"/subjects/{subject}/versions", body(json.dumps(old), "JSON")
        )
        assert status == 200
        for document in (new, {**new, "additionalProperties": False}):
            data = body(json.dumps(document), "JSON")
            status, found = await answer(api, f"/compatibility/subjects/{subject}/versions", data)
            assert status in {200, 422}, found


async def test_avro_defaults_and_enums_of_many_values_take_little_time(api: RegistryApi) -> None:
    symbols = [f"S{one}" for one in range(20_000)]
    enum = {"type": "enum", "name": "E", "symbols": symbols}
    assert (await answer(api, "/subjects/e/versions", body(json.dumps(enum), "AVRO")))[0] == 200
    other = {**enum, "symbols": symbols[::-1]}
    status, _ = await answer(api, "/subjects/e/versions", body(json.dumps(other), "AVRO"))
    assert status in {200, 409}
    twice = {**enum, "symbols": ["S"] * 20_000}
    status, found = await answer(api, "/subjects/f/versions", body(json.dumps(twice), "AVRO"))
    assert (status, found["error_code"]) == (422, 42201)
