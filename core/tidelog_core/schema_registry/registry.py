"""A schema registry in the metadata store: any process may serve it, and write.

There is no primary, and nothing is kept between calls. So every process has what any other has
written, and one that ends in the middle of a call leaves all of the call's changes or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from tidelog_core.batched import batched
from tidelog_core.errors import CommitTooLarge, ItemTooLarge
from tidelog_core.metadata.records import check
from tidelog_core.metadata.schema_records import (
    SchemaIdentity,
    SchemaJournal,
    SchemaUse,
    SubjectVersion,
)
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.metadata.update import retried
from tidelog_core.schema_registry.committer import Committer, StoreCommitter
from tidelog_core.schema_registry.compatibility import SubjectCompatibility
from tidelog_core.schema_registry.reading import LATEST, TEXTS_AT_ONCE, RegistryReader
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
from tidelog_core.schema_registry.schema_parsing import SchemaParsing
from tidelog_core.schema_registry.scopes import SettingsInScope
from tidelog_core.schemas.metadata import completed, has_properties
from tidelog_core.schemas.model import Mode, Schema, SchemaType
from tidelog_core.schemas.parsed_schema import ParsedSchema
from tidelog_core.schemas.refusals import (
    invalid_subject,
    schema_not_found,
    schema_too_large,
    subject_not_found,
    version_not_found,
)
from tidelog_core.schemas.subject_names import SubjectName, is_valid_subject

RESOLVED = "resolved"  # Avro's format with the types of other schemas written out
ATTEMPTS_MAX = 20  # each conflict means that another writer succeeded
PAUSE_SECONDS_MAX = 0.05


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
        committer: Committer | None = None,
    ) -> None:
        """``executor`` parses and compares; ``None``: the loop's own.

        Without ``committer`` commits go to the metadata store, with no copy in a bucket.
        """
        self.store = store
        self.committer: Committer = committer or StoreCommitter(store)
        self.read = RegistryReader(store)
        self.parsing = SchemaParsing(self.read, executor)
        self.compatibility = SubjectCompatibility(self.read, self.parsing)
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
            begun = await self.committer.begin()
            settings = await self.read.settings_of(name)
            parsed, reading = await self._read_for(name, wanted, settings, normalize)
            decision = registered(reading)
            lost_text = mended(reading)
            if decision is None and wanted.version == NEXT_VERSION:
                live = reading.subject.live
                found = await self._written_out(name, live, reading.schema)
                if found is not None and wanted.schema_id in (ANY_ID, found.schema_id):
                    return found
            if decision is None:
                # Only now: in every mode producers may send a schema that is registered.
                require_mode(name, settings.mode, wanted.schema_id)
                if settings.mode is not Mode.IMPORT and not force:
                    new, older = (parsed, reading.schema), reading.subject.live
                    await self.compatibility.require_compatible(name, new, older, settings)
                is_new = True  # Also if the answer to this commit is lost, and the next finds it.
                decision = decide(reading)
                await self._commit(begun, reading, settings, decision)
            elif lost_text is not None:
                await self._commit(begun, reading, settings, lost_text)
            return StoredVersion(
                name.text, decision.version, decision.schema_id, reading.schema, is_new=is_new
            )

        async with self.turn:
            try:
                return await retried(
                    attempt, attempts_max=ATTEMPTS_MAX, pause_seconds_max=PAUSE_SECONDS_MAX
                )
            except (ItemTooLarge, CommitTooLarge) as error:
                raise schema_too_large(str(error)) from None

    async def _read_for(
        self, name: SubjectName, wanted: Wanted, settings: SettingsInScope, normalize: bool
    ) -> tuple[ParsedSchema, Reading]:
        """Return the reading to decide a registration from: as registered, else completed."""
        known = normalize or settings.normalize
        is_complete = settings.mode is Mode.IMPORT
        if wanted.schema.text.strip() or is_complete:
            parsed, schema = await self.parsing.canonical(name, wanted.schema, known)
            reading = await self._reading(name, schema, wanted, settings.mode)
            if is_complete or registered(reading) is not None:
                return parsed, reading
            whole = completed(schema, await self.read.schema_of(name, LATEST))
            if whole == schema:
                return parsed, reading
        else:
            whole = completed(wanted.schema, await self.read.schema_of(name, LATEST))
        parsed, schema = await self.parsing.canonical(name, whole, known)
        return parsed, await self._reading(name, schema, wanted, settings.mode)

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
        await self.committer.commit(begun, decision.writes, checks)

    async def _reading(
        self, name: SubjectName, schema: Schema, wanted: Wanted, mode: Mode
    ) -> Reading:
        context = await self.read.context(name.context)  # First: it changes when items are removed.
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
        known = normalize or settings.normalize
        _, canonical = await self.parsing.canonical(name, schema, known)
        found = await self._found_in(name, versions, canonical)
        if found is None:
            whole = completed(canonical, await self.read.schema_of(name, LATEST))
            if whole != canonical:
                found = await self._found_in(name, versions, whole)
            if found is None:
                found = await self._written_out(name, versions, whole)
        return found, True

    async def _written_out(
        self, name: SubjectName, versions: Sequence[SubjectVersion], schema: Schema
    ) -> StoredVersion | None:
        """Return a version that refers to types which the schema has written out.

        Serializers of Avro send a class's schema so, also one that was registered with references.
        Only the newest versions are looked at.
        """
        if schema.schema_type is not SchemaType.AVRO or schema.references:
            return None
        some = versions[-TEXTS_AT_ONCE:]
        texts = await self.read.texts(name.context, {one.schema_id for one in some})
        for one in reversed(some):
            text = texts.get(one.schema_id)
            if text is None or not text.references:
                continue
            if (text.metadata, text.rule_set) != (schema.metadata, schema.rule_set):
                continue
            if await self.parsing.formatted(name.text, text.schema, RESOLVED) == schema.text:
                return _stored(name, one, text.schema)
        return None

    async def _found_in(
        self, name: SubjectName, versions: Sequence[SubjectVersion], schema: Schema
    ) -> StoredVersion | None:
        """Return the newest of the versions that has the schema, as it is stored."""
        identity = await self.read.identity(name.context, schema.guid)
        uses = () if identity is None else identity.uses
        for one in reversed(versions):
            if SchemaUse(name.text, one.version, one.schema_id) in uses:
                return _stored(name, one, schema)
        return None

    async def version(
        self, subject: str, version: int, *, with_deleted: bool = False
    ) -> StoredVersion:
        """Return a version, ``LATEST`` for the newest. Raises ``RegistryRefusal``."""
        asked = SubjectName.parse(subject)
        has_subject = False
        for name in await self._names(asked):
            found = await self.read.subject(name)
            # The latest is never a deleted one, also if the client asks for those.
            versions = found.versions if with_deleted and version != LATEST else found.live
            has_subject = has_subject or bool(found.versions if with_deleted else found.live)
            for one in reversed(versions):
                if version in (LATEST, one.version):
                    text = await self.read.text(name.context, one.schema_id)
                    if text is None:  # Another process has removed it, or it is lost.
                        # A schema of that name in another context is a different schema.
                        raise version_not_found(version)
                    return _stored(name, one, text.schema)
        raise version_not_found(version) if has_subject else subject_not_found(asked.text)

    async def latest_with(
        self, subject: str, properties: Mapping[str, str], *, with_deleted: bool = False
    ) -> StoredVersion:
        """Return the newest version whose metadata has properties. Raises ``RegistryRefusal``."""
        name = SubjectName.parse(subject)
        found = await self.read.subject(name)
        versions = found.versions if with_deleted else found.live
        if not versions:
            raise subject_not_found(name.text)
        newest_first = list(reversed(versions))
        for some in batched(newest_first, TEXTS_AT_ONCE):
            texts = await self.read.texts(name.context, {one.schema_id for one in some})
            for one in some:
                text = texts.get(one.schema_id)
                if text is not None and has_properties(text.schema, properties):
                    return _stored(name, one, text.schema)
        raise schema_not_found()

    async def schema(self, schema_id: int, subject: str = "") -> Schema:
        """Return the schema with an id, in the context of a subject. Raises ``RegistryRefusal``."""
        name = SubjectName.parse(subject)
        text = await self.read.text(name.context, schema_id)
        if text is None and name.is_in_default_context and name.subject:
            # If the subject itself has the id, its text is lost. A schema with that id in another
            # context is a different schema.
            for one in await self._names(name):
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


def _stored(name: SubjectName, one: SubjectVersion, schema: Schema) -> StoredVersion:
    return StoredVersion(name.text, one.version, one.schema_id, schema, one.is_deleted)
