"""An Avro schema of the registry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tidelog_core.schemas.avro.compatibility import problems_reading
from tidelog_core.schemas.avro.parsing import parse_avro
from tidelog_core.schemas.avro.printing import normalize, print_avro
from tidelog_core.schemas.avro.types import AvroType
from tidelog_core.schemas.model import SchemaType

RESOLVED = "resolved"  # the format with the types of other schemas written out


@dataclass(frozen=True)
class AvroSchema:
    """A type, and the types of the schemas that it refers to."""

    type: AvroType
    references: Mapping[str, AvroType]  # by full name

    @classmethod
    def parse(cls, text: str, known: Iterable[str] = ()) -> AvroSchema:
        """Return the schema; ``known`` are those that it refers to. Raises ``InvalidSchema``."""
        return cls(*parse_avro(text, known))

    @property
    def schema_type(self) -> SchemaType:
        """Its language."""
        return SchemaType.AVRO

    @cached_property
    def canonical(self) -> str:
        """The text as Avro Java prints it: docs, aliases and properties stay."""
        return print_avro(self.type, tuple(self.references.values()))

    def normalized(self) -> AvroSchema:
        """Return the schema with its properties and aliases sorted."""
        return AvroSchema(normalize(self.type), self.references)

    def formatted(self, wanted: str) -> str:
        """Return the text, for ``resolved`` with the declarations of other schemas."""
        return print_avro(self.type) if wanted.lower() == RESOLVED else self.canonical

    def problems_reading(self, written: AvroSchema) -> list[str]:
        """Return why data of another schema cannot be read with this one."""
        return problems_reading(self.type, written.type)
