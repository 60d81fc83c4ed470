"""Lists of a registry with malformed items: they leave those out, and the log names them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tidelog_core.metadata.schema_records import schema_subject_key, schema_text_key
from tidelog_core.metadata.store import ItemKey
from tidelog_core.schema_registry import malformed_items
from tidelog_core.schema_registry.api import RegistryApi
from tidelog_core.schema_registry.calls import V1_JSON, Call, Right
from tidelog_core.schema_registry.registry import SchemaRegistry, Wanted
from tidelog_core.schemas.model import Reference

from tests.contracts.schema_registry import record, referring
from tests.core.schema_registry.journals import id_of
from tests.support.memory_store import MemoryMetadataStore

SUBJECTS = ("a", "b", "c", ":.stage:b")
BROKEN = schema_subject_key("b")


class Named:
    """The permissions of a caller who may read one subject."""

    def may(self, right: Right, subject: str) -> bool:
        return right is Right.READ and subject == ":.stage:b"

    sees = may


async def filled() -> tuple[RegistryApi, MemoryMetadataStore]:
    store = MemoryMetadataStore(latency=0)
    registry = SchemaRegistry(store)
    for number, subject in enumerate(SUBJECTS):
        await id_of(registry, record(f"R{number}"), subject)
    return RegistryApi(registry, cluster_id="c", version="1"), store


def damage(store: MemoryMetadataStore, key: ItemKey, body: object = None) -> None:
    version, _ = store._items[key]
    store._items[key] = version, json.dumps(body or {"versions": "many"})


async def call(api: RegistryApi, method: str, path: str, body: Any = None, **more: Any) -> Any:
    path, _, query = path.partition("?")
    text = b"" if body is None else json.dumps(body).encode()
    answer = await api.answer(Call(method, path, query, text, V1_JSON, **more))
    return answer.status, json.loads(answer.body)


def reported(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    lines = [one for one in caplog.records if one.name == malformed_items.__name__]
    assert all(one.levelname == "ERROR" and one.reason for one in lines)  # type: ignore[attr-defined]
    return [(one.collection, one.key) for one in lines]  # type: ignore[attr-defined]


async def test_a_list_of_subjects_has_all_but_the_malformed_one_which_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api, store = await filled()
    damage(store, BROKEN)
    for _ in range(2):
        assert await call(api, "GET", "/subjects") == (200, [":.stage:b", "a", "c"])
        assert await call(api, "GET", "/subjects?deleted=true") == (200, [":.stage:b", "a", "c"])
    assert await call(api, "GET", "/subjects?subjectPrefix=b") == (200, [])
    assert reported(caplog) == [(BROKEN.collection, "b")]


async def test_a_list_of_schemas_has_all_but_those_of_malformed_items(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api, store = await filled()
    text = schema_text_key(".", 3)
    damage(store, BROKEN)
    damage(store, text)
    status, found = await call(api, "GET", "/schemas")
    assert status == 200
    assert [one["subject"] for one in found] == [":.stage:b", "a"]
    assert set(reported(caplog)) == {(BROKEN.collection, "b"), (text.collection, text.key)}


async def test_a_list_of_resolved_schemas_lacks_those_that_refer_to_a_malformed_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api, store = await filled()
    await SchemaRegistry(store).register("d", Wanted(referring("D", Reference("R1", "b", 1))))
    for names in ([*sorted(SUBJECTS), "d"], [":.stage:b", "a", "c"]):
        status, found = await call(api, "GET", "/schemas?format=resolved")
        assert status == 200, found
        assert [one["subject"] for one in found] == names
        damage(store, BROKEN)
    assert reported(caplog) == [(BROKEN.collection, "b")]


async def test_contexts_are_seen_by_the_names_of_subjects_also_of_malformed_ones() -> None:
    api, store = await filled()
    damage(store, BROKEN)
    damage(store, schema_subject_key(":.stage:b"))
    found = await call(api, "GET", "/contexts", permissions=Named())
    assert found == (200, [".", ".stage"])


async def test_calls_about_the_malformed_subject_are_refused_and_name_it() -> None:
    api, store = await filled()
    damage(store, BROKEN)
    for method, path in [("GET", "/subjects/b/versions"), ("DELETE", "/subjects/b")]:
        status, answer = await call(api, method, path)
        assert (status, answer["error_code"]) == (500, 50001)
        assert f"{BROKEN.collection}/b" in answer["message"]
    assert (await call(api, "GET", "/subjects/a/versions"))[0] == 200


@pytest.mark.parametrize(("scope", "status"), [("b", 500), (":.stage:", 422), ("new", 200)])
async def test_the_mode_import_is_refused_where_a_malformed_subject_may_have_versions(
    scope: str, status: int
) -> None:
    """In that mode clients give ids, which must not be those of schemas that are there."""
    api, store = await filled()
    damage(store, BROKEN)
    answered = await call(api, "PUT", f"/mode/{scope}", {"mode": "IMPORT"})
    assert answered[0] == status, answered


async def test_a_registry_with_many_malformed_items_remembers_a_limited_number(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(malformed_items, "REPORTED_MAX", 2)
    api, store = await filled()
    for subject in SUBJECTS:
        damage(store, schema_subject_key(subject))
    for _ in range(2):
        assert await call(api, "GET", "/subjects") == (200, [])
    assert len(reported(caplog)) == 2
