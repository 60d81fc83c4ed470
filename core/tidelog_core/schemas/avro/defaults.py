"""Whether a JSON value is a valid default of an Avro type."""

from __future__ import annotations

from typing import Any

from tidelog_core.schemas.avro.types import NO_DEFAULT, AvroType
from tidelog_core.schemas.parsed_schema import StepBudget

_INTS = {"int": 2**31, "long": 2**63}


def is_default_of(schema: AvroType, value: Any, budget: StepBudget) -> bool:
    """Return whether the value is of the type. A union's may be of any branch, as Avro 1.12 has it.

    A record's field without a value has its own default, so a few records that have each other
    twice would take for ever. Raises ``TooComplex``. Source: ``Schema.isValidDefault`` of Avro
    Java.
    """
    budget.take()
    kind = schema.kind
    if kind in _INTS:
        return type(value) is int and -_INTS[kind] <= value < _INTS[kind]
    if kind in ("float", "double"):
        return type(value) in (int, float)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "null":
        return value is None
    if kind in ("string", "bytes", "enum", "fixed"):
        return isinstance(value, str)
    return _is_compound_default(schema, value, budget)


def _is_compound_default(of: AvroType, value: Any, budget: StepBudget) -> bool:
    if of.kind == "array":
        assert of.items is not None
        return isinstance(value, list) and all(
            is_default_of(of.items, one, budget) for one in value
        )
    if of.kind == "map":
        assert of.items is not None
        return isinstance(value, dict) and all(
            is_default_of(of.items, one, budget) for one in value.values()
        )
    if of.kind == "union":
        return any(is_default_of(one, value, budget) for one in of.branches)
    if not isinstance(value, dict):
        return False
    for field in of.fields:
        found = value.get(field.name, field.default)
        if found is NO_DEFAULT or not is_default_of(field.type, found, budget):
            return False
    return True
