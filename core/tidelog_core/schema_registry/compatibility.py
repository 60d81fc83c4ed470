"""Compares a schema with older versions of its subject, at the level that counts there."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog_core.batched import batched
from tidelog_core.metadata.schema_records import SubjectVersion
from tidelog_core.schema_registry.reading import LATEST, TEXTS_AT_ONCE, RegistryReader
from tidelog_core.schema_registry.schema_parsing import SchemaParsing
from tidelog_core.schema_registry.scopes import SettingsInScope
from tidelog_core.schemas.metadata import group_of
from tidelog_core.schemas.model import Compatibility, Schema
from tidelog_core.schemas.parsed_schema import ParsedSchema
from tidelog_core.schemas.refusals import incompatible, version_not_found
from tidelog_core.schemas.subject_names import SubjectName


class SubjectCompatibility:
    """Compares the schemas of a registry. For any task."""

    def __init__(self, reader: RegistryReader, parsing: SchemaParsing) -> None:
        self._read = reader
        self._parsing = parsing

    async def problems(
        self, subject: str, schema: Schema, version: int | None = None, *, normalize: bool = False
    ) -> list[str]:
        """Return why the schema is not compatible with a version, or with those that count.

        Raises ``RegistryRefusal``.
        """
        name = SubjectName.parse(subject)
        found = await self._read.subject(name)
        older = found.live
        if version is not None:
            older = older[-1:] if version == LATEST else older
            older = tuple(one for one in older if version in (LATEST, one.version))
            if not older and version != LATEST:
                raise version_not_found(version)
        settings = await self._read.settings_of(name)
        new = await self._parsing.canonical(name, schema, normalize or settings.normalize)
        return await self._problems(name, new, older, settings)

    async def require_compatible(
        self,
        name: SubjectName,
        new: tuple[ParsedSchema, Schema],
        older: Sequence[SubjectVersion],
        settings: SettingsInScope,
    ) -> None:
        """Raise ``RegistryRefusal`` if the schema is not compatible with those that count."""
        found = await self._problems(name, new, older, settings)
        if found:
            raise incompatible(name.text, found)

    async def _problems(
        self,
        name: SubjectName,
        new: tuple[ParsedSchema, Schema],
        older: Sequence[SubjectVersion],
        settings: SettingsInScope,
    ) -> list[str]:
        level, group = settings.compatibility, settings.compatibility_group
        if level is Compatibility.NONE or not older:
            return []
        parsed, schema = new
        counted = list(reversed(older if level.is_transitive or group else older[-1:]))
        # A few at a time are in memory, and a caller who has gone ends it between two.
        for some in batched(counted, TEXTS_AT_ONCE):
            texts = await self._read.texts(name.context, {one.schema_id for one in some})
            for one in some:
                text = texts.get(one.schema_id)
                if text is None:
                    continue  # Another process has removed it, or it is lost.
                if group and group_of(text.schema, group) != group_of(schema, group):
                    continue
                found = await self._parsing.problems_with(
                    name, parsed, (one.version, text.schema), level
                )
                if found or not level.is_transitive:
                    return found
        return []
