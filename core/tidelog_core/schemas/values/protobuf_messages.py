"""The messages of a Protobuf schema, from the descriptors that the registry's parser makes."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from google.protobuf import descriptor_pb2 as pb
from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError

from tidelog_core.schemas.model import Reference
from tidelog_core.schemas.parsed_schema import InvalidSchema
from tidelog_core.schemas.protobuf.names import resolved
from tidelog_core.schemas.protobuf.schema import ProtobufSchema
from tidelog_core.schemas.values.framing import UnreadableValue

FILE_NAME = "tidelog-schema.proto"  # of the schema itself, which has no name
DEPTH_MAX = 100  # of messages in JSON
_WELL_KNOWN = (
    *("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct"),
    *("timestamp", "type", "wrappers"),
)
_PREFIX = "google/protobuf/"


class ProtobufMessages:
    """The message types of one schema. Not thread-safe."""

    def __init__(self, text: str, known: Sequence[tuple[Reference, str]]) -> None:
        """``known`` is that of ``parse``. Raises ``InvalidSchema``."""
        self._pool = descriptor_pool.DescriptorPool()
        self._added: set[str] = set()
        for index, (reference, other) in enumerate(known):
            if reference.name not in self._added:
                self._add(reference.name, ProtobufSchema.parse(other, known[:index]))
        self._file = self._add(FILE_NAME, ProtobufSchema.parse(text, known))
        self._classes: dict[tuple[int, ...], Any] = {}

    def class_at(self, indexes: tuple[int, ...]) -> Any:
        """Return the class of the message at a place in the file. Raises ``UnreadableValue``."""
        found = self._classes.get(indexes)
        if found is None:
            name = self.name_at(indexes)
            try:
                found = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))
            except (KeyError, TypeError) as error:
                raise UnreadableValue(f"its message {name} cannot be used: {error}") from None
            self._classes[indexes] = found
        return found

    def name_at(self, indexes: tuple[int, ...]) -> str:
        """Return the full name of the message at a place. Raises ``UnreadableValue``."""
        messages: Any = self._file.message_type
        names = [self._file.package] if self._file.package else []
        for index in indexes:
            if not 0 <= index < len(messages):
                raise UnreadableValue(f"the schema has no message at {list(indexes)}")
            names.append(messages[index].name)
            messages = messages[index].nested_type
        return ".".join(names)

    def place_of(self, name: str) -> tuple[int, ...] | None:
        """Return the place of the message with a full name, or with one in the package."""
        waiting: list[tuple[tuple[int, ...], str, Any]] = [
            ((index,), one.name, one) for index, one in enumerate(self._file.message_type)
        ]
        package = self._file.package
        for place, local, one in waiting:
            if name in (local, f"{package}.{local}"):
                return place
            waiting += [
                ((*place, index), f"{local}.{inner.name}", inner)
                for index, inner in enumerate(one.nested_type)
            ]
        return None

    def parse(self, indexes: tuple[int, ...], payload: bytes) -> Any:
        """Return the message in the bytes. Raises ``UnreadableValue``."""
        try:
            return self.class_at(indexes).FromString(payload)
        except DecodeError as error:
            raise UnreadableValue(f"it is no message of its type: {error}") from None

    def to_json(self, message: Any) -> Any:
        """Return the message as Protobuf's JSON has it. Raises ``UnreadableValue``."""
        try:
            # Without defaults: a message of two bytes may have a thousand fields.
            return json_format.MessageToDict(message, descriptor_pool=self._pool)
        except (json_format.Error, ValueError, TypeError, RecursionError) as error:
            raise UnreadableValue(f"it cannot be shown as JSON: {error}") from None

    def from_json(self, indexes: tuple[int, ...], value: Any) -> bytes:
        """Return the bytes of the message that JSON has. Raises ``UnreadableValue``."""
        message = self.class_at(indexes)()
        if not isinstance(value, dict):
            raise UnreadableValue(f"a {message.DESCRIPTOR.full_name} must be an object")
        try:
            json_format.ParseDict(
                value, message, descriptor_pool=self._pool, max_recursion_depth=DEPTH_MAX
            )
            data: bytes = message.SerializeToString(deterministic=True)
        except (json_format.Error, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise UnreadableValue(f"it is no {message.DESCRIPTOR.full_name}: {error}") from None
        return data

    def _add(self, name: str, schema: ProtobufSchema) -> Any:
        """Add a file to the pool, and return it. Raises ``InvalidSchema``."""
        made = resolved(schema.file, schema.side.names)
        made.name = name
        for one in made.dependency:
            self._add_well_known(one)
        # Options of one's own may be of types that are not there; they say nothing of the data.
        kept = [one for one in made.dependency if one in self._added]
        del made.dependency[:], made.public_dependency[:], made.weak_dependency[:]
        made.dependency.extend(kept)
        made.public_dependency.extend(range(len(kept)))
        _clear_options(made)
        self._correct_enums(made)
        try:
            self._pool.Add(made)
            self._pool.FindFileByName(name)
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidSchema(f"{name} cannot be used: {error}") from None
        self._added.add(name)
        return made

    def _add_well_known(self, name: str) -> None:
        part = name.removeprefix(_PREFIX).removesuffix(".proto")
        if name in self._added or part not in _WELL_KNOWN or not name.startswith(_PREFIX):
            return
        module = importlib.import_module(f"google.protobuf.{part}_pb2")
        file = pb.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        for one in file.dependency:
            self._add_well_known(one)
        self._pool.Add(file)
        self._added.add(name)

    def _correct_enums(self, file: Any) -> None:
        """Set the kind of fields whose types the registry's parser does not know."""
        waiting = list(file.message_type)
        while waiting:
            message = waiting.pop()
            waiting += message.nested_type
            for field in message.field:
                name = field.type_name.removeprefix(".")
                if name.startswith("google.protobuf.") and self._is_enum(name):
                    field.type = pb.FieldDescriptorProto.TYPE_ENUM

    def _is_enum(self, name: str) -> bool:
        try:
            self._pool.FindEnumTypeByName(name)
        except KeyError:
            return False
        return True


def _clear_options(file: Any) -> None:
    """Remove options that are not interpreted, and all that is not about messages."""
    file.ClearField("options")
    del file.service[:], file.extension[:]
    waiting = list(file.message_type)
    while waiting:
        message = waiting.pop()
        waiting += message.nested_type
        is_map = message.options.map_entry
        message.ClearField("options")
        if is_map:
            message.options.map_entry = True
        del message.extension[:]
        for one in message.oneof_decl:
            one.ClearField("options")
        for field in message.field:
            packed = field.options.packed if field.options.HasField("packed") else None
            field.ClearField("options")
            if packed is not None:
                field.options.packed = packed
        for enum in message.enum_type:
            _clear_enum(enum)
    for enum in file.enum_type:
        _clear_enum(enum)


def _clear_enum(enum: Any) -> None:
    has_aliases = enum.options.allow_alias
    enum.ClearField("options")
    if has_aliases:
        enum.options.allow_alias = True
    for value in enum.value:
        value.ClearField("options")
