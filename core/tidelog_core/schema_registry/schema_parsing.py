"""Parses and compares schemas in a thread, with the schemas they refer to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from tidelog_core.schema_registry.reading import RegistryReader
from tidelog_core.schemas.languages import parse, problems
from tidelog_core.schemas.model import (
    EXTRAS_CHARACTERS_MAX,
    REFERENCES_MAX,
    SCHEMA_CHARACTERS_MAX,
    Compatibility,
    Schema,
)
from tidelog_core.schemas.parsed_schema import InvalidSchema, ParsedSchema
from tidelog_core.schemas.refusals import invalid_schema, schema_too_large
from tidelog_core.schemas.subject_names import SubjectName

T = TypeVar("T")


class SchemaParsing:
    """The thread of a registry. For any task."""

    def __init__(self, reader: RegistryReader, executor: Executor | None) -> None:
        """``executor`` parses and compares; ``None``: the loop's own."""
        self._read = reader
        self._executor = executor

    async def canonical(
        self, name: SubjectName, schema: Schema, normalize: bool
    ) -> tuple[ParsedSchema, Schema]:
        """Return the schema parsed, and as it is stored. Raises ``RegistryRefusal``."""
        _require_bounded(schema)
        references = await self._read.with_versions(name, schema.references)
        known = await self._read.resolve(name, references)

        def understand() -> tuple[ParsedSchema, str]:
            parsed = parse(schema.schema_type, schema.text, known)
            parsed = parsed.normalized() if normalize else parsed
            return parsed, parsed.canonical

        parsed, text = await self._in_thread(understand)
        if normalize:
            references = tuple(sorted(set(references)))
        stored = Schema(schema.schema_type, text, references, schema.metadata, schema.rule_set)
        _require_bounded(stored)
        return parsed, stored

    async def problems_with(
        self,
        name: SubjectName,
        new: ParsedSchema,
        older: tuple[int, Schema],
        level: Compatibility,
    ) -> list[str]:
        """Return why a schema is not compatible with a version. Raises ``RegistryRefusal``."""
        version, schema = older
        known = await self._read.resolve(name, schema.references)

        def compare() -> list[str]:
            old = parse(schema.schema_type, schema.text, known)
            return problems(level, new, [(version, old)])

        return await self._in_thread(compare)

    async def formatted(self, subject: str, schema: Schema, format_name: str) -> str:
        """Return a stored schema's text in a format. Raises ``RegistryRefusal``."""
        name = SubjectName.parse(subject)  # A deleted schema may refer to another deleted one.
        known = await self._read.resolve(name, schema.references, with_deleted=True)

        def understand() -> str:
            return parse(schema.schema_type, schema.text, known).formatted(format_name)

        return await self._in_thread(understand)

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
        raise schema_too_large(
            f"{len(schema.text)} characters, allowed are {SCHEMA_CHARACTERS_MAX}"
        )
    if len(schema.references) > REFERENCES_MAX:
        raise invalid_schema(
            f"{len(schema.references)} references, allowed are {REFERENCES_MAX}: let one of them"
            " refer to others"
        )
    for what, extra in (("metadata", schema.metadata), ("rule set", schema.rule_set)):
        if len(extra) > EXTRAS_CHARACTERS_MAX:
            raise schema_too_large(
                f"the {what} has {len(extra)} characters, allowed are {EXTRAS_CHARACTERS_MAX}"
            )
