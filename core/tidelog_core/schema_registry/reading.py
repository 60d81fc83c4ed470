"""Reads the registry's items. Every read is of the store's newest state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.record import Record
from tidelog_core.metadata.schema_records import (
    LATER_CONTEXTS,
    SCHEMA_CONTEXT_COLLECTION,
    SCHEMA_SETTINGS_COLLECTION,
    SCHEMA_SUBJECT_COLLECTION,
    SCHEMA_TEXT_COLLECTION_PREFIX,
    SchemaContext,
    SchemaIdentity,
    SchemaSettings,
    SchemaSubject,
    SchemaText,
    SubjectVersion,
    schema_context_key,
    schema_identity_key,
    schema_settings_key,
    schema_subject_key,
    schema_text_key,
)
from tidelog_core.metadata.store import Body, Item, ItemKey
from tidelog_core.schema_registry.scopes import SettingsInScope, scopes_of
from tidelog_core.schemas.model import (
    RESOLVED_CHARACTERS_MAX,
    RESOLVED_MAX,
    Reference,
    Schema,
)
from tidelog_core.schemas.refusals import ReferenceNotFound, invalid_schema
from tidelog_core.schemas.subject_names import DEFAULT_CONTEXT, SubjectName

LATEST = -1  # as the version that a client wants
TEXTS_AT_ONCE = 20  # schemas of versions that are in memory

_READ_VERSION = 1  # Items in the bucket have none.
_RECORDS: dict[str, type[Record]] = {
    SCHEMA_CONTEXT_COLLECTION: SchemaContext,
    SCHEMA_SETTINGS_COLLECTION: SchemaSettings,
    SCHEMA_SUBJECT_COLLECTION: SchemaSubject,
}


class ItemSource(Protocol):
    """A metadata store, or anything else that has items. The methods are those of the store."""

    async def get(self, id: ItemKey) -> Item | None:
        """Return the item, or ``None`` if it does not exist."""

    async def get_many(self, ids: Collection[ItemKey]) -> dict[ItemKey, Item]:
        """Return the items that exist."""

    async def list(self, collection: str, *, prefix: str = "") -> list[Item]:
        """Return the collection's items whose key starts with ``prefix``, in key order."""


class RegistryReader:
    """The items of a registry. For any task."""

    def __init__(self, store: ItemSource) -> None:
        self._store = store

    async def subject(self, name: SubjectName) -> SchemaSubject:
        """Return the subject; one that is not stored has no versions."""
        item = await self._store.get(schema_subject_key(name.text))
        return SchemaSubject(subject=name.text) if item is None else SchemaSubject.from_item(item)

    async def subjects(self, prefix: str) -> tuple[list[SchemaSubject], list[CorruptItem]]:
        """Return all subjects whose name, with its context, begins so, and the malformed ones."""
        found, malformed = [], []
        for one in await self._store.list(SCHEMA_SUBJECT_COLLECTION, prefix=prefix):
            try:
                found.append(SchemaSubject.from_item(one))
            except CorruptItem as error:
                malformed.append(error)
        return found, malformed

    async def subject_names(self) -> list[str]:
        """Return the names of all subjects, with their contexts, malformed ones too."""
        return [one.id.key for one in await self._store.list(SCHEMA_SUBJECT_COLLECTION)]

    async def subjects_named(self, names: Collection[SubjectName]) -> dict[str, SchemaSubject]:
        """Return the subjects by their names."""
        keys = {name.text: schema_subject_key(name.text) for name in names}
        items = await self._store.get_many(keys.values())
        return {
            text: SchemaSubject.from_item(items[key])
            if key in items
            else SchemaSubject(subject=text)
            for text, key in keys.items()
        }

    async def text(self, context: str, schema_id: int) -> SchemaText | None:
        """Return the schema with the id."""
        item = await self._store.get(schema_text_key(context, schema_id))
        return None if item is None else SchemaText.from_item(item)

    async def texts(self, context: str, ids: Iterable[int]) -> dict[int, SchemaText]:
        """Return the schemas with the ids."""
        keys = {one: schema_text_key(context, one) for one in ids}
        items = await self._store.get_many(keys.values())
        return {one: SchemaText.from_item(items[key]) for one, key in keys.items() if key in items}

    async def readable_texts(
        self, context: str, ids: Iterable[int]
    ) -> dict[int, SchemaText | CorruptItem]:
        """Return the schemas with the ids, in place of a malformed one the error."""
        keys = {one: schema_text_key(context, one) for one in ids}
        items = await self._store.get_many(keys.values())
        found: dict[int, SchemaText | CorruptItem] = {}
        for one, key in keys.items():
            if key in items:
                try:
                    found[one] = SchemaText.from_item(items[key])
                except CorruptItem as error:
                    found[one] = error.with_traceback(None)
        return found

    async def identity(self, context: str, guid: str) -> SchemaIdentity | None:
        """Return the identity of a schema."""
        item = await self._store.get(schema_identity_key(context, guid))
        return None if item is None else SchemaIdentity.from_item(item)

    async def context(self, context: str) -> SchemaContext:
        """Return the context; one that is not stored has given out no id that is known.

        Entries that the bucket has lost may have made it: then it does not begin with 1.
        """
        item = await self._store.get(schema_context_key(context))
        if item is not None:
            return SchemaContext.from_item(item)
        later = await self._store.get(schema_context_key(LATER_CONTEXTS))
        last_id = 0 if later is None else SchemaContext.from_item(later).last_id
        return SchemaContext(context=context, last_id=last_id)

    async def contexts(self) -> list[str]:
        """Return the names of all contexts, the default one first."""
        items = await self._store.list(SCHEMA_CONTEXT_COLLECTION)
        names = [one.id.key for one in items]  # A malformed counter hides no other context.
        others = (one for one in names if one not in (DEFAULT_CONTEXT, LATER_CONTEXTS))
        return [DEFAULT_CONTEXT, *others]

    async def settings(self, scope: str) -> SchemaSettings:
        """Return the settings of one scope; empty if it has none."""
        item = await self._store.get(schema_settings_key(scope))
        return SchemaSettings(scope=scope) if item is None else SchemaSettings.from_item(item)

    async def settings_with_mode(self) -> list[str]:
        """Return the scopes that have a mode of their own."""
        items = await self._store.list(SCHEMA_SETTINGS_COLLECTION)
        found = map(record_of, items)
        return [
            one.scope for one in found if isinstance(one, SchemaSettings) and one.mode is not None
        ]

    async def settings_of(self, name: SubjectName) -> SettingsInScope:
        """Return the settings of all scopes of a subject or a context."""
        keys = {scope: schema_settings_key(scope) for scope in scopes_of(name)}
        items = await self._store.get_many(keys.values())
        return SettingsInScope(
            [
                SchemaSettings.from_item(items[key])
                if key in items
                else SchemaSettings(scope=scope)
                for scope, key in keys.items()
            ]
        )

    async def with_versions(
        self, name: SubjectName, references: Sequence[Reference]
    ) -> tuple[Reference, ...]:
        """Return references with the numbers of the latest versions where they name those.

        What has no version stays, and ``resolve`` refuses it.
        """
        found = []
        for one in references:
            live = () if one.version != LATEST else await self._live(name.reference(one.subject))
            found.append(replace(one, version=live[-1].version) if live else one)
        return tuple(found)

    async def _live(self, name: SubjectName) -> Sequence[SubjectVersion]:
        return (await self.subject(name)).live

    async def resolve(
        self, name: SubjectName, references: Sequence[Reference], *, with_deleted: bool = False
    ) -> list[tuple[Reference, str]]:
        """Return the references of a schema with their texts, and theirs, the innermost first.

        ``with_deleted``: versions that were deleted softly count, too. Raises ``RegistryRefusal``
        if one is not there, or if there are too many.
        """
        found: dict[tuple[str, int], tuple[Reference, str]] = {}
        await self._resolve(name, references, found, {}, with_deleted=with_deleted)
        return list(found.values())

    async def _resolve(
        self,
        name: SubjectName,
        references: Sequence[Reference],
        found: dict[tuple[str, int], tuple[Reference, str]],
        visited: dict[tuple[str, int], None],
        *,
        with_deleted: bool,
    ) -> None:
        for one in references:
            target = name.reference(one.subject)
            key = target.text, one.version
            if key in visited:
                continue
            visited[key] = None
            if len(visited) > RESOLVED_MAX:
                raise invalid_schema(f"it refers to more than {RESOLVED_MAX} schemas")
            schema = await self.schema_of(target, one.version, with_deleted=with_deleted)
            if schema is None:
                raise ReferenceNotFound(one.subject, one.version)
            await self._resolve(
                target, schema.references, found, visited, with_deleted=with_deleted
            )
            found[key] = one, schema.text
            if sum(len(text) for _, text in found.values()) > RESOLVED_CHARACTERS_MAX:
                raise invalid_schema(
                    f"the schemas that it refers to have more than {RESOLVED_CHARACTERS_MAX}"
                    " characters"
                )

    async def schema_of(
        self, name: SubjectName, version: int, *, with_deleted: bool = False
    ) -> Schema | None:
        """Return the schema of a version, ``LATEST`` for the newest.

        A deleted version is found only ``with_deleted``, and is never the latest.
        """
        subject = await self.subject(name)
        live = subject.live
        known = subject.versions if with_deleted else live
        for one in live[-1:] if version == LATEST else known:
            if version in (LATEST, one.version):
                text = await self.text(name.context, one.schema_id)
                return None if text is None else text.schema
        return None


def record_of(item: Item) -> Record | None:
    """Return the record of an item, ``None`` if its body is malformed."""
    kind = _RECORDS.get(item.id.collection)
    if kind is None:
        is_text = item.id.collection.startswith(SCHEMA_TEXT_COLLECTION_PREFIX)
        kind = SchemaText if is_text else SchemaIdentity
    try:
        return kind.from_item(item)
    except CorruptItem:
        return None


def record_in(items: dict[ItemKey, Body], key: ItemKey) -> Record | None:
    """Return the record of one of the journal's items, ``None`` if there is none, or malformed."""
    body = items.get(key)
    return None if body is None else record_of(Item(key, _READ_VERSION, body))
