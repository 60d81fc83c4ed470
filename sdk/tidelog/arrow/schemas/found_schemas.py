"""Schemas as their sources hand them over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tidelog_core.schemas.model import Reference, SchemaType


@dataclass(frozen=True, slots=True)
class FoundSchema:
    """A schema, with the texts that it refers to, each after its own."""

    schema_type: SchemaType
    text: str
    known: tuple[tuple[Reference, str], ...] = ()


class SchemaSource(Protocol):
    """Where schemas are. Its functions block."""

    def latest(self, subject: str) -> FoundSchema:
        """Return the newest schema of a subject. Raises ``InvalidConfig``."""

    def by_id(self, schema_id: int) -> FoundSchema | None:
        """Return the schema with the id, ``None`` if there is none."""

    def by_guid(self, guid: str) -> FoundSchema | None:
        """Return the schema with the guid, ``None`` if there is none."""
