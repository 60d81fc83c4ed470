"""A JSON Schema of the registry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tidelog_core.schemas.avro.parsing import load_json
from tidelog_core.schemas.json_schema.comparison import compare
from tidelog_core.schemas.json_schema.nodes import Node, load_tree
from tidelog_core.schemas.model import SchemaType, compact_json
from tidelog_core.schemas.parsed_schema import InvalidSchema, Problem


@dataclass(frozen=True)
class JsonSchema:
    """A document, and the tree of its nodes."""

    document: Any
    root: Node

    @classmethod
    def parse(cls, text: str, known: Iterable[tuple[str, str]] = ()) -> JsonSchema:
        """Return the schema; ``known`` are names and texts that it refers to.

        Raises ``InvalidSchema``.
        """
        document = load_json(text)
        if not isinstance(document, dict | bool):
            raise InvalidSchema("a JSON Schema is an object, true or false")
        return cls(document, load_tree(document, [(name, load_json(one)) for name, one in known]))

    @property
    def schema_type(self) -> SchemaType:
        """Its language."""
        return SchemaType.JSON

    @property
    def canonical(self) -> str:
        """The text without spaces, its members in their order."""
        return compact_json(self.document)

    def normalized(self) -> JsonSchema:
        """Return the schema with members in the order of their names."""
        return JsonSchema(_sorted(self.document), self.root)

    def formatted(self, wanted: str) -> str:
        """Return the text: there are no other formats."""
        del wanted
        return self.canonical

    def problems_reading(self, written: JsonSchema) -> list[str]:
        """Return why data that fits another schema may not fit this one."""
        return [_text(one) for one in compare(written.root, self.root)]


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_sorted(one) for one in value]
    return value


# Confluent's texts by the end of a problem's kind: with the path, and the names of both schemas.
# Source: its ``Difference``.
_TEXTS = {
    ("_ADDED", "_REMOVED"): (
        "The keyword at path '{}' in the %s schema is not present in the %s schema"
    ),
    ("_INCREASED",): "The value at path '{}' in the %s schema is more than in the %s schema",
    ("_DECREASED",): "The value at path '{}' in the %s schema is less than in the %s schema",
    ("_NARROWED",): (
        "An array or combined type at path '{}' has fewer elements in the %s schema than the %s"
        " schema"
    ),
    ("_EXTENDED",): (
        "An array or combined type at path '{}' has more elements in the %s schema than the %s"
        " schema"
    ),
}
_CONTENT_MODEL_TEXT = "A property or item at path '{}' differs between the %s and the %s schema"
_OTHER_TEXT = "A type at path '{}' is different between the %s schema and the %s schema"


def _text(problem: Problem) -> str:
    """Return the problem's message, with its path and the names of the schemas."""
    if "CONTENT_MODEL" in problem.kind:
        template = _CONTENT_MODEL_TEXT
    else:
        found = (text for ends, text in _TEXTS.items() if problem.kind.endswith(ends))
        template = next(found, _OTHER_TEXT)
    return problem.message(template.format(problem.place))
