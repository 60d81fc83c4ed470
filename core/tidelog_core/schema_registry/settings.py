"""Changes the registry's settings: the compatibility level and the mode of a scope."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tidelog_core.metadata.records import delete, put
from tidelog_core.metadata.schema_records import EVERYTHING, SchemaSettings
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
    compatibility_group: str | None = None


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
            return RegistryConfig(
                settings.compatibility,
                known[0] if known else None,
                settings.compatibility_group or None,
            )
        own = _config_of(await self._read.settings(scope_of(name)))
        if own == RegistryConfig() and not _is_global(name):
            raise no_own_compatibility(name.text)
        return dataclasses.replace(own, compatibility=own.compatibility or DEFAULT_COMPATIBILITY)

    async def set_config(
        self, subject: str, config: RegistryConfig, *, cleared: Collection[str] = ()
    ) -> RegistryConfig:
        """Set the given fields, and unset those in ``cleared``; return all that are set now.

        Durable on return. Raises ``RegistryRefusal`` if all is read-only.
        """
        await self._require_writable(subject)
        after = SchemaSettings(scope="")

        def changed(before: SchemaSettings) -> SchemaSettings:
            nonlocal after
            kept = _config_of(before)
            kept = dataclasses.replace(kept, **dict.fromkeys(cleared))
            group = config.compatibility_group or kept.compatibility_group or ""
            after = dataclasses.replace(
                before,
                compatibility=config.compatibility or kept.compatibility,
                normalize=kept.normalize if config.normalize is None else config.normalize,
                compatibility_group=group,
            )
            return after

        await self._change(subject, changed)
        return _config_of(after)

    async def delete_config(self, subject: str) -> RegistryConfig:
        """Return the settings that the scope had. Raises ``RegistryRefusal`` if it had none."""
        name = SubjectName.parse(subject)
        before = _config_of(await self._read.settings(scope_of(name)))
        if before == RegistryConfig() and not _is_global(name):
            raise subject_not_found(name.text)
        await self._require_writable(subject)

        def changed(one: SchemaSettings) -> SchemaSettings:
            return SchemaSettings(scope=one.scope, version=one.version, mode=one.mode)

        await self._change(subject, changed)
        level = before.compatibility or DEFAULT_COMPATIBILITY
        return dataclasses.replace(before, compatibility=level)

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

        IMPORT needs that there are no schemas yet, or ``force``. Raises ``RegistryRefusal``, and
        ``CorruptItem`` if a malformed subject may have some.
        """
        name = SubjectName.parse(subject)
        current = (await self._read.settings_of(name)).mode
        if mode is Mode.IMPORT and current is not Mode.IMPORT and not force:
            found, malformed = await self._read.subjects("" if _is_global(name) else name.text)
            if any(one.live and _is_in(name, one.subject) for one in found):
                raise not_permitted("Cannot import since found existing subjects")
            for error in malformed:
                if _is_in(name, error.key[1]):  # It may have versions.
                    raise error
        await self._change(subject, lambda one: dataclasses.replace(one, mode=mode))

    async def delete_mode(self, subject: str, *, is_recursive: bool = False) -> Mode | None:
        """Return the mode that the scope had; ``None``: it had none.

        ``is_recursive``: those of all subjects of the context too. To repeat it is safe. Raises
        ``RegistryRefusal`` if it had none and is neither everything nor ``is_recursive``.
        """
        name = SubjectName.parse(subject)
        own = (await self._read.settings(scope_of(name))).mode
        if own is None and not is_recursive and not _is_global(name):
            raise subject_not_found(name.text)
        scopes = [name.text]
        if is_recursive and not name.subject:
            known = await self._read.settings_with_mode()
            scopes += [one for one in known if one != EVERYTHING and _is_in(name, one)]
        for scope in scopes:
            await self._change(scope, lambda one: dataclasses.replace(one, mode=None))
        return Mode.READWRITE if own is None and _is_global(name) else own

    async def _require_writable(self, subject: str) -> None:
        mode = (await self._read.settings_of(SubjectName.parse(subject))).mode
        if mode in (Mode.READONLY, Mode.READONLY_OVERRIDE):
            raise not_permitted(f"Subject {subject} is in read-only mode")

    async def _change(self, subject: str, change: Change) -> None:
        if not is_valid_subject(subject, for_settings=True):
            raise invalid_subject(subject)
        scope = scope_of(SubjectName.parse(subject))

        async def attempt() -> None:
            begun = await self._registry.committer.begin()
            before = await self._read.settings(scope)
            after = change(before)
            if after == before:
                return
            is_empty = after == SchemaSettings(scope=after.scope)
            write = (delete if is_empty else put)(after, is_logged=False)
            await self._registry.committer.commit(begun, [write])

        async with self._registry.turn:
            await retried(attempt, attempts_max=ATTEMPTS_MAX, pause_seconds_max=PAUSE_SECONDS_MAX)


def _config_of(own: SchemaSettings) -> RegistryConfig:
    group = own.compatibility_group or None
    return RegistryConfig(own.compatibility, own.normalize, group)


def _is_global(name: SubjectName) -> bool:
    """Whether the scope always has settings: its defaults are those of everything."""
    return name.names_default_context or name.text == ALL_CONTEXTS


def _is_in(name: SubjectName, subject: str) -> bool:
    """Whether a subject is the named one, or in the named context."""
    found = SubjectName.parse(subject)
    if name.text == ALL_CONTEXTS:
        return True
    return found == name if name.subject else found.context == name.context
