"""Whether data of one Protobuf schema can be read with another.

Source: ``SchemaDiff`` of Confluent's Protobuf provider, whose kinds of changes these are. Only
changes that are incompatible are collected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2 as pb

from tidelog_core.schemas.parsed_schema import PROBLEMS_MAX, Problem, StepBudget
from tidelog_core.schemas.protobuf.names import NamedType, TypeNames
from tidelog_core.schemas.protobuf.parsing import SCALARS

_FIELD = pb.FieldDescriptorProto
_NUMBER = frozenset({"int32", "int64", "uint32", "uint64", "bool", "enum"})
# Scalars of one group are read as each other.
_GROUPS: Mapping[str, str] = {
    **dict.fromkeys(_NUMBER, "number"),
    **dict.fromkeys(("sint32", "sint64"), "signed number"),
    **dict.fromkeys(("string", "bytes"), "text"),
    **dict.fromkeys(("fixed32", "sfixed32"), "fixed32"),
    **dict.fromkeys(("fixed64", "sfixed64"), "fixed64"),
    "float": "float",
    "double": "double",
}
_SCALAR_NAMES = {number: name for name, number in SCALARS.items()}


def compare(old: Side, new: Side) -> list[Problem]:
    """Return the changes that data of the old schema does not survive. Raises ``TooComplex``."""
    comparison = _Comparison(old, new)
    if old.file.package != new.file.package:
        comparison.add("PACKAGE_CHANGED", ())
    comparison.compare_types(old.file, new.file, Place((), old.file.package, new.file.package))
    return comparison.found


class Side:
    """A schema of a comparison."""

    def __init__(
        self, file: Any, names: TypeNames, references: Mapping[str, tuple[str, int]]
    ) -> None:
        """``references`` has subject and version of the files that it imports."""
        self.file, self.names, self.references = file, names, references

    def kind(self, field: Any, scope: str) -> tuple[str, NamedType | None]:
        """Return the kind of a field: a group of scalars, "map", or "message" with its name."""
        if not field.type_name:
            return _GROUPS.get(_SCALAR_NAMES.get(field.type, ""), "group"), None
        found = self.names.find(field.type_name, scope)
        if found is None:
            is_enum = field.type == _FIELD.TYPE_ENUM and field.HasField("type")
            return ("number" if is_enum else "message"), None
        if found.is_enum:
            return "number", found
        return ("map" if found.is_map_entry else "message"), found


class Place(NamedTuple):
    """A place in both schemas; the scopes are the full names of the enclosing messages."""

    path: tuple[str, ...]
    old_scope: str
    new_scope: str


class _Comparison:
    """The changes so far."""

    def __init__(self, old: Side, new: Side) -> None:
        self.found: list[Problem] = []
        self._old, self._new = old, new
        self._budget = StepBudget()
        self._compared: set[tuple[str, str]] = set()  # messages, by full names

    def add(self, kind: str, path: tuple[str, ...]) -> None:
        """Collect a problem, unless there are many."""
        if len(self.found) < PROBLEMS_MAX:
            self.found.append(Problem(kind, path))

    def compare_types(self, old: Any, new: Any, place: Place) -> None:
        """Compare the messages that two files, or two messages, declare."""
        path, old_scope, new_scope = place
        news = _nested(new)
        for name, message in _nested(old).items():
            if message.options.map_entry:
                continue
            if name not in news:
                self.add("MESSAGE_REMOVED", (*path, name))
                continue
            inner = Place((*path, name), _join(old_scope, name), _join(new_scope, name))
            self._compare_messages(message, news[name], inner)

    def _compare_messages(self, old: Any, new: Any, place: Place) -> None:
        path, old_scope, new_scope = place
        if (old_scope, new_scope) in self._compared:
            return
        self._compared.add((old_scope, new_scope))
        olds, news = _fields(old), _fields(new)
        deleted = {one for one, _ in olds.values()} - {one for one, _ in news.values()}
        deleted -= {olds[tag][0] for tag in olds.keys() & news.keys()}
        self._compare_oneofs(olds, news, path)
        for tag in sorted(olds.keys() | news.keys()):
            self._budget.take()
            oneof, field = olds.get(tag, ("", None))
            new_oneof, new_field = news.get(tag, ("", None))
            where = (*path, *filter(None, [new_oneof or oneof]), str(tag))
            if new_field is None:
                if oneof:
                    if oneof not in deleted:
                        self.add("ONEOF_FIELD_REMOVED", where)
                elif field is not None and field.label == _FIELD.LABEL_REQUIRED:
                    self.add("REQUIRED_FIELD_REMOVED", where)
            elif field is None:
                if new_field.label == _FIELD.LABEL_REQUIRED:
                    self.add("REQUIRED_FIELD_ADDED", where)
            else:
                labels = _label(field, self._old.file), _label(new_field, self._new.file)
                self._compare_fields(field, new_field, Place(where, old_scope, new_scope), labels)
        self.compare_types(old, new, place)

    def _compare_oneofs(
        self, olds: dict[int, tuple[str, Any]], news: dict[int, tuple[str, Any]], path: Any
    ) -> None:
        """Find fields that excluded each other not before."""
        groups: dict[str, set[str]] = {}
        moved: dict[str, int] = {}
        for tag, (oneof, _) in news.items():
            if oneof and tag in olds:
                was = olds[tag][0]
                groups.setdefault(oneof, set()).add(f"oneof {was}" if was else f"field {tag}")
                moved[oneof] = moved.get(oneof, 0) + (not was)
        for oneof, origins in groups.items():
            if len(origins) > 1:
                many = moved[oneof] > 1
                kind = "MULTIPLE_FIELDS_MOVED_TO_ONEOF" if many else "FIELD_MOVED_TO_EXISTING_ONEOF"
                self.add(kind, (*path, oneof))

    def _compare_fields(
        self, old: Any, new: Any, place: Place, labels: tuple[str, str] = ("", "")
    ) -> None:
        path, old_scope, new_scope = place
        kind, old_type = self._old.kind(old, old_scope)
        new_kind, new_type = self._new.kind(new, new_scope)
        if _is_scalar(kind) != _is_scalar(new_kind) or (kind != new_kind and not _is_scalar(kind)):
            self.add("FIELD_KIND_CHANGED", path)
        elif kind == "map":
            assert old_type is not None
            assert new_type is not None
            pairs = zip(old_type.descriptor.field, new_type.descriptor.field, strict=False)
            for before, after in pairs:
                inner = Place(path, old_type.name, new_type.name)
                self._compare_fields(before, after, inner)
        elif kind == "message":
            self._compare_message_types((old, old_type), (new, new_type), path)
        elif kind != new_kind:
            self.add("FIELD_SCALAR_KIND_CHANGED", path)
        elif all(labels) and labels[0] != labels[1] and kind != "text":
            self.add("FIELD_NUMERIC_LABEL_CHANGED", path)

    def _compare_message_types(
        self,
        old: tuple[Any, NamedType | None],
        new: tuple[Any, NamedType | None],
        path: tuple[str, ...],
    ) -> None:
        (field, before), (new_field, after) = old, new
        if before is None or after is None:
            names = (one.type_name.removeprefix(".") for one in (field, new_field))
            if len(set(names)) > 1:
                self.add("FIELD_NAMED_TYPE_CHANGED", path)
            return
        if before.local_name != after.local_name:
            self.add("FIELD_NAMED_TYPE_CHANGED", path)
            return
        reference = self._old.references.get(before.file)
        if reference is not None and reference == self._new.references.get(after.file):
            return
        count = len(self.found)
        place = Place((before.local_name,), before.name, after.name)
        self._compare_messages(before.descriptor, after.descriptor, place)
        if len(self.found) > count:
            self.add("FIELD_NAMED_TYPE_CHANGED", path)


def _nested(owner: Any) -> dict[str, Any]:
    """Return the messages that a file or a message declares, by their names."""
    is_file = owner.DESCRIPTOR.name == "FileDescriptorProto"
    return {one.name: one for one in (owner.message_type if is_file else owner.nested_type)}


def _fields(message: Any) -> dict[int, tuple[str, Any]]:
    """Return fields by number, with the name of their oneof, "" if they are in none."""
    found = {}
    for field in message.field:
        is_member = field.HasField("oneof_index") and not field.proto3_optional
        oneof = message.oneof_decl[field.oneof_index].name if is_member else ""
        found[field.number] = oneof, field
    return found


def _label(field: Any, file: Any) -> str:
    """Return the label that is written, "" if there is none."""
    if field.label == _FIELD.LABEL_REPEATED:
        return "repeated"
    if field.label == _FIELD.LABEL_REQUIRED:
        return "required"
    is_implicit = file.syntax == "proto3" and not field.proto3_optional
    return "" if is_implicit or field.HasField("oneof_index") else "optional"


def _is_scalar(kind: str) -> bool:
    return kind not in ("map", "message")


def _join(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name
