"""Finds the types that names mean, in a file and in those that it imports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2 as pb

from tidelog_core.schemas.parsed_schema import InvalidSchema

# Files that every parser has; they are no references.
BUILT_IN = ("google/protobuf/", "google/type/", "confluent/")
_PACKAGES_BUILT_IN = ("google.protobuf.", "google.type.", "confluent.")
NAME_CHARACTERS_MAX = 1_000  # with the package and the messages around: each type has its own copy


@dataclass(frozen=True, slots=True, eq=False)
class NamedType:
    """A message or an enum."""

    name: str  # with its package
    package: str
    descriptor: Any
    is_enum: bool
    file: str  # that declares it; "": the schema itself

    @property
    def local_name(self) -> str:
        """The name without the package."""
        return self.name.removeprefix(f"{self.package}.") if self.package else self.name

    @property
    def is_map_entry(self) -> bool:
        """Whether it is the entry type of a map field."""
        return not self.is_enum and bool(self.descriptor.options.map_entry)


class TypeNames:
    """The types of a schema and of the files that it imports."""

    def __init__(self, file: Any, imported: Mapping[str, Any]) -> None:
        """``imported`` has files by the names that imports have. Raises ``InvalidSchema``."""
        self.types: dict[str, NamedType] = {}
        for name, other in imported.items():
            for one in _declared(other, name):
                self.types.setdefault(one.name, one)
        own: set[str] = set()
        for one in _declared(file, ""):
            if one.name in own:
                raise InvalidSchema(f"{one.name} is declared twice")
            own.add(one.name)
            self.types[one.name] = one

    def find(self, name: str, scope: str) -> NamedType | None:
        """Return the type that a name means in a scope, such as a message's full name."""
        if name.startswith("."):
            return self.types.get(name[1:])
        while scope:
            found = self.types.get(f"{scope}.{name}")
            if found is not None:
                return found
            scope = scope.rpartition(".")[0]
        return self.types.get(name)


def require_known(file: Any, names: TypeNames, imported: Iterable[str]) -> None:
    """Raise ``InvalidSchema`` if a file imports or uses an unknown name."""
    known = set(imported)
    for one in file.dependency:
        if one not in known and not one.startswith(BUILT_IN):
            raise InvalidSchema(f"import {one[:100]!r} is none of the schema's references")
    has_built_in = any(one.startswith(BUILT_IN) for one in file.dependency)
    for message, scope in messages(file):
        numbers, fields = set[int](), set[str]()
        for field in message.field:
            if field.number in numbers or field.name in fields:
                raise InvalidSchema(f"{scope} has the field {field.name} = {field.number} twice")
            numbers.add(field.number)
            fields.add(field.name)
            _require_type(field, scope, names, has_built_in)
    for field in file.extension:
        _require_type(field, file.package, names, has_built_in)


def _require_type(field: Any, scope: str, names: TypeNames, has_built_in: bool) -> None:
    name = field.type_name
    if not name or names.find(name, scope) is not None:
        return
    if has_built_in and (name.removeprefix(".").startswith(_PACKAGES_BUILT_IN) or "." in name):
        return
    raise InvalidSchema(f"{scope}.{field.name} has the unknown type {name[:100]!r}")


def messages(file: Any) -> Iterator[tuple[Any, str]]:
    """Yield all messages of a file with their full names. Raises ``InvalidSchema``."""
    waiting = [(one, _full_name(file.package, one.name)) for one in file.message_type]
    while waiting:
        message, name = waiting.pop()
        yield message, name
        waiting += [(one, _full_name(name, one.name)) for one in message.nested_type]


def _full_name(scope: str, name: str) -> str:
    full = f"{scope}.{name}".lstrip(".")
    if len(full) > NAME_CHARACTERS_MAX:
        raise InvalidSchema(
            f"the full name of {name[:100]} has more than {NAME_CHARACTERS_MAX} characters"
        )
    return full


def _declared(file: Any, file_name: str) -> Iterator[NamedType]:
    package = file.package
    for message, name in messages(file):
        yield NamedType(name, package, message, False, file_name)
        for enum in message.enum_type:
            yield NamedType(_full_name(name, enum.name), package, enum, True, file_name)
    for enum in file.enum_type:
        yield NamedType(_full_name(package, enum.name), package, enum, True, file_name)


def resolved(file: Any, names: TypeNames) -> Any:
    """Return a copy of a file as protoc makes it: types by their full names, and their kinds."""
    made = pb.FileDescriptorProto()
    made.CopyFrom(file)
    for message, scope in messages(made):
        for field in message.field:
            _resolve(field, scope, names)
            if field.proto3_optional and not field.HasField("oneof_index"):
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")
    for field in made.extension:
        _resolve(field, made.package, names)
    return made


def _resolve(field: Any, scope: str, names: TypeNames) -> None:
    if not field.type_name:
        return
    found = names.find(field.type_name, scope)
    if found is not None:
        field.type_name = f".{found.name}"
        kind = pb.FieldDescriptorProto
        field.type = kind.TYPE_ENUM if found.is_enum else kind.TYPE_MESSAGE
    elif not field.HasField("type"):
        field.type_name = f".{field.type_name.removeprefix('.')}"
        field.type = pb.FieldDescriptorProto.TYPE_MESSAGE
