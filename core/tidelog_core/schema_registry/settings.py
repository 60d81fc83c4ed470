"""Changes the registry's settings: the compatibility level and the mode of a scope."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from tidelog_core.metadata.records import delete, put
from tidelog_core.metadata.schema_records import SchemaSettings
from tidelog_core.metadata.update import retried
from tidelog_core.schema_registry.registry import (
    ATTEMPTS_MAX,
    PAUSE_SECONDS_MAX,
    SchemaRegistry,
)
from tidelog_core.schema_registry.scopes import ALL_CONTEXTS, scope_of
from tidelog_core.schemas.model import DEFAULT_COMPATIBILITY, Compatibility, Mode
from tidelog_core.schemas.refusals import (
    invalid_subject,
    no_own_compatibility,
    no_own_mode,
    not_permitted,
    subject_not_found,
)
from tidelog_core.schemas.subject_names import SubjectName, is_valid_subject

Change = Callable[[SchemaSettings], SchemaSettings]


@dataclass(frozen=True, slots=True)
class RegistryConfig:
    """The settings that a client sees and sends, without the mode. ``None``: not given."""

    compatibility: Compatibility | None = None
    normalize: bool | None = None


class RegistrySettings:
    """The settings of a registry. For any task."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._read = registry.read

    async def config(self, subject: str, *, or_wider: bool) -> RegistryConfig:
        """Return the settings of a subject; with ``or_wider`` those that count for it.

        Raises ``RegistryRefusal`` if it has none of its own and ``or_wider`` is not given.
        """
        name = SubjectName.parse(subject)
        if or_wider:
            settings = await self._read.settings_of(name)
            known = [one.normalize for one in settings.found if one.normalize is not None]
            return RegistryConfig(settings.compatibility, known[0] if known else None)
        own = await self._read.settings(scope_of(name))
        if own.compatibility is None and own.normalize is None:
            if not _is_global(name):
                raise no_own_compatibility(name.text)
            return RegistryConfig(DEFAULT_COMPATIBILITY)
        return RegistryConfig(own.compatibility or DEFAULT_COMPATIBILITY, own.normalize)

    async def set_config(self, subject: str, given: RegistryConfig) -> None:
        """Set what is given. Durable on return. Raises ``RegistryRefusal`` if all is read-only."""
        await self._require_writable(subject)

        def changed(before: SchemaSettings) -> SchemaSettings:
            return dataclasses.replace(
                before,
                compatibility=given.compatibility or before.compatibility,
                normalize=before.normalize if given.normalize is None else given.normalize,
            )

        await self._change(subject, changed)

    async def delete_config(self, subject: str) -> RegistryConfig:
        """Return the settings that the scope had. Raises ``RegistryRefusal`` if it had none."""
        name = SubjectName.parse(subject)
        before = await self._read.settings(scope_of(name))
        if before.compatibility is None and before.normalize is None and not _is_global(name):
            raise subject_not_found(name.text)
        await self._require_writable(subject)
        await self._change(
            subject, lambda one: dataclasses.replace(one, compatibility=None, normalize=None)
        )
        return RegistryConfig(before.compatibility or DEFAULT_COMPATIBILITY, before.normalize)

    async def mode(self, subject: str, *, or_wider: bool) -> Mode:
        """Return the mode of a subject; with ``or_wider`` the one that counts for it."""
        name = SubjectName.parse(subject)
        if or_wider:
            return (await self._read.settings_of(name)).mode
        own = (await self._read.settings(scope_of(name))).mode
        if own is None and not _is_global(name):
            raise no_own_mode(name.text)
        return own or Mode.READWRITE

    async def set_mode(self, subject: str, mode: Mode, *, force: bool) -> None:
        """Set the mode. Durable on return.

        IMPORT needs that there are no schemas yet, or ``force``. Raises ``RegistryRefusal``.
        """
        name = SubjectName.parse(subject)
        current = (await self._read.settings_of(name)).mode
        if mode is Mode.IMPORT and current is not Mode.IMPORT and not force:
            found = await self._read.subjects("" if _is_global(name) else name.text)
            if any(one.live and _is_in(name, one.subject) for one in found):
                raise not_permitted("Cannot import since found existing subjects")
        await self._change(subject, lambda one: dataclasses.replace(one, mode=mode))

    async def delete_mode(self, subject: str) -> Mode:
        """Return the mode that the scope had. Raises ``RegistryRefusal`` if it had none."""
        name = SubjectName.parse(subject)
        own = (await self._read.settings(scope_of(name))).mode
        if own is None:
            raise subject_not_found(name.text)
        await self._change(subject, lambda one: dataclasses.replace(one, mode=None))
        return own

    async def _require_writable(self, subject: str) -> None:
        mode = (await self._read.settings_of(SubjectName.parse(subject))).mode
        if mode in (Mode.READONLY, Mode.READONLY_OVERRIDE):
            raise not_permitted(f"Subject {subject} is in read-only mode")

    async def _change(self, subject: str, change: Change) -> None:
        if not is_valid_subject(subject, for_settings=True):
            raise invalid_subject(subject)
        scope = scope_of(SubjectName.parse(subject))

        async def attempt() -> None:
            begun = await self._registry.changes.begin()
            before = await self._read.settings(scope)
            after = change(before)
            if after == before:
                return
            is_empty = (after.compatibility, after.mode, after.normalize) == (None, None, None)
            write = (delete if is_empty else put)(after, is_logged=False)
            await self._registry.changes.commit(begun, [write])

        async with self._registry.turn:
            await retried(attempt, attempts_max=ATTEMPTS_MAX, pause_seconds_max=PAUSE_SECONDS_MAX)


def _is_global(name: SubjectName) -> bool:
    """Whether the scope always has settings: its defaults are those of everything."""
    return name.names_default_context or name.text == ALL_CONTEXTS


def _is_in(name: SubjectName, subject: str) -> bool:
    """Whether a subject is the named one, or in the named context."""
    found = SubjectName.parse(subject)
    if name.text == ALL_CONTEXTS:
        return True
    return found == name if name.subject else found.context == name.context
