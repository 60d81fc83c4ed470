"""A Protobuf schema of the registry: a .proto file, or a descriptor in base64."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from google.protobuf import descriptor_pb2 as pb
from google.protobuf.message import DecodeError

from tidelog_core.schemas.model import Reference, SchemaType
from tidelog_core.schemas.parsed_schema import InvalidSchema, Problem
from tidelog_core.schemas.protobuf.comparison import Side, compare
from tidelog_core.schemas.protobuf.names import TypeNames, require_known, resolved
from tidelog_core.schemas.protobuf.parsing import parse_proto
from tidelog_core.schemas.protobuf.printing import print_proto

SERIALIZED = "serialized"  # the format of a descriptor in base64


@dataclass(frozen=True)
class ProtobufSchema:
    """A file, and the types that it may name."""

    file: Any  # FileDescriptorProto
    side: Side

    @classmethod
    def parse(cls, text: str, known: Iterable[tuple[Reference, str]] = ()) -> ProtobufSchema:
        """Return the schema; ``known`` are those that it refers to. Raises ``InvalidSchema``."""
        references = list(known)
        imported = {one.name: _file(other) for one, other in references}
        file = _file(text)
        names = TypeNames(file, imported)
        require_known(file, names, imported)
        versions = {one.name: (one.subject, one.version) for one, _ in references}
        return cls(file, Side(file, names, versions))

    @property
    def schema_type(self) -> SchemaType:
        """Its language."""
        return SchemaType.PROTOBUF

    @cached_property
    def canonical(self) -> str:
        """The text of the file, without comments."""
        return print_proto(self.file)

    def normalized(self) -> ProtobufSchema:
        """Return the schema with the full names of types, and imports and fields in order."""
        made = resolved(self.file, self.side.names)
        if not made.public_dependency and not made.weak_dependency:
            made.dependency.sort()
        for message in made.message_type:
            _sort_fields(message)
        return ProtobufSchema(made, self.side)

    def formatted(self, wanted: str) -> str:
        """Return the text, for ``serialized`` the descriptor in base64."""
        if wanted.lower() != SERIALIZED:
            return self.canonical
        made = resolved(self.file, self.side.names)
        return base64.b64encode(made.SerializeToString(deterministic=True)).decode()

    def problems_reading(self, written: ProtobufSchema) -> list[str]:
        """Return why data of another schema cannot be read with this one."""
        return [_text(one) for one in compare(written.side, self.side)]


def _file(text: str) -> Any:
    """Return the descriptor of a text or of base64. Raises ``InvalidSchema``."""
    stripped = text.strip()
    try:
        data = base64.b64decode(stripped, validate=True)
    except (binascii.Error, ValueError):
        return parse_proto(text)
    try:
        file = pb.FileDescriptorProto.FromString(data)
    except DecodeError:
        raise InvalidSchema("it is no .proto file, and no descriptor in base64") from None
    if file.syntax not in ("", "proto2", "proto3"):
        raise InvalidSchema(f"the syntax {file.syntax[:50]!r} is not proto2 or proto3")
    try:
        printed = print_proto(file)
    except (IndexError, TypeError, ValueError) as error:  # It has what protoc never makes.
        raise InvalidSchema(f"the parts of the descriptor do not fit together: {error}") from None
    return parse_proto(printed)


def _sort_fields(message: Any) -> None:
    message.field.sort(key=lambda field: field.number)
    for nested in message.nested_type:
        _sort_fields(nested)


def _text(problem: Problem) -> str:
    what = problem.kind.replace("_", " ").lower()
    return problem.message(
        f"{what} at path '{problem.place}' in the %s schema, against the %s schema"
    )
