"""The REST API: answers as Confluent's registry gives them, request after request."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tidelog_core.errors import OutcomeUnknown, StoreUnavailable
from tidelog_core.schema_registry.api import schema_pages
from tidelog_core.schema_registry.api.calls import V1_JSON, Call, Right
from tidelog_core.schema_registry.api.registry_api import RegistryApi
from tidelog_core.schema_registry.registry import SchemaRegistry

from tests.support.memory_store import MemoryMetadataStore

USER = '{"type":"record","name":"User","fields":[{"name":"id","type":"long"}]}'
GROWN = USER.replace("]}", ',{"name":"mail","type":"string","default":""}]}')
BROKEN = USER.replace("long", "string")
ORDER = '{"type":"record","name":"Order","fields":[{"name":"by","type":"User"}]}'


def schema(text: str, **more: Any) -> dict[str, Any]:
    return {"schema": text, **more}


REFERENCE = {"name": "User", "subject": "u-value", "version": 1}
# Method, path, body; status, and the answer or the fields of it that count.
STEPS: list[tuple[str, str, Any, int, Any]] = [
    ("GET", "/", None, 200, {}),
    ("GET", "/subjects", None, 200, []),
    ("GET", "/schemas", None, 200, []),
    ("GET", "/contexts", None, 200, ["."]),
    ("GET", "/config", None, 200, {"compatibilityLevel": "BACKWARD"}),
    ("GET", "/mode", None, 200, {"mode": "READWRITE"}),
    ("GET", "/v1/metadata/id", None, 200, ...),
    ("GET", "/v1/metadata/version", None, 200, {"version": "1", "commitId": ""}),
    ("GET", "/subjects/u-value/versions", None, 404, 40401),
    ("GET", "/subjects/u-value/versions/1", None, 404, 40401),
    ("GET", "/subjects/u-value/versions/0", None, 422, 42202),
    ("GET", "/subjects/u-value/versions/x", None, 422, 42202),
    ("GET", "/schemas/ids/1", None, 404, 40403),
    ("GET", "/schemas/ids/x", None, 404, 404),
    ("GET", "/schemas/ids/1/versions", None, 404, 40403),
    ("DELETE", "/subjects/u-value", None, 404, 40401),
    ("DELETE", "/subjects/u-value/versions/1", None, 404, 40401),
    ("POST", "/subjects/u-value", schema(USER), 404, 40401),
    ("POST", "/subjects/u-value/versions", schema("{"), 422, 42201),
    ("POST", "/subjects/u-value/versions", schema(""), 422, 42201),
    ("POST", "/subjects/u-value/versions", {}, 422, 42201),
    ("POST", "/subjects/u-value/versions", schema(USER, schemaType="XML"), 422, 42201),
    ("POST", "/subjects/u-value/versions", schema(USER, id=5), 422, 42205),
    ("POST", "/subjects/u-value/versions", schema(USER, version=2), 422, 42201),
    ("POST", "/subjects/__GLOBAL/versions", schema(USER), 422, 42208),
    ("POST", "/subjects/u-value/versions", schema(USER), 200, {"id": 1, "version": 1}),
    ("POST", "/subjects/u-value/versions", schema(USER), 200, {"id": 1, "version": 1}),
    ("POST", "/subjects/u-value/versions", schema(BROKEN), 409, 40901),
    ("POST", "/subjects/u-value/versions", schema(GROWN), 200, {"id": 2, "version": 2}),
    ("POST", "/subjects/v-value/versions", schema(GROWN), 200, {"id": 2, "version": 1}),
    ("POST", "/subjects/u-value", schema(GROWN), 200, {"id": 2, "subject": "u-value"}),
    ("POST", "/subjects/u-value", schema(BROKEN), 404, 40403),
    ("GET", "/subjects", None, 200, ["u-value", "v-value"]),
    ("GET", "/subjects?subjectPrefix=v", None, 200, ["v-value"]),
    ("GET", "/subjects?offset=1&limit=1", None, 200, ["v-value"]),
    ("GET", "/subjects/u-value/versions", None, 200, [1, 2]),
    ("GET", "/subjects/u-value/versions/1/schema", None, 200, json.loads(USER)),
    ("GET", "/subjects/u-value/versions/latest", None, 200, {"version": 2, "schema": GROWN}),
    ("GET", "/subjects/u-value/versions/-1", None, 200, {"version": 2}),
    ("GET", "/subjects/u-value/versions/9", None, 404, 40402),
    ("GET", "/schemas/ids/2", None, 200, {"schema": GROWN, "schemaType": "AVRO"}),
    ("GET", "/schemas/ids/2?fetchMaxId=true", None, 200, {"maxId": 2}),
    ("GET", "/schemas/ids/1/schema", None, 200, json.loads(USER)),
    ("GET", "/schemas/ids/2/subjects", None, 200, ["u-value", "v-value"]),
    (
        "GET",
        "/schemas/ids/2/versions",
        None,
        200,
        [{"subject": "u-value", "version": 2}, {"subject": "v-value", "version": 1}],
    ),
    ("GET", "/compatibility/subjects/u-value/versions/latest", None, 405, 405),
    (
        "POST",
        "/compatibility/subjects/u-value/versions/latest",
        schema(USER),
        200,
        {"is_compatible": True},
    ),
    (
        "POST",
        "/compatibility/subjects/u-value/versions/1",
        schema(BROKEN),
        200,
        {"is_compatible": False},
    ),
    ("POST", "/compatibility/subjects/u-value/versions/7", schema(USER), 404, 40402),
    ("POST", "/compatibility/subjects/u-value/versions", schema("{"), 422, 42201),
    (
        "POST",
        "/compatibility/subjects/none/versions/latest",
        schema(USER),
        200,
        {"is_compatible": True},
    ),
    ("PUT", "/config/u-value", {"compatibility": "none"}, 200, {"compatibility": "NONE"}),
    ("PUT", "/config/u-value", {"compatibility": "some"}, 422, 42203),
    ("PUT", "/config/u-value", {"alias": "b"}, 422, 422),
    ("GET", "/config/u-value", None, 200, {"compatibilityLevel": "NONE"}),
    ("GET", "/config/v-value", None, 404, 40408),
    (
        "GET",
        "/config/v-value?defaultToGlobal=true",
        None,
        200,
        {"compatibilityLevel": "BACKWARD"},
    ),
    ("POST", "/subjects/u-value/versions", schema(BROKEN), 200, {"id": 3, "version": 3}),
    ("DELETE", "/config/u-value", None, 200, {"compatibilityLevel": "NONE"}),
    ("DELETE", "/config/u-value", None, 404, 40401),
    ("PUT", "/config", {"compatibility": "FULL"}, 200, {"compatibility": "FULL"}),
    ("DELETE", "/config", None, 200, {"compatibilityLevel": "FULL"}),
    ("GET", "/mode/u-value", None, 404, 40409),
    ("PUT", "/mode/u-value", {"mode": "WRITEONLY"}, 422, 42204),
    ("PUT", "/mode/u-value", {"mode": "READONLY"}, 200, {"mode": "READONLY"}),
    ("POST", "/subjects/u-value/versions", schema(USER), 200, {"id": 1, "version": 1}),
    ("POST", "/subjects/u-value/versions", schema('"int"'), 422, 42205),
    ("DELETE", "/subjects/u-value/versions/3", None, 422, 42205),
    ("DELETE", "/mode/u-value", None, 200, {"mode": "READONLY"}),
    ("PUT", "/mode/u-value", {"mode": "IMPORT"}, 422, 42205),
    ("DELETE", "/subjects/u-value/versions/3?permanent=true", None, 404, 40407),
    ("DELETE", "/subjects/u-value/versions/3", None, 200, 3),
    ("DELETE", "/subjects/u-value/versions/3", None, 404, 40406),
    ("GET", "/subjects/u-value/versions?deleted=true", None, 200, [1, 2, 3]),
    ("GET", "/subjects/u-value/versions/3", None, 404, 40402),
    ("GET", "/subjects/u-value/versions/3?deleted=true", None, 200, {"deleted": True}),
    ("DELETE", "/subjects/u-value/versions/3?permanent=true", None, 200, 3),
    ("GET", "/schemas/ids/3", None, 404, 40403),
    (
        "POST",
        "/subjects/o-value/versions",
        schema(ORDER, references=[REFERENCE]),
        200,
        {"id": 4, "references": [REFERENCE]},
    ),
    ("GET", "/subjects/u-value/versions/1/referencedby", None, 200, [4]),
    ("DELETE", "/subjects/u-value/versions/1", None, 422, 42206),
    ("DELETE", "/subjects/u-value", None, 422, 42206),
    ("GET", "/schemas/ids/4?format=resolved", None, 200, ...),
    ("DELETE", "/subjects/o-value", None, 200, [1]),
    ("DELETE", "/subjects/o-value", None, 404, 40404),
    ("GET", "/subjects?deletedOnly=true", None, 200, ["o-value"]),
    ("DELETE", "/subjects/v-value?permanent=true", None, 404, 40405),
    ("DELETE", "/subjects/o-value?permanent=true", None, 200, [1]),
    ("POST", "/subjects/:.stage:u-value/versions", schema(USER), 200, {"id": 1}),
    ("GET", "/contexts", None, 200, [".", ".stage"]),
    ("GET", "/subjects", None, 200, [":.stage:u-value", "u-value", "v-value"]),
    ("GET", "/subjects?subjectPrefix=:.stage:", None, 200, [":.stage:u-value"]),
    ("GET", "/subjects?subjectPrefix=u", None, 200, ["u-value"]),
    ("GET", "/subjects/%3A.stage%3Au-value/versions/latest", None, 200, {"id": 1}),
    ("GET", "/schemas?latestOnly=true&subjectPrefix=v", None, 200, ...),
    ("GET", "/subjects/a%2Fb/versions", None, 404, 40401),
    ("GET", "/nothing", None, 404, 404),
    ("POST", "/subjects", {}, 405, 405),
]


async def call(api: RegistryApi, method: str, path: str, body: Any = None, **more: Any) -> Any:
    path, _, query = path.partition("?")
    text = b"" if body is None else json.dumps(body).encode()
    return await api.answer(Call(method, path, query, text, V1_JSON, **more))


@pytest.fixture
def store() -> MemoryMetadataStore:
    return MemoryMetadataStore(latency=0)


@pytest.fixture
def api(store: MemoryMetadataStore) -> RegistryApi:
    return RegistryApi(SchemaRegistry(store), cluster_id="c", version="1")


async def test_answers_are_those_of_confluents_registry(api: RegistryApi) -> None:
    for method, path, body, status, expected in STEPS:
        answer = await call(api, method, path, body)
        found = json.loads(answer.body)
        assert (answer.status, answer.content_type) == (status, V1_JSON), (method, path, found)
        if status >= 400:
            assert found["error_code"] == expected, (method, path, found)
            assert found["message"]
        elif isinstance(expected, dict) and expected:
            assert {name: found.get(name) for name in expected} == expected, (method, path)
        elif expected is not ...:
            assert found == expected, (method, path)


async def test_an_answer_has_a_type_that_the_client_takes(api: RegistryApi) -> None:
    for accept, kind in (
        ("", V1_JSON),
        ("*/*", V1_JSON),
        ("application/json", "application/json"),
        ("application/vnd.schemaregistry.v1+json,application/json;q=0.5", V1_JSON),
        ("text/html, application/json;q=0.1", "application/json"),
    ):
        assert (await call(api, "GET", "/subjects", accept=accept)).content_type == kind
    assert (await call(api, "GET", "/subjects", accept="text/html")).status == 406


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"[]", 422),
        (b"{", 400),
        (b"[" * 100_000, 400),
        (b'{"schema": 1}', 422),
        (b'{"schema": "\\ud800"}', 400),
        (b'{"schema": "\\"int\\"", "version": "1"}', 422),
        (b'{"schema": "\\"int\\"", "version": 99999999999999}', 422),
        (b'{"schema": "\\"int\\"", "references": {}}', 422),
        (b'{"schema": "\\"int\\"", "references": [{"name": "a"}]}', 422),
        (b'{"schema": "\\"int\\"", "references": [{"name":"a","subject":"","version":1}]}', 422),
        (b'{"schema": "\\"int\\"", "metadata": 1}', 422),
        (b"\xff", 400),
        ('{"schema": "[]"}'.encode("utf-16"), 400),
    ],
)
async def test_a_body_that_is_no_request_is_refused(
    api: RegistryApi, body: bytes, status: int
) -> None:
    answer = await api.answer(Call("POST", "/subjects/a/versions", "", body, V1_JSON))
    assert answer.status == status, answer
    assert json.loads(answer.body)["error_code"]


async def test_bodies_of_other_types_and_long_names_are_refused(api: RegistryApi) -> None:
    answer = await api.answer(Call("POST", "/subjects/a/versions", "", b"{}", "text/plain"))
    assert answer.status == 415
    long = "ü" * 201
    assert (await call(api, "POST", f"/subjects/{long}/versions", {})).status == 422
    assert (await call(api, "GET", f"/schemas/ids/1?subject={long}")).status == 422
    assert (await call(api, "GET", "/subjects?" + "a=1&" * 100)).status == 400


async def test_too_many_references_and_too_long_schemas_are_refused(api: RegistryApi) -> None:
    many = [{"name": f"N{i}", "subject": "a", "version": 1} for i in range(31)]
    answer = await call(api, "POST", "/subjects/b/versions", schema(USER, references=many))
    assert (answer.status, json.loads(answer.body)["error_code"]) == (422, 42201)
    text = json.dumps({"type": "int", "doc": "x" * 300_001})
    answer = await call(api, "POST", "/subjects/b/versions", schema(text))
    assert (answer.status, json.loads(answer.body)["error_code"]) == (422, 42209)


async def test_an_unavailable_store_is_answered_as_by_confluent(
    api: RegistryApi, store: MemoryMetadataStore
) -> None:
    store.on_commit = lambda _: OutcomeUnknown("lost")
    answer = await call(api, "POST", "/subjects/a/versions", schema(USER))
    assert (answer.status, json.loads(answer.body)["id"]) == (200, 1)  # It was written, and found.
    store.on_commit = lambda _: StoreUnavailable("away")
    answer = await call(api, "POST", "/subjects/b/versions", schema(USER))
    assert (answer.status, json.loads(answer.body)["error_code"]) == (500, 50001)
    store.is_available = False
    answer = await call(api, "GET", "/subjects")
    assert (answer.status, json.loads(answer.body)["error_code"]) == (500, 50001)


class OnlyReads:
    """A caller who may read what begins with ``u``."""

    def may(self, right: Right, subject: str) -> bool:
        return right is Right.READ and subject.startswith("u")

    sees = may


async def test_a_caller_sees_and_does_what_it_may(api: RegistryApi) -> None:
    await call(api, "POST", "/subjects/u-value/versions", schema(USER))
    await call(api, "POST", "/subjects/v-value/versions", schema(GROWN))
    limited = {"permissions": OnlyReads()}
    assert (await call(api, "GET", "/subjects", **limited)).body == b'["u-value"]'
    assert (await call(api, "GET", "/schemas/ids/1", **limited)).status == 200
    for method, path, body in (
        ("GET", "/schemas/ids/2", None),
        ("GET", "/subjects/v-value/versions", None),
        ("POST", "/subjects/u-value/versions", schema(GROWN)),
        ("DELETE", "/subjects/u-value", None),
        ("PUT", "/config", {"compatibility": "NONE"}),
        ("PUT", "/mode/u-value", {"mode": "READONLY"}),
    ):
        answer = await call(api, method, path, body, **limited)
        assert (answer.status, json.loads(answer.body)["error_code"]) == (403, 40301), path


async def test_what_a_schema_refers_to_must_be_readable(api: RegistryApi) -> None:
    """The answer could tell what is in a schema that the caller may not read."""
    await call(api, "POST", "/subjects/secret/versions", schema(USER))
    await call(api, "POST", "/subjects/:.hidden:secret/versions", schema(USER))
    body = schema(ORDER, references=[{"name": "User", "subject": "secret", "version": 1}])
    limited = {"permissions": OnlyReads()}
    for path in ("/subjects/u-value", "/compatibility/subjects/u-value/versions"):
        assert (await call(api, "POST", path, body, **limited)).status == 403, path
    assert (await call(api, "GET", "/contexts", **limited)).body == b'["."]'
    assert (await call(api, "GET", "/contexts")).body == b'[".",".hidden"]'


class TopicRights(OnlyReads):
    """Everything may be done to subjects, and nothing to the cluster."""

    def may(self, right: Right, subject: str) -> bool:
        del right
        return bool(subject)


async def test_ids_are_given_by_callers_with_a_right_to_the_cluster(api: RegistryApi) -> None:
    """Else the rights to one topic are enough to use up the ids of all."""
    limited = {"permissions": TopicRights()}
    body = schema(USER, id=7, version=1)
    mode, path = {"mode": "IMPORT"}, "/subjects/new-value/versions"
    assert (await call(api, "PUT", "/mode/new-value", mode, **limited)).status == 403
    assert (await call(api, "PUT", "/mode/new-value", mode)).status == 200
    assert (await call(api, "POST", path, body, **limited)).status == 403
    assert (await call(api, "POST", path, schema(USER, id=0), **limited)).status == 403
    assert (await call(api, "POST", path, body)).status == 200
    high = schema('"long"', id=2**31 - 1, version=2)
    answer = await call(api, "POST", path, high)
    assert (answer.status, json.loads(answer.body)["error_code"]) == (422, 42205)
    for other in ("READONLY", "READWRITE"):
        answer = await call(api, "PUT", "/mode/new-value", {"mode": other}, **limited)
        assert answer.status == 200
    assert (await call(api, "POST", path, schema('"int"', id=-1), **limited)).status in (200, 409)


async def test_deep_values_are_refused_and_not_stored(api: RegistryApi) -> None:
    deep = json.loads("[" * 60 + "]" * 60)
    body = schema(USER, metadata={"properties": deep})
    answer = await call(api, "POST", "/subjects/u-value/versions", body)
    assert (answer.status, json.loads(answer.body)["error_code"]) == (422, 422)
    for kind, text in (
        ("AVRO", '{"type":"int","x":' + "[" * 600 + "]" * 600 + "}"),
        ("JSON", '{"default":' + "[" * 600 + "]" * 600 + "}"),
    ):
        body = schema(text, schemaType=kind)
        answer = await call(api, "POST", "/subjects/u-value/versions?normalize=true", body)
        assert (answer.status, json.loads(answer.body)["error_code"]) == (422, 42201), kind


@pytest.mark.parametrize(
    "body",
    [
        b'{"schema":[' + b"[]," * 40_000 + b"0]}",
        b'{"schema":{' + b'"":0,' * 40_000 + b'"":0}}',
        b'{"schema":["\\\\",' + b'"",' * 40_000 + b"0]}",
    ],
    ids=["lists", "members", "strings"],
)
async def test_bodies_of_many_values_are_not_parsed(api: RegistryApi, body: bytes) -> None:
    answer = await api.answer(Call("POST", "/subjects/a/versions", "", body, V1_JSON))
    assert (answer.status, json.loads(answer.body)["error_code"]) == (413, 413)


async def test_a_schema_of_full_length_is_taken_with_all_its_characters_escaped(
    api: RegistryApi,
) -> None:
    text = json.dumps({"type": "int", "doc": '"\\' * 50_000}, ensure_ascii=False)
    body = json.dumps(schema(text)).encode()
    escaped = "".join(f"\\u{ord(one):04x}" for one in text)
    for sent in (body, b'{"schema":"' + escaped.encode() + b'"}'):
        answer = await api.answer(Call("POST", "/subjects/a/versions", "", sent, V1_JSON))
        assert (answer.status, json.loads(answer.body)["version"]) == (200, 1)


async def test_many_long_schemas_are_asked_for_in_pages(
    api: RegistryApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_pages, "PAGE_CHARACTERS_MAX", len(USER) + 10)
    for subject in "ab":
        await call(api, "POST", f"/subjects/{subject}/versions", schema(USER))
    assert (await call(api, "GET", "/schemas")).status == 422
    assert len(json.loads((await call(api, "GET", "/schemas?limit=1")).body)) == 1


async def test_all_of_many_older_versions_are_compared(api: RegistryApi) -> None:
    await call(api, "PUT", "/config", {"compatibility": "NONE"})
    texts = ['"string"', *(f'{{"type":"int","x":{number}}}' for number in range(45))]
    for text in texts:
        assert (await call(api, "POST", "/subjects/a/versions", schema(text))).status == 200
    await call(api, "PUT", "/config", {"compatibility": "BACKWARD_TRANSITIVE"})
    answer = await call(
        api, "POST", "/compatibility/subjects/a/versions?verbose=true", schema('"long"')
    )
    found = json.loads(answer.body)
    assert not found["is_compatible"]
    assert any("{oldSchemaVersion: 1}" in one for one in found["messages"])
