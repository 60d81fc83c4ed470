"""The names that subjects of a schema may have: of its record, its messages, or its title."""

from __future__ import annotations

import json

from tidelog_core.schemas.avro.parsing import parse_avro
from tidelog_core.schemas.languages import parse
from tidelog_core.schemas.model import SchemaType
from tidelog_core.schemas.parsed_schema import InvalidSchema

from tidelog_node.inspection.schema_messages import SchemaSource, TooManyNames

# Of all messages of one file. The node keeps them, and reads them on its event loop.
CHARACTERS_MAX = 1_000_000


def names_in(source: SchemaSource) -> list[str]:
    """Return the record names that subjects may have. Raises ``TooManyNames``."""
    schema_type = SchemaType(source.schema_type)
    try:
        if schema_type is SchemaType.AVRO:
            of, _ = parse_avro(source.text, [other for _, other in source.known])
            return [of.full_name] if of.full_name else []
        if schema_type is SchemaType.JSON:
            document = json.loads(source.text)
            title = document.get("title") if isinstance(document, dict) else None
            return [title] if isinstance(title, str) else []
        found = parse(schema_type, source.text, source.known)  # Refused without its library.
        from tidelog_core.schemas.protobuf.names import messages
        from tidelog_core.schemas.protobuf.schema import ProtobufSchema

        assert isinstance(found, ProtobufSchema)
        names, character_count = [], 0
        for _, name in messages(found.file):
            names.append(name)
            character_count += len(name)
            if character_count > CHARACTERS_MAX:
                raise TooManyNames.of(source.schema_id, CHARACTERS_MAX)
        return names
    except (InvalidSchema, ValueError, RecursionError):
        return []
