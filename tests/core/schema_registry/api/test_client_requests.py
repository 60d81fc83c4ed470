"""Requests that everyday clients send beside registrations and look-ups, with Confluent's answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
from tidelog_core.schema_registry.api.audited_changes import Operation
from tidelog_core.schema_registry.api.calls import V1_JSON, Call, Right
from tidelog_core.schema_registry.api.registry_api import RegistryApi
from tidelog_core.schema_registry.registry import SchemaRegistry

from tests.support.memory_store import MemoryMetadataStore

USER = '{"type":"record","name":"User","fields":[{"name":"id","type":"long"}]}'
GROWN = USER.replace("]}", ',{"name":"mail","type":"string","default":""}]}')
BROKEN = USER.replace("long", "string")
RULES = {"domainRules": [{"name": "r", "kind": "CONDITION", "type": "CEL", "mode": "WRITE"}]}


def major(number: int, **more: str) -> dict[str, Any]:
    return {"properties": {"major": str(number), **more}}


@pytest.fixture
def api() -> RegistryApi:
    store = MemoryMetadataStore(latency=0)
    return RegistryApi(SchemaRegistry(store), cluster_id="c", version="1")


async def call(
    api: RegistryApi, method: str, path: str, body: Any = None, *, status: int = 200
) -> Any:
    path, _, query = path.partition("?")
    text = b"" if body is None else json.dumps(body).encode()
    answer = await api.answer(Call(method, path, query, text, V1_JSON))
    found = json.loads(answer.body)
    assert answer.status == status, found
    return found


async def register(api: RegistryApi, text: str, subject: str = "u", **more: Any) -> int:
    found = await call(api, "POST", f"/subjects/{subject}/versions", {"schema": text, **more})
    number = found["id"]
    assert isinstance(number, int)
    return number


# -- metadata -----------------------------------------------------------------------------------


async def test_the_newest_version_with_metadata_is_found(api: RegistryApi) -> None:
    """As serializers ask that have ``use.latest.with.metadata``."""
    await register(api, USER, metadata=major(1, owner="a b"))
    await register(api, GROWN, metadata=major(1))
    await register(api, USER, metadata=major(2))
    found = await call(api, "GET", "/subjects/u/metadata?key=major&value=1&deleted=false")
    assert (found["version"], found["schema"], found["subject"]) == (2, GROWN, "u")
    asked = f"/subjects/u/metadata?key=owner&key=major&value={quote('a b')}&value=1"
    assert (await call(api, "GET", asked))["version"] == 1
    assert (await call(api, "GET", "/subjects/u/metadata"))["version"] == 3
    found = await call(api, "GET", "/subjects/u/metadata?key=major&value=3", status=404)
    assert found["error_code"] == 40403
    found = await call(api, "GET", "/subjects/none/metadata?key=a&value=b", status=404)
    assert found["error_code"] == 40401
    await call(api, "DELETE", "/subjects/u/versions/3")
    await call(api, "GET", "/subjects/u/metadata?key=major&value=2", status=404)
    found = await call(api, "GET", "/subjects/u/metadata?key=major&value=2&deleted=true")
    assert found["deleted"] is True


async def test_strange_metadata_is_no_property(api: RegistryApi) -> None:
    for number, metadata in enumerate(
        ({"properties": [1]}, {"properties": {"major": 1}}, {"properties": {"major": ["1"]}})
    ):
        await register(api, USER, f"s{number}", metadata=metadata)
        asked = f"/subjects/s{number}/metadata?key=major&value=1"
        assert (await call(api, "GET", asked, status=404))["error_code"] == 40403


async def test_a_client_that_knows_no_metadata_takes_none_away(api: RegistryApi) -> None:
    """A serializer that registers by itself: the operator's rules stay."""
    first = await register(api, USER, metadata=major(1), ruleSet=RULES)
    assert await register(api, USER) == first
    assert (await call(api, "POST", "/subjects/u", {"schema": USER}))["id"] == first
    second = await register(api, GROWN)
    found = await call(api, "GET", f"/schemas/ids/{second}")
    assert (found["metadata"], found["ruleSet"]) == (major(1), RULES)
    third = await register(api, GROWN, metadata=major(2))
    found = await call(api, "GET", f"/schemas/ids/{third}")
    assert (found["metadata"], found["ruleSet"]) == (major(2), RULES)
    fourth = await register(api, USER)
    found = await call(api, "GET", f"/schemas/ids/{fourth}")
    assert (found["version"], found["metadata"]) == (4, major(2)), "as the latest has it"


async def test_rules_are_changed_without_the_schemas_text(api: RegistryApi) -> None:
    body = {"schema": '"long"'}
    await call(api, "POST", "/subjects/other/versions", body)
    reference = {"name": "User", "subject": "u", "version": 1}
    await register(api, USER)
    order = '{"type":"record","name":"Order","fields":[{"name":"by","type":"User"}]}'
    await register(api, order, "o", references=[reference])
    found = await call(api, "POST", "/subjects/o/versions", {"ruleSet": RULES})
    assert (found["version"], found["schema"], found["ruleSet"]) == (2, order, RULES)
    assert found["references"] == [reference]
    found = await call(api, "POST", "/subjects/none/versions", {"ruleSet": RULES}, status=422)
    assert found["error_code"] == 42201


async def test_versions_are_compared_with_those_of_their_group(api: RegistryApi) -> None:
    body = {"compatibility": "BACKWARD", "compatibilityGroup": "major"}
    assert await call(api, "PUT", "/config/u", body) == body
    found = await call(api, "GET", "/config/u")
    assert found == {"compatibilityLevel": "BACKWARD", "compatibilityGroup": "major"}
    await register(api, USER, metadata=major(1))
    await register(api, BROKEN, metadata=major(2))
    grown = {"schema": GROWN, "metadata": major(1)}
    check = "/compatibility/subjects/u/versions"
    assert (await call(api, "POST", check, grown))["is_compatible"], "with version 1, not with 2"
    assert await register(api, GROWN, metadata=major(1)) == 3
    wrong = {"schema": USER, "metadata": major(2)}
    assert (await call(api, "POST", "/subjects/u/versions", wrong, status=409))["error_code"]
    await call(api, "PUT", "/config/u", {"compatibilityGroup": None})
    assert await call(api, "GET", "/config/u") == {"compatibilityLevel": "BACKWARD"}


async def test_a_group_that_is_no_short_text_is_refused(api: RegistryApi) -> None:
    for group in (1, ["major"], "x" * 401):
        await call(api, "PUT", "/config", {"compatibilityGroup": group}, status=422)


# -- references ---------------------------------------------------------------------------------


async def test_a_reference_may_name_the_latest_version(api: RegistryApi) -> None:
    """It is stored with the number that the latest has then."""
    await register(api, USER)
    await register(api, GROWN)
    order = '{"type":"record","name":"Order","fields":[{"name":"by","type":"User"}]}'
    latest = {"name": "User", "subject": "u", "version": -1}
    body = {"schema": order, "references": [latest]}
    found = await call(api, "POST", "/subjects/o/versions", body)
    assert found["references"] == [{**latest, "version": 2}]
    assert (await call(api, "POST", "/subjects/o", body))["version"] == 1
    assert await call(api, "GET", "/subjects/u/versions/2/referencedby") == [found["id"]]
    body["references"] = [{**latest, "subject": "none"}]
    found = await call(api, "POST", "/subjects/o/versions", body, status=422)
    assert "No schema reference found for subject 'none' and version -1" in found["message"]
    body["references"] = [{**latest, "version": -2}]
    assert (await call(api, "POST", "/subjects/o/versions", body, status=422))[
        "error_code"
    ] == 42202


async def test_a_schema_is_found_whose_references_are_written_out(api: RegistryApi) -> None:
    """Serializers of Avro send a class's schema so, whatever it was registered as."""
    await register(api, USER)
    order = '{"type":"record","name":"Order","fields":[{"name":"by","type":"User"}]}'
    reference = {"name": "User", "subject": "u", "version": 1}
    first = await register(api, order, "o", references=[reference])
    written_out = order.replace('"User"', USER)
    found = await call(api, "POST", "/subjects/o", {"schema": written_out})
    assert (found["id"], found["version"], found["references"]) == (first, 1, [reference])
    assert await register(api, written_out, "o") == first
    assert await call(api, "GET", "/subjects/o/versions") == [1]
    other = written_out.replace('"by"', '"of"')
    assert (await call(api, "POST", "/subjects/o", {"schema": other}, status=404))["error_code"]
    assert await register(api, written_out, "apart") != first


# -- lists ----------------------------------------------------------------------------------------


async def test_deleted_versions_are_listed_as_clients_ask(api: RegistryApi) -> None:
    await register(api, USER)
    assert await call(api, "GET", "/subjects/u/versions?deletedOnly=true") == []
    await register(api, GROWN)
    await call(api, "DELETE", "/subjects/u/versions/1")
    for query, wanted in (
        ("deleted=false&deleted_only=false&offset=0&limit=-1", [2]),  # confluent-kafka's own words
        ("deleted=false&deleted_only=true", [1]),
        ("deleted=true&deletedOnly=true", [1]),
        ("deletedAsNegative=true", [-1, 2]),
    ):
        assert await call(api, "GET", f"/subjects/u/versions?{query}") == wanted, query
    await call(api, "DELETE", "/subjects/u")
    assert await call(api, "GET", "/subjects?deleted=false&deleted_only=true") == ["u"]
    await call(api, "GET", "/subjects/u/versions?deletedAsNegative=true", status=404)
    found = await call(api, "GET", "/subjects/u/versions?deletedAsNegative=true&deleted=true")
    assert found == [-1, -2]


async def test_a_schema_by_its_id_says_which_version_has_it(api: RegistryApi) -> None:
    """Clients keep it under that: the next look-up needs no request."""
    first = await register(api, USER)
    await register(api, USER, "v")
    guid = (await call(api, "GET", f"/schemas/ids/{first}"))["guid"]
    for path in (f"/schemas/ids/{first}?subject=u", f"/schemas/guids/{guid}"):
        found = await call(api, "GET", path)
        assert found["guid"] == guid
        assert found["version"] == 1
        assert found["subject"] in ("u", "v")
    assert (await call(api, "GET", f"/schemas/ids/{first}?subject=u"))["subject"] == "u"
    await call(api, "DELETE", "/subjects/u")
    assert (await call(api, "GET", f"/schemas/ids/{first}"))["subject"] == "v"
    await call(api, "DELETE", "/subjects/v")
    assert (await call(api, "GET", f"/schemas/ids/{first}"))["deleted"] is True


@dataclass(frozen=True, slots=True)
class ReaderOf:
    """The permissions of a caller who may only read one subject."""

    subject: str

    def may(self, right: Right, subject: str) -> bool:
        return right is Right.READ and subject == self.subject

    def sees(self, right: Right, subject: str) -> bool:
        return self.may(right, subject)


async def test_a_guid_is_looked_for_in_all_contexts_that_the_caller_may_read(
    api: RegistryApi,
) -> None:
    """Readers whose records have it in a header ask so, and know no context."""
    number = await register(api, USER)
    await register(api, USER, ":.stage:s")
    guid = (await call(api, "GET", f"/schemas/ids/{number}"))["guid"]
    for subject, status in (("u", 200), (":.stage:s", 200), ("other", 403)):
        answer = await api.answer(
            Call("GET", f"/schemas/guids/{guid}", permissions=ReaderOf(subject))
        )
        assert answer.status == status
        found = json.loads(answer.body)
        if status == 200:
            assert (found["schema"], found["subject"]) == (USER, subject)


async def test_a_guid_has_all_ids_that_imports_gave_its_schema(api: RegistryApi) -> None:
    """A caller may have the right to a subject that has one of them."""
    for scope in ("", "/:.stage:"):
        await call(api, "PUT", f"/mode{scope}?force=true", {"mode": "IMPORT"})
    for subject, number in (("u", 50), ("v", 30), ("w", 50), (":.stage:u", 7)):
        assert await register(api, USER, subject, id=number, version=1) == number
    guid = (await call(api, "GET", "/schemas/ids/30"))["guid"]
    found = await call(api, "GET", f"/schemas/guids/{guid}/ids")
    assert [(one["context"], one["id"]) for one in found] == [(".", 50), (".", 30), (".stage", 7)]
    for subject, status in (("u", 200), ("v", 200), ("other", 403)):
        asked = Call("GET", f"/schemas/guids/{guid}", permissions=ReaderOf(subject))
        answer = await api.answer(asked)
        assert answer.status == status
        if status == 200:
            assert json.loads(answer.body)["subject"] == subject
    await call(api, "DELETE", "/subjects/u")
    await call(api, "DELETE", "/subjects/w")
    for subject in ("u", "w"):
        await call(api, "DELETE", f"/subjects/{subject}?permanent=true")
    found = await call(api, "GET", f"/schemas/guids/{guid}/ids")
    assert [one["id"] for one in found] == [30, 7]


# -- settings -------------------------------------------------------------------------------------


async def test_an_update_answers_with_all_that_is_set_now(api: RegistryApi) -> None:
    await call(api, "PUT", "/config/u", {"compatibility": "FULL"})
    found = await call(api, "PUT", "/config/u", {"normalize": True})
    assert found == {"normalize": True, "compatibility": "FULL"}
    found = await call(api, "PUT", "/config/u", {"normalize": None, "compatibilityLevel": "NONE"})
    assert found == {"compatibility": "NONE"}
    await call(api, "PUT", "/config/u", {"compatibility": None})
    assert (await call(api, "GET", "/config/u", status=404))["error_code"] == 40408


async def test_modes_are_deleted_for_everything_and_with_all_subjects(api: RegistryApi) -> None:
    assert await call(api, "DELETE", "/mode") == {"mode": "READWRITE"}
    await call(api, "PUT", "/mode", {"mode": "READONLY"})
    for subject in ("u", ":.stage:u", ":.stage:"):
        await call(api, "PUT", f"/mode/{subject}", {"mode": "READONLY"})
    assert await call(api, "DELETE", "/mode") == {"mode": "READONLY"}
    assert await call(api, "GET", "/mode/u") == {"mode": "READONLY"}
    assert await call(api, "DELETE", "/mode?recursive=true") == {"mode": "READWRITE"}
    await call(api, "GET", "/mode/u", status=404)
    assert await call(api, "DELETE", "/mode/:.stage:?recursive=true") == {"mode": "READONLY"}
    await call(api, "GET", "/mode/:.stage:u", status=404)
    assert await call(api, "DELETE", "/mode/u?recursive=true") == {}
    await call(api, "DELETE", "/mode/u", status=404)


async def test_a_deletion_of_the_mode_of_everything_is_a_change(api: RegistryApi) -> None:
    answer = await api.answer(Call("DELETE", "/mode"))
    assert answer.change is not None
    assert answer.change.operation is Operation.DELETE_MODE


async def test_what_a_server_of_confluent_has_beside_the_registry(api: RegistryApi) -> None:
    assert await call(api, "GET", "/v1/metadata/deployment") == {"attributes": []}
    for path in ("/exporters", "/associations/resources/-/t", "/dek-registry/v1/keks"):
        await call(api, "GET", path, status=404)
