"""Metadata of schemas: as a client gives it, and as a version inherits it.

Source: ``getLatestWithMetadata``, ``maybePopulateFromPrevious`` and the compatibility groups of
Confluent's registry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from tidelog_core.schemas.model import Schema


def properties_of(metadata: str) -> Mapping[str, str] | None:
    """Return the properties in metadata, ``None`` if there are none."""
    if not metadata:
        return None
    found = json.loads(metadata).get("properties")
    return found if isinstance(found, dict) else None


def has_properties(schema: Schema, wanted: Mapping[str, str]) -> bool:
    """Return whether the schema's metadata has properties, and all of these are among them."""
    found = properties_of(schema.metadata)
    return found is not None and wanted.items() <= _texts(found).items()


def group_of(schema: Schema, name: str) -> str | None:
    """Return the compatibility group of a schema: the property of that name."""
    return _texts(properties_of(schema.metadata) or {}).get(name)


def _texts(properties: Mapping[str, object]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if isinstance(value, str)}


def completed(schema: Schema, latest: Schema | None) -> Schema:
    """Return the schema with the metadata that its client left out, from the latest version.

    So a client that knows nothing of metadata and rules does not take them away, and one that
    changes only those need not send the text.
    """
    if latest is None:
        return schema
    if not schema.text.strip():
        schema = replace(
            schema,
            schema_type=latest.schema_type,
            text=latest.text,
            references=latest.references,
        )
    return replace(
        schema,
        metadata=schema.metadata or latest.metadata,
        rule_set=schema.rule_set or latest.rule_set,
    )
