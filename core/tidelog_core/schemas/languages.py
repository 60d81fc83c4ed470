"""Parses schemas of every language, and compares them.

Every function may take long, and recurses: for a thread, not for an event loop.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from tidelog_core.schemas.avro.schema import AvroSchema
from tidelog_core.schemas.json_schema.schema import JsonSchema
from tidelog_core.schemas.model import Compatibility, Reference, SchemaType
from tidelog_core.schemas.parsed_schema import NEW, OLD, InvalidSchema, ParsedSchema

SHOWN_CHARACTERS_MAX = 10_240  # of an older schema, in a message
OTHER_TYPE = "Incompatible because of different schema type"

Known = Sequence[tuple[Reference, str]]  # references, and the texts of their schemas


def supported_types() -> list[SchemaType]:
    """Return the languages that schemas may have here."""
    types = [SchemaType.JSON, SchemaType.AVRO]
    try:
        has_protobuf = importlib.util.find_spec("google.protobuf") is not None
    except ModuleNotFoundError:
        has_protobuf = False
    return [SchemaType.JSON, SchemaType.PROTOBUF, SchemaType.AVRO] if has_protobuf else types


def parse(schema_type: SchemaType, text: str, known: Known) -> ParsedSchema:
    """Return the schema. Raises ``InvalidSchema``.

    ``known`` has all schemas that it refers to, through others too, each after its own references.
    """
    if schema_type not in supported_types():
        raise InvalidSchema(f"{schema_type} needs a library: pip install 'tidelog[node]'")
    try:
        if schema_type is SchemaType.JSON:
            return JsonSchema.parse(text, [(reference.name, one) for reference, one in known])
        if schema_type is SchemaType.PROTOBUF:
            # Only now: it takes its time, and needs a library that a node may lack.
            from tidelog_core.schemas.protobuf.schema import ProtobufSchema

            return ProtobufSchema.parse(text, known)
        return AvroSchema.parse(text, [one for _, one in known])
    except RecursionError:
        raise InvalidSchema("it nests too deeply") from None


def problems(
    level: Compatibility, new: ParsedSchema, older: Sequence[tuple[int, ParsedSchema]]
) -> list[str]:
    """Return why the level does not allow the new schema; empty if it does.

    ``older`` has versions and their schemas, the oldest first. Raises ``InvalidSchema`` if they
    take too long to compare. Source: Confluent's ``SchemaValidatorBuilder``.
    """
    if level is Compatibility.NONE:
        return []
    for version, old in reversed(older if level.is_transitive else older[-1:]):
        try:
            found = _problems_with(level, new, old, version)
        except RecursionError:
            raise InvalidSchema("it nests too deeply to be compared") from None
        if found:
            return [*found, f"{{validateFields: 'false', compatibility: '{level}'}}"]
    return []


def _problems_with(
    level: Compatibility, new: ParsedSchema, old: ParsedSchema, version: int
) -> list[str]:
    if new.schema_type is not old.schema_type:
        return [OTHER_TYPE]
    found: list[str] = []
    if level.old_reads_new:
        found += [_named(one, OLD, NEW) for one in _reading(old, new)]
    if level.new_reads_old:
        found += [_named(one, NEW, OLD) for one in _reading(new, old)]
    if not found:
        return []
    shown = old.canonical
    if len(shown) > SHOWN_CHARACTERS_MAX:
        shown = f"<truncated> '{shown[:SHOWN_CHARACTERS_MAX]}...'"
    else:
        shown = f"'{shown}'"
    return [*found, f"{{oldSchemaVersion: {version}}}", f"{{oldSchema: {shown}}}"]


def _reading(reader: Any, writer: Any) -> list[str]:
    """Return the problems of two schemas of one language."""
    found: list[str] = reader.problems_reading(writer)
    return found


def _named(problem: str, reader: str, writer: str) -> str:
    """Return the text with the names of both sides in it; it may have other percent signs."""
    return problem.replace("%s", reader, 1).replace("%s", writer, 1)
