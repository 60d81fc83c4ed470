"""The types of Avro, as a schema's text declares them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "error", "enum", "fixed"})
NO_DEFAULT: Any = object()


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    doc: str | None = None
    default: Any = NO_DEFAULT
    order: str = "ascending"
    aliases: tuple[str, ...] = ()
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class AvroType:
    """A type. Records may have themselves in a field, so types are compared by identity."""

    kind: str  # a primitive, "array", "map", "union", "record", "error", "enum" or "fixed"
    name: str = ""  # without its namespace
    namespace: str = ""
    doc: str | None = None
    aliases: tuple[str, ...] = ()  # with their namespaces
    fields: tuple[AvroField, ...] = ()
    symbols: tuple[str, ...] = ()
    default: str | None = None  # of an enum
    size: int = 0  # of a fixed, in bytes
    items: AvroType | None = None  # of an array or a map
    branches: tuple[AvroType, ...] = ()  # of a union
    properties: dict[str, Any] = field(default_factory=dict)  # all that Avro does not know

    @property
    def full_name(self) -> str:
        """The name with its namespace."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name

    @property
    def is_record(self) -> bool:
        """Whether it has fields."""
        return self.kind in ("record", "error")

    @property
    def type_name(self) -> str:
        """Its kind as Avro Java's messages have it."""
        return "RECORD" if self.is_record else self.kind.upper()
