"""Lists of a registry with malformed or lost items: they leave those out, and the log names them."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pytest
from tidelog_core.metadata.schema_records import schema_subject_key, schema_text_key
from tidelog_core.metadata.store import Item, ItemKey
from tidelog_core.schema_registry.api import unreadable_items
from tidelog_core.schema_registry.api.calls import V1_JSON, Call, Right
from tidelog_core.schema_registry.api.registry_api import RegistryApi
from tidelog_core.schema_registry.deletion import SchemaDeletion
from tidelog_core.schema_registry.registry import SchemaRegistry, Wanted
from tidelog_core.schemas.model import Reference

from tests.contracts.schema_registry import record, referring
from tests.core.schema_registry.journal.journals import id_of
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
    lines = [one for one in caplog.records if one.name == unreadable_items.__name__]
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


def lose(store: MemoryMetadataStore, key: ItemKey) -> None:
    del store._items[key]


def missing(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    lines = [one for one in caplog.records if one.name == unreadable_items.__name__]
    assert all(one.levelname == "ERROR" and one.reason and one.hint for one in lines)  # type: ignore[attr-defined]
    return [(one.subject, one.version) for one in lines]  # type: ignore[attr-defined]


async def test_a_list_of_schemas_has_all_but_the_lost_one_which_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api, store = await filled()
    lose(store, schema_text_key(".", 2))  # that of b
    for _ in range(2):
        status, found = await call(api, "GET", "/schemas")
        assert status == 200
        assert [one["subject"] for one in found] == [":.stage:b", "a", "c"]
    assert missing(caplog) == [("b", 1)]
    assert (await call(api, "GET", "/subjects/b/versions/1"))[0] == 404
    assert (await call(api, "POST", "/subjects/b/versions", schema_of(1)))[0] == 200
    assert len((await call(api, "GET", "/schemas"))[1]) == 4


def schema_of(number: int) -> dict[str, str]:
    return {"schema": record(f"R{number}").text}


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
async def test_a_page_is_full_while_more_follows(limit: int) -> None:
    """A client that stops at the first short page has all that can be read."""
    api, store = await filled()
    for number in range(4, 50):
        await id_of(SchemaRegistry(store), record(f"R{number}"), f"s{number:02}")
    for lost in (1, 9, 10, 11, 30):
        lose(store, schema_text_key(".", lost))
    damage(store, schema_text_key(".", 20))
    seen = set[str]()
    offset, page = 0, [""] * limit
    while len(page) == limit:
        status, found = await call(api, "GET", f"/schemas?offset={offset}&limit={limit}")
        assert status == 200
        page = [one["subject"] for one in found]
        seen |= set(page)
        offset += limit
    assert len(seen) == 50 - 6
    assert seen == {one["subject"] for one in (await call(api, "GET", "/schemas"))[1]}


async def test_a_lost_schema_is_not_taken_from_the_same_subject_in_another_context() -> None:
    api, store = await filled()
    await id_of(SchemaRegistry(store), record("R3", "x"), ":.stage:b")  # its id is 2 there
    asked = ("/subjects/b/versions/1", "/schemas/ids/2?subject=b", "/subjects/b/versions/latest")
    for path in asked:
        assert json.loads((await call(api, "GET", path))[1]["schema"])["name"] == "R1"
    lose(store, schema_text_key(".", 2))
    for path in asked:
        assert (await call(api, "GET", path))[0] == 404


class RemovingStore:
    """A store from which another process removes a subject before schemas are read."""

    def __init__(self, store: MemoryMetadataStore, subject: str) -> None:
        self._store = store
        self._subject = subject

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get_many(self, ids: Collection[ItemKey]) -> dict[ItemKey, Item]:
        subject, self._subject = self._subject, ""
        if subject:
            deletion = SchemaDeletion(SchemaRegistry(self._store))
            await deletion.delete_subject(subject, is_permanent=False)
            await deletion.delete_subject(subject, is_permanent=True)
        return await self._store.get_many(ids)


async def test_a_schema_that_is_removed_while_schemas_are_listed_is_not_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, store = await filled()
    removing: Any = RemovingStore(store, "b")
    api = RegistryApi(SchemaRegistry(removing), cluster_id="c", version="1")
    status, found = await call(api, "GET", "/schemas")
    assert status == 200
    assert [one["subject"] for one in found] == [":.stage:b", "a", "c"]
    assert missing(caplog) == []


async def test_a_list_of_resolved_schemas_lacks_those_that_refer_to_a_lost_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api, store = await filled()
    await SchemaRegistry(store).register("d", Wanted(referring("D", Reference("R1", "b", 1))))
    lose(store, schema_text_key(".", 2))
    status, found = await call(api, "GET", "/schemas?format=resolved")
    assert status == 200, found
    assert [one["subject"] for one in found] == [":.stage:b", "a", "c"]
    assert sorted(missing(caplog)) == [("b", 1), ("d", 1)]


async def test_deleted_schemas_are_resolved_with_the_deleted_ones_that_they_refer_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api, store = await filled()
    await SchemaRegistry(store).register("d", Wanted(referring("D", Reference("R1", "b", 1))))
    for subject in ("d", "b"):
        assert (await call(api, "DELETE", f"/subjects/{subject}"))[0] == 200
    status, found = await call(api, "GET", "/schemas?format=resolved&deleted=true")
    assert status == 200, found
    assert [one["subject"] for one in found] == [":.stage:b", "a", "b", "c", "d"]
    assert missing(caplog) == []


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
    monkeypatch.setattr(unreadable_items, "REPORTED_MAX", 2)
    api, store = await filled()
    for subject in SUBJECTS:
        damage(store, schema_subject_key(subject))
    for _ in range(2):
        assert await call(api, "GET", "/subjects") == (200, [])
    assert len(reported(caplog)) == 2
