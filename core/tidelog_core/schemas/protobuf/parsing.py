"""Parses .proto files into descriptors.

Names of types stay as they are written, and whether they are messages or enums is not decided:
that needs the imported files (``names``). What has no place in descriptors, such as comments, goes.
Source: the language specifications of proto2 and proto3.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from google.protobuf import descriptor_pb2 as pb
from google.protobuf.descriptor import FieldDescriptor

from tidelog_core.schemas.parsed_schema import DEPTH_MAX, InvalidSchema
from tidelog_core.schemas.protobuf.tokens import Tokens, parse_int

SCALARS = {
    one.removeprefix("TYPE_").lower(): number
    for one, number in pb.FieldDescriptorProto.Type.items()
    if one not in ("TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
}
_LABELS = {
    "optional": pb.FieldDescriptorProto.LABEL_OPTIONAL,
    "required": pb.FieldDescriptorProto.LABEL_REQUIRED,
    "repeated": pb.FieldDescriptorProto.LABEL_REPEATED,
}
FIELD_NUMBER_MAX = 2**29 - 1
ENUM_NUMBER_MAX = 2**31 - 1
_OPTION_PART = r"(?:\w+|\(\.?\w+(?:\.\w+)*\))"
_OPTION_NAME = re.compile(rf"{_OPTION_PART}(?:\.{_OPTION_PART})*", re.ASCII)
_NUMBERS = {
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
}


def parse_proto(text: str) -> Any:
    """Return the ``FileDescriptorProto`` of a file. Raises ``InvalidSchema``."""
    tokens = Tokens(text)
    file = pb.FileDescriptorProto(syntax="proto2")
    if tokens.has("syntax"):
        tokens.require("=")
        file.syntax = tokens.text()
        tokens.require(";")
    if file.syntax not in ("proto2", "proto3"):
        raise InvalidSchema(f"the syntax {file.syntax[:50]!r} is not proto2 or proto3")
    parser = _Parser(tokens, is_proto3=file.syntax == "proto3")
    while tokens.next.kind != "end":
        parser.statement(file)
    return file


class _Parser:
    """Parses the statements of one file."""

    def __init__(self, tokens: Tokens, *, is_proto3: bool) -> None:
        self._tokens = tokens
        self._is_proto3 = is_proto3

    def statement(self, file: Any) -> None:
        """Parse a statement at the top."""
        tokens = self._tokens
        if tokens.has(";"):
            return
        word = tokens.name()
        if word == "package":
            file.package = tokens.name()
            tokens.require(";")
        elif word == "import":
            index = len(file.dependency)
            if tokens.has("public"):
                file.public_dependency.append(index)
            elif tokens.has("weak"):
                file.weak_dependency.append(index)
            file.dependency.append(tokens.text())
            tokens.require(";")
        elif word == "option":
            self._option(file.options)
        elif word == "message":
            self._message(file.message_type.add(), 0)
        elif word == "enum":
            self._enum(file.enum_type.add())
        elif word == "extend":
            self._extend(file.extension)
        elif word == "service":
            self._service(file.service.add())
        else:
            raise tokens.wrong(f"a declaration, not {word[:50]!r},")

    # -- messages --------------------------------------------------------------------------

    def _message(self, message: Any, depth: int) -> None:
        tokens = self._tokens
        if depth > DEPTH_MAX:
            raise InvalidSchema(f"messages are nested more than {DEPTH_MAX} times")
        message.name = tokens.name()
        tokens.require("{")
        while not tokens.has("}"):
            self._member(message, depth)

    def _member(self, message: Any, depth: int) -> None:
        tokens = self._tokens
        if tokens.has(";"):
            return
        word = tokens.next.text
        follows: dict[str, Callable[[], None]] = {
            "message": lambda: self._message(message.nested_type.add(), depth + 1),
            "enum": lambda: self._enum(message.enum_type.add()),
            "extend": lambda: self._extend(message.extension),
            "option": lambda: self._option(message.options),
            "oneof": lambda: self._oneof(message),
            "reserved": lambda: self._reserved(message, FIELD_NUMBER_MAX, is_half_open=True),
            "extensions": lambda: self._extensions(message),
        }
        if word in follows and tokens.next.kind == "name":
            tokens.take()
            follows[word]()
        else:
            self._field(message.field, message)

    def _field(self, fields: Any, message: Any, oneof: int | None = None) -> None:
        tokens = self._tokens
        field = fields.add()
        label = tokens.next.text
        field.label = pb.FieldDescriptorProto.LABEL_OPTIONAL
        if label in _LABELS and oneof is None:
            tokens.take()
            field.label = _LABELS[label]
            field.proto3_optional = self._is_proto3 and label == "optional"
            if self._is_proto3 and label == "required":
                raise tokens.wrong("optional or repeated in proto3")
        elif not self._is_proto3 and oneof is None and label != "map":
            raise tokens.wrong("a label")
        if not field.proto3_optional:
            field.ClearField("proto3_optional")
        if tokens.has("map"):
            self._map(field, message)
        else:
            _set_type(field, tokens.name())
        field.name = tokens.name()
        if field.type_name == _MAP:
            entry = message.nested_type[-1]
            entry.name = field.type_name = _entry_name(field.name)
        tokens.require("=")
        field.number = self._field_number()
        if oneof is not None:
            field.oneof_index = oneof
        if tokens.has("["):
            self._field_options(field)
        tokens.require(";")

    def _map(self, field: Any, message: Any) -> None:
        tokens = self._tokens
        if message is None:
            raise tokens.wrong("a field of a message")
        tokens.require("<")
        entry = message.nested_type.add()
        entry.options.map_entry = True
        for number, name in ((1, "key"), (2, "value")):
            part = entry.field.add(name=name, number=number)
            part.label = pb.FieldDescriptorProto.LABEL_OPTIONAL
            _set_type(part, tokens.name())
            tokens.require("," if number == 1 else ">")
        field.label, field.type_name = pb.FieldDescriptorProto.LABEL_REPEATED, _MAP

    def _field_number(self) -> int:
        number = self._tokens.number()
        if not 1 <= number <= FIELD_NUMBER_MAX:
            raise InvalidSchema(f"the field number {number} is not from 1 to {FIELD_NUMBER_MAX}")
        return number

    def _oneof(self, message: Any) -> None:
        tokens = self._tokens
        index = len(message.oneof_decl)
        oneof = message.oneof_decl.add(name=tokens.name())
        tokens.require("{")
        while not tokens.has("}"):
            if tokens.has(";"):
                continue
            if tokens.has("option"):
                self._option(oneof.options)
            else:
                self._field(message.field, message, index)

    def _reserved(self, owner: Any, limit: int, *, is_half_open: bool) -> None:
        tokens = self._tokens
        while True:
            if tokens.next.kind == "text":
                owner.reserved_name.append(tokens.text())
            else:
                start = tokens.number()
                end = self._range_end(start, limit)
                owner.reserved_range.add(start=start, end=end + is_half_open)
            if not tokens.has(","):
                break
        tokens.require(";")

    def _extensions(self, message: Any) -> None:
        tokens = self._tokens
        while True:
            start = tokens.number()
            end = self._range_end(start, FIELD_NUMBER_MAX)
            message.extension_range.add(start=start, end=end + 1)
            if not tokens.has(","):
                break
        if tokens.has("["):
            while not tokens.has("]"):  # Their options say nothing of data.
                tokens.take()
                if tokens.next.kind == "end":
                    raise tokens.wrong("']'")
        tokens.require(";")

    def _range_end(self, start: int, limit: int) -> int:
        end = start
        if self._tokens.has("to"):
            end = limit if self._tokens.has("max") else self._tokens.number()
        if not -limit - 1 <= start <= end <= limit:
            raise InvalidSchema(f"no range of numbers: {start} to {end}")
        return end

    def _extend(self, fields: Any) -> None:
        tokens = self._tokens
        extendee = tokens.name()
        tokens.require("{")
        while not tokens.has("}"):
            if not tokens.has(";"):
                self._field(fields, None)
                fields[-1].extendee = extendee

    # -- enums and services ----------------------------------------------------------------

    def _enum(self, enum: Any) -> None:
        tokens = self._tokens
        enum.name = tokens.name()
        tokens.require("{")
        while not tokens.has("}"):
            if tokens.has(";"):
                continue
            word = tokens.name()
            if word == "option" and tokens.next.text != "=":
                self._option(enum.options)
            elif word == "reserved" and tokens.next.text != "=":
                self._reserved(enum, ENUM_NUMBER_MAX, is_half_open=False)
            else:
                tokens.require("=")
                number = tokens.number()
                if not -ENUM_NUMBER_MAX - 1 <= number <= ENUM_NUMBER_MAX:
                    raise InvalidSchema(f"the number {number} of {word} has more than 32 bits")
                value = enum.value.add(name=word, number=number)
                if tokens.has("["):
                    self._bracketed(value.options)
                tokens.require(";")

    def _service(self, service: Any) -> None:
        tokens = self._tokens
        service.name = tokens.name()
        tokens.require("{")
        while not tokens.has("}"):
            if tokens.has(";"):
                continue
            if tokens.has("option"):
                self._option(service.options)
                continue
            tokens.require("rpc")
            method = service.method.add(name=tokens.name())
            method.client_streaming, method.input_type = self._rpc_type()
            tokens.require("returns")
            method.server_streaming, method.output_type = self._rpc_type()
            if tokens.has("{"):
                while not tokens.has("}"):
                    if not tokens.has(";"):
                        tokens.require("option")
                        self._option(method.options)
            else:
                tokens.require(";")

    def _rpc_type(self) -> tuple[bool, str]:
        tokens = self._tokens
        tokens.require("(")
        name = tokens.name()
        is_stream = name == "stream" and tokens.next.kind == "name"
        if is_stream:
            name = tokens.name()
        tokens.require(")")
        return is_stream, name

    # -- options ---------------------------------------------------------------------------

    def _option(self, options: Any) -> None:
        self._set_option(options, *self._assignment())
        self._tokens.require(";")

    def _bracketed(self, options: Any) -> None:
        while True:
            self._set_option(options, *self._assignment())
            if not self._tokens.has(","):
                break
        self._tokens.require("]")

    def _field_options(self, field: Any) -> None:
        while True:
            name, kind, value = self._assignment()
            if name == "default":
                field.default_value = value
            elif name == "json_name":
                field.json_name = value
            else:
                self._set_option(field.options, name, kind, value)
            if not self._tokens.has(","):
                break
        self._tokens.require("]")

    def _assignment(self) -> tuple[str, str, str]:
        """Return name, kind and text of an option's value."""
        tokens = self._tokens
        name = ""
        while not tokens.has("="):
            token = tokens.take()
            if token.kind == "end" or token.text in "{};":
                raise tokens.wrong("'='", token)
            name += token.text
        if not _OPTION_NAME.fullmatch(name):
            raise InvalidSchema(f"{name[:50]!r} is no name of an option")
        sign = "-" if tokens.has("-") else ""
        if tokens.next.kind == "text":
            return name, "text", tokens.text()
        if tokens.has("{"):
            return name, "block", tokens.block()
        token = tokens.take()
        if token.kind not in ("name", "number"):
            raise tokens.wrong("a value", token)
        return name, token.kind, sign + token.text

    def _set_option(self, options: Any, name: str, kind: str, text: str) -> None:
        field = options.DESCRIPTOR.fields_by_name.get(name)
        if field is not None and name != "uninterpreted_option":
            value = _known_value(field, kind, text)
            if value is None:
                raise InvalidSchema(f"the option {name} cannot be {text[:50]!r}")
            try:
                setattr(options, name, value)
            except (TypeError, ValueError):  # A list, or a number that is too large.
                raise InvalidSchema(f"the option {name} cannot be {text[:50]!r}") from None
            return
        made = options.uninterpreted_option.add()
        made.name.add(name_part=name, is_extension=name.startswith("("))
        if kind == "text":
            made.string_value = text.encode(errors="replace")
        elif kind == "block":
            made.aggregate_value = text
        else:
            made.identifier_value = text


_MAP = "<map>"  # the type of a field until its name, and so its entry's, is known


def _set_type(field: Any, name: str) -> None:
    if name in SCALARS:
        field.type = SCALARS[name]
    else:
        field.type_name = name


def _entry_name(field: str) -> str:
    """Return the name of a map's entry, as protoc makes it."""
    return "".join(part[:1].upper() + part[1:] for part in field.split("_")) + "Entry"


def _known_value(field: Any, kind: str, text: str) -> Any:
    """Return the value of an option that descriptors know, ``None`` if it has another type."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return {"true": True, "false": False}.get(text)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return text if kind == "text" else None
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        found = field.enum_type.values_by_name.get(text)
        return None if found is None else found.number
    if field.cpp_type in _NUMBERS and kind == "number":
        try:
            return parse_int(text)
        except ValueError:
            return None
    return None
