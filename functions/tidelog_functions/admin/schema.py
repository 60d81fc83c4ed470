"""Checks values against the part of JSON Schema that ``openapi.json`` uses.

All problems of a value are reported, each with its place and the allowed values.

Why no library: measured on Python 3.11 beside this function, whose imports take 440 ms of CPU.
``openapi-core`` takes 250 ms more and 25 MB. ``jsonschema-rs`` takes 2 to 16 ms and 15 MB, and
would save about 70 lines here: whole numbers such as 1.0, halves of surrogate pairs (which make
it raise) and the length of quoted values would still need code of ours, and its messages do not
name the known fields. ``tests/functions/admin/test_schema.py`` compares this checker with
``jsonschema-rs``, for every body in the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

# Keywords without a check.
ANNOTATIONS = frozenset({"description", "format", "default"})
CHECKED = frozenset(
    {
        "$ref",
        "type",
        "enum",
        "minimum",
        "maximum",
        "minLength",
        "items",
        "minItems",
        "maxItems",
        "properties",
        "required",
        "additionalProperties",
    }
)

_NAMES = {
    "object": "an object",
    "array": "a list",
    "string": "a string",
    "integer": "a whole number",
    "boolean": "true or false",
}


class Checker:
    """Checks values against schemas of one document."""

    def __init__(self, schemas: Mapping[str, Schema]) -> None:
        self._schemas = schemas

    def check(self, schema: Schema, value: Any, where: str, problems: list[str]) -> Any:
        """Return the value, whole numbers as ``int``; add its problems to ``problems``."""
        if "$ref" in schema:
            schema = self._schemas[schema["$ref"].rpartition("/")[2]]
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # In JSON Schema 1.0 is a whole number.
        kind: str = schema["type"]
        if not _is_a(kind, value):
            problems.append(f"{where} must be {_NAMES[kind]}, not {_shown(value)}")
            return value
        allowed = schema.get("enum")
        if allowed is not None and value not in allowed:
            problems.append(f"{where} must be one of {', '.join(allowed)}, not {_shown(value)}")
        match kind:
            case "object":
                return self._check_object(schema, value, where, problems)
            case "array":
                _check_size(schema, len(value), where, problems)
                items = schema["items"]
                return [
                    self.check(items, one, f"{where}[{index}]", problems)
                    for index, one in enumerate(value)
                ]
            case "string":
                _check_text(schema, value, where, problems)
            case "integer":
                _check_range(schema, value, where, problems)
        return value

    def _check_object(
        self, schema: Schema, value: dict[str, Any], where: str, problems: list[str]
    ) -> dict[str, Any]:
        properties: Mapping[str, Schema] = schema.get("properties", {})
        others: Schema | bool = schema.get("additionalProperties", False)
        problems += [
            f"{where} lacks {name!r}" for name in schema.get("required", ()) if name not in value
        ]
        checked = {}
        for name, one in value.items():
            found = properties.get(name, others)
            _check_text({}, name, f"{where}: a field's name", problems)
            if isinstance(found, bool):
                known = ", ".join(properties) or "none"
                problems.append(f"{where} has an unknown field {_shown(name)}; known are {known}")
                continue
            checked[name] = self.check(found, one, f"{where}.{name}", problems)
        return checked


def _is_a(kind: str, value: Any) -> bool:
    match kind:
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, bool)


def _check_size(schema: Schema, count: int, where: str, problems: list[str]) -> None:
    low, high = schema.get("minItems", 0), schema.get("maxItems")
    if count < low or (high is not None and count > high):
        allowed = f"at least {low}" if high is None else f"{low} to {high}"
        problems.append(f"{where} must have {allowed} items, not {count}")


def _check_range(schema: Schema, value: int, where: str, problems: list[str]) -> None:
    low, high = schema["minimum"], schema["maximum"]
    if not low <= value <= high:
        problems.append(f"{where} must be from {low} to {high}, not {_shown(value)}")


def _check_text(schema: Schema, value: str, where: str, problems: list[str]) -> None:
    if len(value) < schema.get("minLength", 0):
        problems.append(f"{where} must not be empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        problems.append(f"{where} has half of a surrogate pair, which is not a character")


def _shown(value: Any) -> str:
    """Return the value for a message: short and printable."""
    text = ascii(value) if not isinstance(value, int) or abs(value) < 10**20 else "a huge number"
    return text if len(text) <= 60 else f"{text[:57]}..."
