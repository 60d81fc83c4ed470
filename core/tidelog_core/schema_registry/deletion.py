"""Deletes versions: softly, so that only clients that ask for them find them, then permanently.

A permanent deletion removes a schema with its last version. Its id is given to no other schema.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from tidelog_core.metadata.records import check, delete, put
from tidelog_core.metadata.schema_records import (
    Referrer,
    SchemaContext,
    SchemaIdentity,
    SchemaJournal,
    SchemaSubject,
    SchemaText,
    SchemaUse,
    SubjectVersion,
)
from tidelog_core.metadata.store import ABSENT, Check, Write
from tidelog_core.metadata.update import retried
from tidelog_core.schema_registry.reading import LATEST
from tidelog_core.schema_registry.registry import (
    ATTEMPTS_MAX,
    PAUSE_SECONDS_MAX,
    SchemaRegistry,
)
from tidelog_core.schema_registry.scopes import SettingsInScope
from tidelog_core.schemas.model import Mode
from tidelog_core.schemas.refusals import (
    not_permitted,
    reference_exists,
    subject_not_found,
    subject_not_soft_deleted,
    subject_soft_deleted,
    version_not_found,
    version_not_soft_deleted,
    version_soft_deleted,
)
from tidelog_core.schemas.subject_names import SubjectName

T = TypeVar("T")


class SchemaDeletion:
    """Deletes from a registry. For the tasks of one event loop."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._read = registry.read
        self._committer = registry.committer

    async def delete_version(self, subject: str, version: int, *, is_permanent: bool) -> int:
        """Return the version that was deleted, ``LATEST`` for the newest.

        Durable on return. Raises ``RegistryRefusal``, and the store's errors.
        """
        name = SubjectName.parse(subject)

        async def attempt() -> int:
            begun = await self._committer.begin()
            settings = await self._writable(name)
            context = await self._read.context(name.context)
            found = await self._read.subject(name)
            one = _version_of(found, version)
            if is_permanent:
                if not one.is_deleted:
                    raise version_not_soft_deleted(name.text, one.version)
                await self._remove(begun, found, one, context, settings)
            else:
                if one.is_deleted:
                    raise version_soft_deleted(name.text, one.version)
                await self._require_unreferenced(found, one.version, but=None)
                await self._mark(begun, found, {one.version}, context, settings)
            return one.version

        async with self._registry.turn:
            return await _retried(attempt)

    async def delete_subject(self, subject: str, *, is_permanent: bool) -> list[int]:
        """Return the versions that were deleted. Durable on return.

        A permanent deletion removes one version after the other; if it ends early, those that are
        left are still deleted softly. Raises ``RegistryRefusal``, and the store's errors.
        """
        name = SubjectName.parse(subject)

        async def attempt() -> list[int]:
            begun = await self._committer.begin()
            settings = await self._writable(name)
            context = await self._read.context(name.context)
            found = await self._read.subject(name)
            if not found.versions:
                raise subject_not_found(name.text)
            if is_permanent:
                return await self._remove_all(name, found)
            versions = [one.version for one in found.live]
            if not versions:
                raise subject_soft_deleted(name.text)
            for version in versions:
                await self._require_unreferenced(found, version, but=name.text)
            await self._mark(begun, found, set(versions), context, settings)
            return versions

        if is_permanent:  # Each version has a turn of its own: there may be thousands.
            return await attempt()
        async with self._registry.turn:
            return await _retried(attempt)

    async def _writable(self, name: SubjectName) -> SettingsInScope:
        settings = await self._read.settings_of(name)
        if settings.mode in (Mode.READONLY, Mode.READONLY_OVERRIDE):
            raise not_permitted(
                f"Subject {name.text} in context {name.context_prefix} is in read-only mode"
            )
        return settings

    async def _mark(
        self,
        begun: SchemaJournal | None,
        subject: SchemaSubject,
        versions: set[int],
        context: SchemaContext,
        settings: SettingsInScope,
    ) -> None:
        """Delete versions softly; with the last one go the subject's own level and mode."""
        marked = tuple(
            replace(one, is_deleted=True) if one.version in versions else one
            for one in subject.versions
        )
        left = replace(subject, versions=marked)
        writes = [put(left, is_logged=False)]
        checks = [check(context), *_checks(settings, left, writes, is_last=not left.live)]
        await self._committer.commit(begun, writes, checks)

    async def _require_unreferenced(
        self, subject: SchemaSubject, version: int, *, but: str | None
    ) -> None:
        """Raise ``RegistryRefusal`` if a schema that is not deleted refers to the version.

        Those that only the subject ``but`` has do not count. A registration of such a schema
        writes the subject's item, so the commit of the deletion conflicts with it.
        """
        for one in subject.referrers:
            if one.version != version:
                continue
            context = SubjectName(one.context, "").context_prefix
            text = await self._read.text(one.context, one.schema_id)
            uses = [] if text is None else await self._registry.uses(one.schema_id, context)
            if any(use.subject != but for use in uses):
                raise reference_exists(subject.subject, version)

    async def _remove_all(self, name: SubjectName, subject: SchemaSubject) -> list[int]:
        if subject.live:
            raise subject_not_soft_deleted(name.text)
        versions = [one.version for one in subject.versions]
        own = await self._own_schemas(name, subject)
        for one in subject.referrers:
            if (one.context, one.schema_id) not in own:
                raise reference_exists(subject.subject, one.version)
        for version in reversed(versions):  # A newer version may refer to an older one.
            async with self._registry.turn:
                await _retried(partial(self._remove_one, name, version))
        return versions

    async def _remove_one(self, name: SubjectName, version: int) -> None:
        """Remove a version, unless that is done already."""
        begun = await self._committer.begin()
        settings = await self._writable(name)
        context = await self._read.context(name.context)
        found = await self._read.subject(name)
        left = [one for one in found.versions if one.version == version]
        if left:
            await self._remove(begun, found, left[0], context, settings)

    async def _own_schemas(self, name: SubjectName, subject: SchemaSubject) -> set[tuple[str, int]]:
        """Return the schemas that no other subject has, and that go with this one."""
        own = set()
        for schema_id in {one.schema_id for one in subject.versions}:
            uses = await self._registry.uses(schema_id, name.text, with_deleted=True)
            if all(use.subject == name.text for use in uses):
                own.add((name.context, schema_id))
        return own

    async def _remove(
        self,
        begun: SchemaJournal | None,
        subject: SchemaSubject,
        one: SubjectVersion,
        context: SchemaContext,
        settings: SettingsInScope,
    ) -> None:
        """Remove a version, and its schema if no other version has it, in one commit."""
        name = SubjectName.parse(subject.subject)
        if any(known.version == one.version for known in subject.referrers):
            raise reference_exists(subject.subject, one.version)
        text = await self._read.text(name.context, one.schema_id)
        if text is None:
            raise version_not_found(one.version)
        identity = await self._read.identity(name.context, text.schema.guid)
        left = replace(subject, versions=tuple(v for v in subject.versions if v != one))
        changed = {name.text: left}
        writes = [put(context, is_logged=False)]  # ``registration`` says why.
        if identity is not None:
            use = SchemaUse(name.text, one.version, one.schema_id)
            uses = tuple(known for known in identity.uses if known != use)
            writes.append(_identity_write(identity, uses))
            if all(known.schema_id != one.schema_id for known in uses):
                writes.append(delete(text, is_logged=False))
                await self._forget_referrer(name, text, changed)
        for record in changed.values():
            is_empty = not record.versions and not record.referrers
            writes.append((delete if is_empty else put)(record, is_logged=False))
        checks = _checks(settings, left, writes, is_last=not left.versions)
        await self._committer.commit(begun, writes, checks)

    async def _forget_referrer(
        self, name: SubjectName, text: SchemaText, changed: dict[str, SchemaSubject]
    ) -> None:
        """Remove the schema from the subjects that it refers to."""
        targets = [name.reference(one.subject) for one in text.references]
        subjects = await self._read.subjects_named(targets)
        for target, reference in zip(targets, text.references, strict=True):
            before = changed.get(target.text) or subjects[target.text]
            gone = Referrer(reference.version, name.context, text.schema_id)
            if gone in before.referrers:
                kept = tuple(one for one in before.referrers if one != gone)
                changed[target.text] = dataclasses.replace(before, referrers=kept)


async def _retried(attempt: Callable[[], Awaitable[T]]) -> T:
    return await retried(attempt, attempts_max=ATTEMPTS_MAX, pause_seconds_max=PAUSE_SECONDS_MAX)


def _checks(
    settings: SettingsInScope, left: SchemaSubject, writes: list[Write], *, is_last: bool
) -> list[Check]:
    """Return the checks of the settings; with the last version the subject's own are deleted.

    Source: ``deleteSubject`` and ``deleteSchemaVersion`` of Confluent's ``KafkaSchemaRegistry``.
    """
    own = settings.found[0]
    goes = is_last and own.scope == left.subject and own.version != ABSENT
    if goes:
        writes.append(delete(own, is_logged=False))
    return [check(known) for known in settings.found if not (goes and known is own)]


def _version_of(subject: SchemaSubject, version: int) -> SubjectVersion:
    """Return a version, deleted or not. Raises ``RegistryRefusal``."""
    if not subject.versions:
        raise subject_not_found(subject.subject)
    versions = subject.live[-1:] if version == LATEST else subject.versions
    for one in versions:
        if version in (LATEST, one.version):
            return one
    raise version_not_found(version)


def _identity_write(identity: SchemaIdentity, uses: tuple[SchemaUse, ...]) -> Write:
    if not uses:
        return delete(identity, is_logged=False)
    ids = {one.schema_id for one in uses}
    first = identity.schema_id if identity.schema_id in ids else min(ids)
    return put(replace(identity, schema_id=first, uses=uses), is_logged=False)
