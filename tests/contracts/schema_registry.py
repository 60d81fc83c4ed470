"""What the schema registry promises on every metadata store, whatever others write meanwhile."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from tidelog_core.errors import OutcomeUnknown, TidelogError
from tidelog_core.metadata.schema_records import (
    SchemaContext,
    SchemaSubject,
    SchemaText,
    schema_text_key,
)
from tidelog_core.metadata.store import ANY_VERSION, Check, MetadataStore, Write
from tidelog_core.schema_registry.deletion import SchemaDeletion
from tidelog_core.schema_registry.reading import RegistryReader
from tidelog_core.schema_registry.registry import LATEST, SchemaRegistry, Wanted
from tidelog_core.schema_registry.settings import RegistryConfig, RegistrySettings
from tidelog_core.schemas.model import (
    GIVEN_MAX,
    ID_MAX,
    Compatibility,
    Mode,
    Reference,
    Schema,
    SchemaType,
)
from tidelog_core.schemas.refusals import RegistryRefusal

from tests.contracts.metadata_update import Open


def record(name: str, *fields: str, types: Sequence[str] = ()) -> Schema:
    """Return an Avro schema, a record whose fields have defaults."""
    made: list[dict[str, Any]] = [{"name": one, "type": "int", "default": 0} for one in fields]
    made += [{"name": f"of_{one}", "type": one} for one in types]
    text = json.dumps({"type": "record", "name": name, "fields": made}, separators=(",", ":"))
    return Schema(SchemaType.AVRO, text)


def referring(name: str, *references: Reference) -> Schema:
    """Return a record with a field of the type of each reference."""
    schema = record(name, types=[one.name for one in references])
    return Schema(schema.schema_type, schema.text, references)


class KilledStore:
    """A store whose process may end at a commit: before it, or when it was made."""

    def __init__(self, store: MetadataStore, chance: random.Random) -> None:
        self._store = store
        self._chance = chance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
        fate = self._chance.random()
        if fate < 0.1:
            raise Killed("before the commit")
        await self._store.commit(writes, checks=checks)
        if fate < 0.2:
            raise Killed("after the commit")
        if fate < 0.3:
            raise OutcomeUnknown("the answer was lost")


class Killed(BaseException):
    """The end of a writer."""


async def require_whole(store: MetadataStore, context: str = ".", *, is_dense: bool = True) -> int:
    """Check that each id has one schema, and each schema one id; return the last id.

    ``is_dense``: no id was passed over, as it is after a loss of entries.
    """
    reader = RegistryReader(store)
    last = (await reader.context(context)).last_id
    texts = [SchemaText.from_item(one) for one in await store.list(f"schema-text:{context}")]
    ids_given = [one.schema_id for one in texts]
    assert not is_dense or ids_given == list(range(1, last + 1))
    assert len(set(ids_given)) == len(texts)
    assert max(ids_given, default=0) <= last
    assert len({one.schema for one in texts}) == len(texts)
    ids = {one.schema.guid: one.schema_id for one in texts}
    uses = {}
    for guid, schema_id in ids.items():
        identity = await reader.identity(context, guid)
        assert identity is not None
        assert identity.schema_id == schema_id
        uses |= {(one.subject, one.version): one.schema_id for one in identity.uses}
    versions = {}
    subjects, malformed = await reader.subjects("")
    assert malformed == []
    for subject in subjects:
        assert [one.version for one in subject.versions] == list(
            range(1, len(subject.versions) + 1)
        )
        versions |= {(subject.subject, one.version): one.schema_id for one in subject.versions}
    assert versions == uses
    return last


async def refusal(call: Any) -> int:
    """Return the error code of a refused call."""
    with pytest.raises(RegistryRefusal) as refused:
        await call
    return refused.value.error_code


class SchemaRegistryContract:
    """Subclasses give ``open``: a factory of stores on one and the same empty database."""

    schema_count = 6  # that killed writers register
    writer_count = 4

    @pytest.fixture
    def open(self) -> Open:
        raise NotImplementedError

    def registry(self, store: MetadataStore) -> SchemaRegistry:
        """Return a registry of one process."""
        return SchemaRegistry(store)

    async def test_ids_are_dense_and_unique_when_writers_are_killed(self, open: Open) -> None:
        """Writers register the same schemas in other orders, and end between the writes."""
        async with open() as shared:
            given: dict[str, set[int]] = {}

            async def write(number: int) -> None:
                chance = random.Random(f"writer {number}")
                registry = self.registry(KilledStore(shared, chance))
                await RegistrySettings(registry).config("", or_wider=True)
                work = [(s, v) for s in "ab" for v in range(self.schema_count)]
                chance.shuffle(work)
                while work:
                    subject, value = work[-1]
                    schema = record("R", *(f"f{i}" for i in range(value)))
                    with suppress(Killed):
                        found = await registry.register(subject, Wanted(schema))
                        given.setdefault(schema.text, set()).add(found.schema_id)
                        work.pop()
                    if chance.random() < 0.3:
                        registry = self.registry(KilledStore(shared, chance))

            async with asyncio.TaskGroup() as group:
                for number in range(self.writer_count):
                    group.create_task(write(number))
            assert await require_whole(shared) == self.schema_count
            assert all(len(ids) == 1 for ids in given.values())

    async def test_a_schema_has_one_id_and_a_version_in_each_subject(self, open: Open) -> None:
        async with open() as store:
            registry = self.registry(store)
            first = await registry.register("a-value", Wanted(record("A")))
            again = await registry.register("a-value", Wanted(record("A")))
            other = await registry.register("b-value", Wanted(record("A")))
            second = await registry.register("a-value", Wanted(record("A", "x")))
            assert first == again
            assert (first.schema_id, other.schema_id, second.schema_id) == (1, 1, 2)
            assert (first.version, other.version, second.version) == (1, 1, 2)
            assert await registry.version("a-value", LATEST) == second
            assert [one.subject for one in await registry.uses(1)] == ["a-value", "b-value"]
            assert await registry.schema(2) == second.schema
            assert await refusal(registry.schema(3)) == 40403
            assert await refusal(registry.version("a-value", 3)) == 40402
            assert await refusal(registry.version("c", 1)) == 40401

    async def test_an_incompatible_schema_is_refused_by_the_level_in_scope(
        self, open: Open
    ) -> None:
        async with open() as store:
            registry = self.registry(store)
            settings = RegistrySettings(registry)
            other = Wanted(record("Other"))
            await registry.register("a", Wanted(record("A")))
            assert await refusal(registry.register("a", other)) == 40901
            assert await registry.compatibility.problems("a", other.schema, LATEST)
            await settings.set_config("a", RegistryConfig(Compatibility.NONE))
            assert (await registry.register("a", other)).version == 2
            assert await refusal(settings.config("b", or_wider=False)) == 40408
            assert (await settings.config("b", or_wider=True)).compatibility == "BACKWARD"
            await settings.set_config("", RegistryConfig(Compatibility.FULL))
            assert (await settings.config("b", or_wider=True)).compatibility == "FULL"
            await settings.delete_config("a")
            assert await refusal(registry.register("a", Wanted(record("A", "x")))) == 40901

    async def test_modes_say_what_may_be_written(self, open: Open) -> None:
        async with open() as store:
            registry = self.registry(store)
            settings = RegistrySettings(registry)
            imported = Wanted(record("A"), schema_id=7, version=3)
            assert await refusal(registry.register("a", imported)) == 42205
            await settings.set_mode("a", Mode.IMPORT, force=False)
            assert (await registry.register("a", imported)).version == 3
            assert await registry.register("a", imported) == await registry.version("a", 3)
            assert await refusal(registry.register("a", Wanted(record("B")))) == 42205
            taken = Wanted(record("B"), schema_id=7, version=4)
            assert await refusal(registry.register("a", taken)) == 42205
            await settings.delete_mode("a")
            assert (await registry.register("a", Wanted(record("A", "x")))).schema_id == 8
            await settings.set_mode("", Mode.READONLY, force=False)
            assert await refusal(registry.register("a", Wanted(record("A", "y")))) == 42205
            assert await refusal(settings.set_mode("", Mode.IMPORT, force=False)) == 42205

    async def test_versions_are_deleted_softly_and_then_for_ever(self, open: Open) -> None:
        async with open() as store:
            registry = self.registry(store)
            deletion = SchemaDeletion(registry)
            for fields in ((), ("x",), ("x", "y")):
                await registry.register("a", Wanted(record("A", *fields)))
            await registry.register("b", Wanted(record("A")))
            assert await refusal(deletion.delete_version("a", 3, is_permanent=True)) == 40407
            assert await deletion.delete_version("a", LATEST, is_permanent=False) == 3
            assert await refusal(deletion.delete_version("a", 3, is_permanent=False)) == 40406
            assert (await registry.version("a", LATEST)).version == 2
            assert (await registry.version("a", 3, with_deleted=True)).is_deleted
            assert await deletion.delete_version("a", 3, is_permanent=True) == 3
            assert await refusal(registry.schema(3)) == 40403
            assert await refusal(deletion.delete_subject("a", is_permanent=True)) == 40405
            assert await deletion.delete_subject("a", is_permanent=False) == [1, 2]
            assert await refusal(deletion.delete_subject("a", is_permanent=False)) == 40404
            back = await registry.register("a", Wanted(record("A")))
            assert (back.version, back.schema_id) == (3, 1)
            await deletion.delete_subject("a", is_permanent=False)
            assert await deletion.delete_subject("a", is_permanent=True) == [2, 3]
            assert await refusal(deletion.delete_subject("a", is_permanent=False)) == 40401
            assert (await registry.version("b", 1)).schema_id == 1
            assert (await registry.register("a", Wanted(record("A", "x")))).schema_id == 4

    async def test_what_others_refer_to_is_not_deleted(self, open: Open) -> None:
        async with open() as store:
            registry = self.registry(store)
            deletion = SchemaDeletion(registry)
            await registry.register("user", Wanted(record("User")))
            order = referring("Order", Reference("User", "user", 1))
            found = await registry.register("order", Wanted(order))
            assert found.schema.references == order.references
            assert await registry.referrers("user", 1) == [2]
            assert await refusal(deletion.delete_version("user", 1, is_permanent=False)) == 42206
            assert await refusal(deletion.delete_subject("user", is_permanent=False)) == 42206
            missing = referring("Other", Reference("User", "user", 2))
            assert await refusal(registry.register("other", Wanted(missing))) == 42201
            await deletion.delete_subject("order", is_permanent=False)
            await deletion.delete_subject("user", is_permanent=False)
            assert await refusal(deletion.delete_subject("user", is_permanent=True)) == 42206
            await deletion.delete_subject("order", is_permanent=True)
            assert await deletion.delete_subject("user", is_permanent=True) == [1]
            assert await store.list("schema-subject") == []
            assert await store.list("schema-text:.") == []
            assert await store.list("schema-identity:.") == []

    async def test_a_deletion_and_a_new_referrer_do_not_both_succeed(self, open: Open) -> None:
        async with open() as store:
            registries = [self.registry(store) for _ in range(2)]
            await registries[0].register("user", Wanted(record("User")))

            async def refer() -> None:
                wanted = Wanted(referring("Order", Reference("User", "user", 1)))
                await registries[0].register("order", wanted)

            async def remove() -> None:
                await SchemaDeletion(registries[1]).delete_subject("user", is_permanent=False)

            done = await asyncio.gather(refer(), remove(), return_exceptions=True)
            assert [isinstance(one, TidelogError) for one in done].count(True) == 1

    async def test_contexts_have_ids_of_their_own(self, open: Open) -> None:
        async with open() as store:
            registry = self.registry(store)
            await registry.register("a", Wanted(record("A")))
            staged = await registry.register(":.stage:b", Wanted(record("B")))
            assert (staged.subject, staged.schema_id) == (":.stage:b", 1)
            assert (await registry.schema(1)).text == record("A").text
            assert (await registry.schema(1, ":.stage:")).text == record("B").text
            assert await registry.read.contexts() == [".", ".stage"]
            assert (await registry.version("b", 1)).subject == ":.stage:b"
            assert (await registry.look_up("b", record("B"))).subject == ":.stage:b"
            assert await registry.read.context(".other") == SchemaContext(
                context=".other", last_id=0
            )

    async def test_a_lost_text_is_written_again_by_who_has_it(self, open: Open) -> None:
        """Its identity and its versions are there: it keeps its id and its version."""
        async with open() as store:
            registry = self.registry(store)
            schemas = [record("A"), record("A", "x")]
            for schema in schemas:
                await registry.register("a", Wanted(schema))
            await registry.register("b", Wanted(schemas[0]))
            key = schema_text_key(".", 1)
            for subject in ("a", "b", "c"):
                await store.commit([Write(key, None, ANY_VERSION, is_logged=False)])
                assert await refusal(registry.schema(1)) == 40403
                found = await registry.register(subject, Wanted(schemas[0]))
                assert (found.schema_id, found.version, found.is_new) == (1, 1, subject == "c")
                assert (await registry.schema(1)).text == schemas[0].text
                assert await registry.version(subject, 1) == found
            assert (await registry.register("a", Wanted(record("A", "x", "y")))).schema_id == 3
            assert await require_whole(store) == 3

    async def test_ids_and_versions_that_leave_too_few_are_refused(self, open: Open) -> None:
        async with open() as store:
            registry = self.registry(store)
            settings = RegistrySettings(registry)
            await settings.set_mode("a", Mode.IMPORT, force=False)
            for given in (GIVEN_MAX + 1, ID_MAX):
                high = Wanted(record("A"), schema_id=given)
                assert await refusal(registry.register("a", high)) == 42205
                late = Wanted(record("A"), schema_id=1, version=given)
                assert await refusal(registry.register("a", late)) == 42205
            last = Wanted(record("A"), schema_id=GIVEN_MAX, version=GIVEN_MAX)
            assert (await registry.register("a", last)).schema_id == GIVEN_MAX
            await settings.delete_mode("a")
            found = await registry.register("a", Wanted(record("A", "x")))
            assert (found.schema_id, found.version) == (GIVEN_MAX + 1, GIVEN_MAX + 1)

    async def test_a_subject_that_was_never_written_is_empty(self, open: Open) -> None:
        async with open() as store:
            registry = self.registry(store)
            name = await refusal(registry.look_up("a", record("A")))
            assert name == 40401
            await registry.register("a", Wanted(record("A")))
            assert await refusal(registry.look_up("a", record("B"))) == 40403
            assert await refusal(registry.look_up("a", Schema(SchemaType.AVRO, "{"))) == 42201
            subject = await registry.read.subject(_name("a"))
            only = SchemaSubject(subject="a", versions=subject.live)
            assert await registry.read.subjects("") == ([only], [])


def _name(text: str) -> Any:
    from tidelog_core.schemas.subject_names import SubjectName

    return SubjectName.parse(text)
