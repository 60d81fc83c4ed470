"""How the API shows schemas and versions: empty fields are left out."""

from __future__ import annotations

import json
from typing import Any

from tidelog_core.schema_registry.api.calls import Options
from tidelog_core.schema_registry.registry import SchemaRegistry, StoredVersion
from tidelog_core.schemas.model import Reference, Schema
from tidelog_core.schemas.subject_names import SubjectName

QUALIFIED = "qualified"


async def version_answer(
    registry: SchemaRegistry, version: StoredVersion, options: Options
) -> dict[str, Any]:
    """Return a version as the API shows it."""
    answered: dict[str, Any] = {
        "subject": version.subject,
        "version": version.version,
        "id": version.schema_id,
        **await schema_answer(registry, version.subject, version.schema, options),
    }
    if version.is_deleted:
        answered["deleted"] = True
    return answered


async def schema_answer(
    registry: SchemaRegistry, subject: str, schema: Schema, options: Options
) -> dict[str, Any]:
    """Return a schema as the API shows it, in the format that the client asks for."""
    name = SubjectName.parse(subject)
    wanted = options.text("format").strip()
    text = schema.text
    if wanted:
        text = await registry.parsing.formatted(name.text, schema, wanted)
    answered: dict[str, Any] = {"guid": schema.guid, "schemaType": schema.schema_type.value}
    if schema.references:
        # By the second name confluent-kafka for Python asks for it.
        wanted_form = options.text("referenceFormat") or options.text("reference_format")
        is_qualified = wanted_form == QUALIFIED
        answered["references"] = [
            _reference(one, name if is_qualified else None) for one in schema.references
        ]
    if schema.metadata:
        answered["metadata"] = json.loads(schema.metadata)
    if schema.rule_set:
        answered["ruleSet"] = json.loads(schema.rule_set)
    answered["schema"] = text
    return answered


def _reference(one: Reference, parent: SubjectName | None) -> dict[str, Any]:
    subject = one.subject if parent is None else parent.reference(one.subject).text
    return {"name": one.name, "subject": subject, "version": one.version}
