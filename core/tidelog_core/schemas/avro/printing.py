"""Avro schemas as text: as Avro Java prints them, and with members in one order.

Source: ``Schema.toString`` of Avro Java, and Confluent's ``AvroSchemaUtils.toNormalizedString``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from tidelog_core.schemas.avro.types import NO_DEFAULT, PRIMITIVES, AvroField, AvroType
from tidelog_core.schemas.model import compact_json

_LOGICAL_FIRST = ("logicalType", "precision", "scale")


def print_avro(schema: AvroType, references: Collection[AvroType] = ()) -> str:
    """Return the schema's text. Types of ``references`` are named only."""
    printed = {one.full_name for one in references}
    return compact_json(_value(schema, "", printed))


def _value(of: AvroType, namespace: str, printed: set[str]) -> Any:
    """Return the type as JSON; the first time that a named type occurs, with its declaration."""
    if of.kind == "union":
        return [_value(one, namespace, printed) for one in of.branches]
    if of.kind in PRIMITIVES:
        return {"type": of.kind, **of.properties} if of.properties else of.kind
    if of.items is not None:
        member = "items" if of.kind == "array" else "values"
        items = _value(of.items, namespace, printed)
        return {"type": of.kind, member: items, **of.properties}
    if of.full_name in printed:
        is_short = of.namespace == namespace and of.name not in PRIMITIVES
        return of.name if is_short else of.full_name
    printed.add(of.full_name)
    made: dict[str, Any] = {"type": of.kind, "name": of.name}
    if of.namespace != namespace:
        made["namespace"] = of.namespace
    if of.doc is not None:
        made["doc"] = of.doc
    if of.kind == "enum":
        made["symbols"] = list(of.symbols)
        if of.default is not None:
            made["default"] = of.default
    elif of.kind == "fixed":
        made["size"] = of.size
    else:
        made["fields"] = [_field(one, of.namespace, printed) for one in of.fields]
    made.update(of.properties)
    if of.aliases:
        made["aliases"] = [_short(one, of.namespace) for one in of.aliases]
    return made


def _field(of: AvroField, namespace: str, printed: set[str]) -> dict[str, Any]:
    made: dict[str, Any] = {"name": of.name, "type": _value(of.type, namespace, printed)}
    if of.doc is not None:
        made["doc"] = of.doc
    if of.default is not NO_DEFAULT:
        made["default"] = of.default
    if of.order != "ascending":
        made["order"] = of.order
    if of.aliases:
        made["aliases"] = list(of.aliases)
    made.update(of.properties)
    return made


def _short(alias: str, namespace: str) -> str:
    space, _, name = alias.rpartition(".")
    return name if space == namespace else alias


def normalize(schema: AvroType) -> AvroType:
    """Return the type with properties and aliases sorted; the parts of a record are its own."""
    return _normalized(schema, {})


def _normalized(of: AvroType, done: dict[int, AvroType]) -> AvroType:
    known = done.get(id(of))
    if known is not None:
        return known
    made = done[id(of)] = replace(
        of,
        doc=of.doc or None,
        aliases=tuple(sorted(of.aliases)),
        properties=_sorted(of.properties),
    )
    if of.items is not None:
        made.items = _normalized(of.items, done)
    made.branches = tuple(_normalized(one, done) for one in of.branches)
    made.fields = tuple(
        replace(
            one,
            type=_normalized(one.type, done),
            aliases=tuple(sorted(one.aliases)),
            properties=_sorted(one.properties),
        )
        for one in of.fields
    )
    return made


def _sorted(properties: dict[str, Any]) -> dict[str, Any]:
    """Return properties in order, a logical type's first; nested objects are sorted too."""
    first = [name for name in _LOGICAL_FIRST if name in properties and "logicalType" in properties]
    names = [*first, *sorted(properties.keys() - set(first))]
    return {name: _sorted_value(properties[name]) for name in names}


def _sorted_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted_value(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_sorted_value(one) for one in value]
    return value
