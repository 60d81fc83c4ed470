"""A schema registry in the metadata store: any process may serve it, and write.

There is no primary, and nothing is kept between calls. So every process has what any other has
written, and one that ends in the middle of a call leaves all of the call's changes or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypeVar

from tidelog_core.errors import CommitTooLarge, ItemTooLarge
from tidelog_core.metadata.records import check
from tidelog_core.metadata.schema_records import (
    SchemaIdentity,
    SchemaJournal,
    SchemaSubject,
    SchemaUse,
    SubjectVersion,
)
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.metadata.update import retried
from tidelog_core.schema_registry.change_log import ChangeLog, StoreLog
from tidelog_core.schema_registry.reading import RegistryReader
from tidelog_core.schema_registry.registration import (
    ANY_ID,
    NEXT_VERSION,
    Decision,
    Reading,
    decide,
    mended,
    registered,
    require_mode,
)
from tidelog_core.schema_registry.scopes import SettingsInScope
from tidelog_core.schemas.languages import parse, problems
from tidelog_core.schemas.model import (
    EXTRAS_CHARACTERS_MAX,
    REFERENCES_MAX,
    SCHEMA_CHARACTERS_MAX,
    Compatibility,
    Mode,
    Schema,
)
from tidelog_core.schemas.parsed import InvalidSchema, ParsedSchema
from tidelog_core.schemas.refusals import (
    incompatible,
    invalid_schema,
    invalid_subject,
    schema_not_found,
    schema_too_large,
    subject_not_found,
    version_not_found,
)
from tidelog_core.schemas.subject_names import SubjectName, is_valid_subject

LATEST = -1
COMPARED_AT_ONCE = 20  # older versions that are read at once
ATTEMPTS_MAX = 20  # each conflict means that another writer succeeded
PAUSE_SECONDS_MAX = 0.05

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version of a subject with its schema."""

    subject: str
    version: int
    schema_id: int
    schema: Schema
    is_deleted: bool = False
    is_new: bool = field(default=False, compare=False)  # This call has registered it.


@dataclass(frozen=True, slots=True)
class Wanted:
    """A schema that a client sends, and what it says of its version."""

    schema: Schema  # as it was sent
    schema_id: int = ANY_ID
    version: int = NEXT_VERSION


class SchemaRegistry:
    """The registry of a cluster. For the tasks of one event loop."""

    def __init__(
        self,
        store: MetadataStore,
        executor: Executor | None = None,
        *,
        changes: ChangeLog | None = None,
    ) -> None:
        """``executor`` parses and compares; ``None``: the loop's own.

        ``changes`` commits; ``None``: to the metadata store, with no copy in a bucket.
        """
        self.store = store
        self.changes: ChangeLog = changes or StoreLog(store)
        self.read = RegistryReader(store)
        self._executor = executor
        # One process's writers take turns, and do not make each other's commits conflict.
        self.turn = asyncio.Lock()

    # -- registering -----------------------------------------------------------------------

    async def register(
        self, subject: str, wanted: Wanted, *, normalize: bool = False, force: bool = False
    ) -> StoredVersion:
        """Return the version with the schema, which is registered if it was not.

        Durable on return; to repeat it does nothing more. ``force``: without a look at older
        versions. Raises ``RegistryRefusal``, and the store's errors.
        """
        if not is_valid_subject(subject):
            raise invalid_subject(subject)
        name = SubjectName.parse(subject)
        is_new = False

        async def attempt() -> StoredVersion:
            nonlocal is_new
            begun = await self.changes.begin()
            settings = await self.read.settings_of(name)
            known = normalize or settings.normalize
            parsed, schema = await self._canonical(name, wanted.schema, known)
            reading = await self._reading(name, schema, wanted, settings.mode)
            decision = registered(reading)
            lost_text = mended(reading)
            if decision is None:
                # Only now: producers may send what is registered whatever the mode is.
                require_mode(name, settings.mode, wanted.schema_id)
                if settings.mode is not Mode.IMPORT and not force:
                    await self._require_compatible(name, parsed, reading.subject, settings)
                is_new = True  # Also if the answer to this commit is lost, and the next finds it.
                decision = decide(reading)
                await self._commit(begun, reading, settings, decision)
            elif lost_text is not None:
                await self._commit(begun, reading, settings, lost_text)
            return StoredVersion(
                name.text, decision.version, decision.schema_id, schema, is_new=is_new
            )

        async with self.turn:
            try:
                return await retried(
                    attempt, attempts_max=ATTEMPTS_MAX, pause_seconds_max=PAUSE_SECONDS_MAX
                )
            except (ItemTooLarge, CommitTooLarge) as error:
                raise schema_too_large(str(error)) from None

    async def _commit(
        self,
        begun: SchemaJournal | None,
        reading: Reading,
        settings: SettingsInScope,
        decision: Decision,
    ) -> None:
        checks = [*settings.checks(), check(reading.context)]
        written = {one.id for one in decision.writes}
        checks = [one for one in checks if one.id not in written]
        await self.changes.commit(begun, decision.writes, checks)

    async def _reading(
        self, name: SubjectName, schema: Schema, wanted: Wanted, mode: Mode
    ) -> Reading:
        context = await self.read.context(name.context)  # First: it tells of removed items.
        guid = schema.guid
        identity = await self.read.identity(name.context, guid)
        subject = await self.read.subject(name)
        ids = {wanted.schema_id}
        if identity is not None:
            uses = set(identity.uses)
            own = [
                one.schema_id
                for one in subject.live
                if SchemaUse(name.text, one.version, one.schema_id) in uses
            ]
            ids |= {identity.schema_id, *own[-1:]}
        targets = [name.reference(one.subject) for one in schema.references]
        return Reading(
            name=name,
            schema=schema,
            subject=subject,
            identity=identity or SchemaIdentity(context=name.context, guid=guid, schema_id=1),
            texts=await self.read.texts(name.context, ids - {ANY_ID}),
            context=context,
            referenced=await self.read.subjects_named(targets),
            mode=mode,
            schema_id=wanted.schema_id,
            version=wanted.version,
        )

    # -- looking up ------------------------------------------------------------------------

    async def look_up(
        self, subject: str, schema: Schema, *, normalize: bool = False, with_deleted: bool = False
    ) -> StoredVersion:
        """Return the version of the subject that has the schema. Raises ``RegistryRefusal``."""
        asked = SubjectName.parse(subject)
        has_subject = False
        for name in await self._names(asked):
            found, is_there = await self._look_up(name, schema, normalize, with_deleted)
            if found is not None:
                return found
            has_subject = has_subject or is_there
        raise schema_not_found() if has_subject else subject_not_found(asked.text)

    async def _look_up(
        self, name: SubjectName, schema: Schema, normalize: bool, with_deleted: bool
    ) -> tuple[StoredVersion | None, bool]:
        subject = await self.read.subject(name)
        versions = subject.versions if with_deleted else subject.live
        if not versions:
            return None, False
        settings = await self.read.settings_of(name)
        _, canonical = await self._canonical(name, schema, normalize or settings.normalize)
        identity = await self.read.identity(name.context, canonical.guid)
        uses = () if identity is None else identity.uses
        for one in reversed(versions):
            if SchemaUse(name.text, one.version, one.schema_id) in uses:
                return _stored(name, one, canonical), True
        return None, True

    async def version(
        self, subject: str, version: int, *, with_deleted: bool = False
    ) -> StoredVersion:
        """Return a version, ``LATEST`` for the newest. Raises ``RegistryRefusal``."""
        asked = SubjectName.parse(subject)
        has_subject = False
        for name in await self._names(asked):
            found = await self.read.subject(name)
            # The latest is one that is not deleted, whatever the client asks for.
            versions = found.versions if with_deleted and version != LATEST else found.live
            has_subject = has_subject or bool(found.versions if with_deleted else found.live)
            for one in reversed(versions):
                if version in (LATEST, one.version):
                    text = await self.read.text(name.context, one.schema_id)
                    if text is None:
                        break  # Another process has removed it, or it is lost.
                    return _stored(name, one, text.schema)
        raise version_not_found(version) if has_subject else subject_not_found(asked.text)

    async def schema(self, schema_id: int, subject: str = "") -> Schema:
        """Return the schema with an id, in the context of a subject. Raises ``RegistryRefusal``."""
        name = SubjectName.parse(subject)
        text = await self.read.text(name.context, schema_id)
        if text is None and name.is_in_default_context and name.subject:
            for one in (await self._names(name))[1:]:
                found = await self.read.subject(one)
                if any(version.schema_id == schema_id for version in found.versions):
                    text = await self.read.text(one.context, schema_id)
                    break
        if text is None:
            raise schema_not_found(schema_id)
        return text.schema

    async def uses(
        self, schema_id: int, subject: str = "", *, with_deleted: bool = False
    ) -> list[SchemaUse]:
        """Return the versions that have a schema. Raises ``RegistryRefusal``."""
        name = SubjectName.parse(subject)
        text = await self.read.text(name.context, schema_id)
        if text is None:
            raise schema_not_found()
        return await self._live_uses(name.context, text.schema, schema_id, with_deleted)

    async def _live_uses(
        self, context: str, schema: Schema, schema_id: int, with_deleted: bool
    ) -> list[SchemaUse]:
        identity = await self.read.identity(context, schema.guid)
        uses = [one for one in identity.uses if one.schema_id == schema_id] if identity else []
        if with_deleted or not uses:
            return uses
        names = {one.subject: SubjectName.parse(one.subject) for one in uses}
        subjects = await self.read.subjects_named(names.values())
        return [
            one
            for one in uses
            if SubjectVersion(one.version, schema_id) in subjects[one.subject].versions
        ]

    async def referrers(
        self, subject: str, version: int, *, with_deleted: bool = False
    ) -> list[int]:
        """Return the ids of schemas that refer to a version. Raises ``RegistryRefusal``."""
        found = await self.version(subject, version, with_deleted=True)
        name = SubjectName.parse(found.subject)
        ids = set()
        for one in (await self.read.subject(name)).referrers:
            if one.version != found.version or one.schema_id in ids:
                continue
            if with_deleted or await self.is_live(one.context, one.schema_id):
                ids.add(one.schema_id)
        return sorted(ids)

    async def is_live(self, context: str, schema_id: int) -> bool:
        """Return whether a version that is not deleted has the schema."""
        text = await self.read.text(context, schema_id)
        return text is not None and bool(
            await self._live_uses(context, text.schema, schema_id, with_deleted=False)
        )

    async def _names(self, name: SubjectName) -> list[SubjectName]:
        """Return the name, and if it has no context those in every context."""
        if not name.is_in_default_context or not name.subject:
            return [name]
        return [name.in_context(one) for one in await self.read.contexts()]

    # -- comparing -------------------------------------------------------------------------

    async def problems(
        self, subject: str, schema: Schema, version: int | None = None, *, normalize: bool = False
    ) -> list[str]:
        """Return why the schema is not compatible with a version, or with those that count.

        Raises ``RegistryRefusal``.
        """
        name = SubjectName.parse(subject)
        found = await self.read.subject(name)
        older = found.live
        if version is not None:
            older = older[-1:] if version == LATEST else older
            older = tuple(one for one in older if version in (LATEST, one.version))
            if not older and version != LATEST:
                raise version_not_found(version)
        settings = await self.read.settings_of(name)
        parsed, _ = await self._canonical(name, schema, normalize or settings.normalize)
        return await self._problems(name, parsed, older, settings.compatibility)

    async def _require_compatible(
        self,
        name: SubjectName,
        parsed: ParsedSchema,
        subject: SchemaSubject,
        settings: SettingsInScope,
    ) -> None:
        found = await self._problems(name, parsed, subject.live, settings.compatibility)
        if found:
            raise incompatible(name.text, found)

    async def _problems(
        self,
        name: SubjectName,
        new: ParsedSchema,
        older: Sequence[SubjectVersion],
        level: Compatibility,
    ) -> list[str]:
        if level is Compatibility.NONE or not older:
            return []
        counted = list(reversed(older if level.is_transitive else older[-1:]))
        # A few at a time are in memory, and a caller who has gone ends it between two.
        for start in range(0, len(counted), COMPARED_AT_ONCE):
            some = counted[start : start + COMPARED_AT_ONCE]
            texts = await self.read.texts(name.context, {one.schema_id for one in some})
            for one in some:
                text = texts.get(one.schema_id)
                if text is None:
                    continue  # Another process has removed it, or it is lost.
                found = await self._problems_with(name, new, (one.version, text.schema), level)
                if found:
                    return found
        return []

    async def _problems_with(
        self,
        name: SubjectName,
        new: ParsedSchema,
        older: tuple[int, Schema],
        level: Compatibility,
    ) -> list[str]:
        version, schema = older
        known = await self.read.resolve(name, schema.references)

        def compare() -> list[str]:
            old = parse(schema.schema_type, schema.text, known)
            return problems(level, new, [(version, old)])

        return await self._in_thread(compare)

    async def formatted(self, subject: str, schema: Schema, wanted: str) -> str:
        """Return a stored schema's text in a format. Raises ``RegistryRefusal``."""
        known = await self.read.resolve(SubjectName.parse(subject), schema.references)

        def understand() -> str:
            return parse(schema.schema_type, schema.text, known).formatted(wanted)

        return await self._in_thread(understand)

    async def _canonical(
        self, name: SubjectName, schema: Schema, normalize: bool
    ) -> tuple[ParsedSchema, Schema]:
        """Return the schema parsed, and as it is stored. Raises ``RegistryRefusal``."""
        _require_bounded(schema)
        known = await self.read.resolve(name, schema.references)

        def understand() -> tuple[ParsedSchema, str]:
            parsed = parse(schema.schema_type, schema.text, known)
            parsed = parsed.normalized() if normalize else parsed
            return parsed, parsed.canonical

        parsed, text = await self._in_thread(understand)
        references = schema.references
        if normalize:
            references = tuple(sorted(set(references)))
        stored = Schema(schema.schema_type, text, references, schema.metadata, schema.rule_set)
        _require_bounded(stored)
        return parsed, stored

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except InvalidSchema as error:
            raise invalid_schema(str(error)) from None
        except RecursionError:  # Of properties and other values that are not parsed.
            raise invalid_schema("it nests too deeply") from None


def _require_bounded(schema: Schema) -> None:
    """Raise ``RegistryRefusal`` for more than the registry keeps of one schema."""
    if not schema.text.strip():
        raise invalid_schema("Empty schema")
    if len(schema.text) > SCHEMA_CHARACTERS_MAX:
        raise schema_too_large(f"{len(schema.text)} characters, {SCHEMA_CHARACTERS_MAX} may be")
    if len(schema.references) > REFERENCES_MAX:
        raise invalid_schema(
            f"{len(schema.references)} references, {REFERENCES_MAX} may be: have one refer to more"
        )
    for what, extra in (("metadata", schema.metadata), ("rule set", schema.rule_set)):
        if len(extra) > EXTRAS_CHARACTERS_MAX:
            raise schema_too_large(f"the {what} has {len(extra)} characters")


def _stored(name: SubjectName, one: SubjectVersion, schema: Schema) -> StoredVersion:
    return StoredVersion(name.text, one.version, one.schema_id, schema, one.is_deleted)
