"""Descriptors as .proto files, in the form that Square's Wire prints and Confluent stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2 as pb
from google.protobuf.descriptor import FieldDescriptor

from tidelog_core.schemas.protobuf.parsing import ENUM_NUMBER_MAX, FIELD_NUMBER_MAX, SCALARS

_SCALAR_NAMES = {number: name for name, number in SCALARS.items()}
_LABELS = {
    pb.FieldDescriptorProto.LABEL_REQUIRED: "required ",
    pb.FieldDescriptorProto.LABEL_REPEATED: "repeated ",
}


def print_proto(file: Any) -> str:
    """Return the text of a ``FileDescriptorProto``."""
    syntax = file.syntax or "proto2"
    lines = [f'syntax = "{syntax}";']
    if file.package:
        lines.append(f"package {file.package};")
    imports = [
        f"import {_import_kind(file, index)}{quoted(name)};"
        for index, name in enumerate(file.dependency)
    ]
    options = [f"option {one};" for one in _options(file.options)]
    for block in (imports, options):
        if block:
            lines += ["", *block]
    is_proto3 = syntax == "proto3"
    for message in file.message_type:
        lines += ["", *_message(message, is_proto3)]
    for enum in file.enum_type:
        lines += ["", *_enum(enum)]
    for block in _extensions(file.extension, {}, is_proto3):
        lines += ["", *block]
    for service in file.service:
        lines += ["", *_service(service)]
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """Return a text as a string of the language."""
    found = []
    for one in text:
        if one in '\\"':
            found.append(f"\\{one}")
        elif one == "\n":
            found.append("\\n")
        elif ord(one) < 32 or ord(one) == 127:
            found.append(f"\\{ord(one):03o}")
        else:
            found.append(one)
    return f'"{"".join(found)}"'


def _import_kind(file: Any, index: int) -> str:
    if index in file.public_dependency:
        return "public "
    return "weak " if index in file.weak_dependency else ""


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {one}" if one else "" for one in lines]


def _message(message: Any, is_proto3: bool) -> list[str]:
    body = [f"option {one};" for one in _options(message.options)]
    body += _reserved(message, FIELD_NUMBER_MAX, is_half_open=True)
    for one in message.extension_range:
        body.append(f"extensions {_range(one.start, one.end - 1, FIELD_NUMBER_MAX)};")
    entries = {one.name: one for one in message.nested_type if one.options.map_entry}
    oneofs: dict[int, list[str]] = {}
    for field in message.field:
        is_member = field.HasField("oneof_index") and not field.proto3_optional
        line = _field(field, entries, is_proto3, has_label=not is_member)
        if is_member:
            oneofs.setdefault(field.oneof_index, []).append(line)
        else:
            body.append(line)
    for index, lines in sorted(oneofs.items()):
        oneof = message.oneof_decl[index]
        options = [f"option {one};" for one in _options(oneof.options)]
        body += ["", f"oneof {oneof.name} {{", *_indented([*options, *lines]), "}"]
    for block in _extensions(message.extension, entries, is_proto3):
        body += ["", *block]
    for nested in message.nested_type:
        if not nested.options.map_entry:
            body += ["", *_message(nested, is_proto3)]
    for enum in message.enum_type:
        body += ["", *_enum(enum)]
    return _block(f"message {message.name}", body)


def _block(head: str, body: list[str]) -> list[str]:
    if body and not body[0]:
        body = body[1:]
    return [f"{head} {{", *_indented(body), "}"] if body else [f"{head} {{}}"]


def _field(field: Any, entries: Mapping[str, Any], is_proto3: bool, *, has_label: bool) -> str:
    entry = entries.get(_last(field.type_name))
    if entry is not None:
        key, value = (_type(one) for one in entry.field)
        start = f"map<{key}, {value}>"
    else:
        start = (_label(field, is_proto3) if has_label else "") + _type(field)
    options = list(_options(field.options))
    if field.HasField("default_value"):
        is_text = field.type in (
            pb.FieldDescriptorProto.TYPE_STRING,
            pb.FieldDescriptorProto.TYPE_BYTES,
        )
        text = quoted(field.default_value) if is_text else field.default_value
        options.insert(0, f"default = {text}")
    if field.json_name and field.json_name != _json_name(field.name):
        options.append(f"json_name = {quoted(field.json_name)}")
    end = f" [{', '.join(options)}]" if options else ""
    return f"{start} {field.name} = {field.number}{end};"


def _label(field: Any, is_proto3: bool) -> str:
    known = _LABELS.get(field.label)
    if known is not None:
        return known
    return "" if is_proto3 and not field.proto3_optional else "optional "


def _type(field: Any) -> str:
    name: str = field.type_name
    return name or _SCALAR_NAMES.get(field.type, "bytes")


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _json_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(one[:1].upper() + one[1:] for one in rest)


def _extensions(fields: Any, entries: Mapping[str, Any], is_proto3: bool) -> Iterator[list[str]]:
    by_extendee: dict[str, list[str]] = {}
    for field in fields:
        line = _field(field, entries, is_proto3, has_label=True)
        by_extendee.setdefault(field.extendee, []).append(line)
    for extendee, lines in by_extendee.items():
        yield _block(f"extend {extendee}", lines)


def _enum(enum: Any) -> list[str]:
    body = [f"option {one};" for one in _options(enum.options)]
    body += _reserved(enum, ENUM_NUMBER_MAX, is_half_open=False)
    for value in enum.value:
        options = list(_options(value.options))
        end = f" [{', '.join(options)}]" if options else ""
        body.append(f"{value.name} = {value.number}{end};")
    return _block(f"enum {enum.name}", body)


def _reserved(owner: Any, limit: int, *, is_half_open: bool) -> list[str]:
    lines = []
    ranges = [_range(one.start, one.end - is_half_open, limit) for one in owner.reserved_range]
    if ranges:
        lines.append(f"reserved {', '.join(ranges)};")
    if owner.reserved_name:
        lines.append(f"reserved {', '.join(quoted(one) for one in owner.reserved_name)};")
    return lines


def _range(start: int, last: int, limit: int) -> str:
    if start == last:
        return str(start)
    return f"{start} to {'max' if last == limit else last}"


def _service(service: Any) -> list[str]:
    body = [f"option {one};" for one in _options(service.options)]
    for method in service.method:
        given = "stream " * method.client_streaming + method.input_type
        returned = "stream " * method.server_streaming + method.output_type
        line = f"rpc {method.name} ({given}) returns ({returned})"
        options = [f"option {one};" for one in _options(method.options)]
        body += [f"{line} {{", *_indented(options), "}"] if options else [f"{line};"]
    return _block(f"service {service.name}", body)


def _options(options: Any) -> Iterator[str]:
    """Yield ``name = value`` for each option that is set."""
    for field, value in options.ListFields():
        if field.name == "uninterpreted_option":
            for one in value:
                yield f"{''.join(part.name_part for part in one.name)} = {_free_value(one)}"
        elif field.name != "map_entry" and not field.is_extension:
            text = _known_value(field, value)
            if text is not None:
                yield f"{field.name} = {text}"


def _free_value(one: Any) -> str:
    if one.HasField("string_value"):
        return quoted(one.string_value.decode(errors="replace"))
    if one.HasField("aggregate_value"):
        return f"{{ {one.aggregate_value} }}"
    text: str = one.identifier_value
    return text


def _known_value(field: Any, value: Any) -> str | None:
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return "true" if value else "false"
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return quoted(value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        try:
            name: str = field.enum_type.values_by_number[value].name
        except (KeyError, TypeError):  # A list, or a number of a newer protoc.
            return None
        return name
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return None
    return str(value)
