"""Values of the registry's serializers as JSON, and JSON as such values.

A codec has one schema. Every function may take long, and recurses: for a thread or a process, not
for an event loop. What values look like in JSON is what Avro's and Protobuf's own JSON say.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from tidelog_core.schemas.avro.parsing import parse_avro
from tidelog_core.schemas.model import Reference, SchemaType, compact_json
from tidelog_core.schemas.parsed_schema import InvalidSchema
from tidelog_core.schemas.values.avro_reading import reader_of
from tidelog_core.schemas.values.avro_writing import write_avro
from tidelog_core.schemas.values.framing import UnreadableValue, joined_indexes, split_indexes
from tidelog_core.schemas.values.json_validation import JsonValidator

Known = Sequence[tuple[Reference, str]]  # references, and the texts of their schemas
JSON_DIGITS_MAX = 4_000  # of a whole number; Python takes ages for longer ones


class ValueCodec(Protocol):
    """Reads and writes payloads, the bytes after the schema's id."""

    def decode(self, payload: bytes) -> Any:
        """Return the value as JSON has it. Raises ``UnreadableValue``."""

    def encode(self, value: Any) -> bytes:
        """Return the payload of a value of JSON. Raises ``UnreadableValue``."""

    def check(self, payload: bytes) -> None:
        """Raise ``UnreadableValue`` if the schema does not allow the payload."""


def open_codec(schema_type: SchemaType, text: str, known: Known = ()) -> ValueCodec:
    """Return the codec of a schema; ``known`` is that of ``parse``. Raises ``InvalidSchema``."""
    try:
        if schema_type is SchemaType.JSON:
            return JsonCodec(text, known)
        if schema_type is SchemaType.PROTOBUF:
            return ProtobufCodec(text, known)
        return AvroCodec(text, known)
    except RecursionError:
        raise InvalidSchema("it nests too deeply") from None


def load_value(text: str | bytes) -> Any:
    """Return a JSON text's value. Raises ``UnreadableValue``."""
    try:
        return json.loads(text, parse_constant=_no_constant, parse_int=_whole_number)
    except (ValueError, RecursionError) as error:
        raise UnreadableValue(f"it is no JSON: {str(error)[:200]}") from None


def shown_value(value: Any) -> str:
    """Return the value as JSON in one line. Raises ``UnreadableValue``."""
    try:
        return compact_json(value)
    except (ValueError, RecursionError) as error:
        raise UnreadableValue(f"it cannot be shown as JSON: {error}") from None


class AvroCodec:
    """Values of an Avro schema."""

    def __init__(self, text: str, known: Known) -> None:
        self.type, _ = parse_avro(text, [other for _, other in known])
        self._read = reader_of(self.type)

    def decode(self, payload: bytes) -> Any:
        """Return the value as Avro's JSON encoding has it."""
        return self._read(payload)

    def encode(self, value: Any) -> bytes:
        """Return the payload of a value in Avro's JSON encoding."""
        return write_avro(self.type, value)

    def check(self, payload: bytes) -> None:
        """Raise ``UnreadableValue`` if it is no value of the type."""
        self._read(payload)


class ProtobufCodec:
    """Messages of a Protobuf schema; without a name, the first of the file is written."""

    def __init__(self, text: str, known: Known) -> None:
        try:
            from tidelog_core.schemas.values.protobuf_messages import ProtobufMessages
        except ModuleNotFoundError:
            raise InvalidSchema(
                "Protobuf needs a library: pip install 'tidelog[schemas]'"
            ) from None
        self.messages = ProtobufMessages(text, known)
        self._written: tuple[int, ...] = (0,)

    def choose(self, name: str) -> None:
        """Write messages of this name. Raises ``UnreadableValue``."""
        place = self.messages.place_of(name)
        if place is None:
            raise UnreadableValue(f"the schema has no message {name!r}")
        self._written = place

    def decode(self, payload: bytes) -> Any:
        """Return the message as Protobuf's JSON has it."""
        return self.messages.to_json(self._parsed(payload))

    def encode(self, value: Any) -> bytes:
        """Return the place of the message in its file, and the message."""
        data = self.messages.from_json(self._written, value)
        return joined_indexes(self._written) + data

    def check(self, payload: bytes) -> None:
        """Raise ``UnreadableValue`` if it is no message of the schema."""
        self._parsed(payload)

    def _parsed(self, payload: bytes) -> Any:
        indexes, data = split_indexes(payload)
        return self.messages.parse(indexes, data)


class JsonCodec:
    """Values of a JSON Schema."""

    def __init__(self, text: str, known: Known) -> None:
        self._text, self._known = text, known
        self._validator: JsonValidator | None = None  # made when it is first needed

    def decode(self, payload: bytes) -> Any:
        """Return the value as stored, without a look at the schema."""
        return load_value(payload)

    def encode(self, value: Any) -> bytes:
        """Return the text of a valid value."""
        self._checker().require(value)
        return shown_value(value).encode(errors="surrogatepass")

    def check(self, payload: bytes) -> None:
        """Raise ``UnreadableValue`` if it is no JSON, or not valid."""
        self._checker().require(load_value(payload))

    def _checker(self) -> JsonValidator:
        if self._validator is None:
            self._validator = JsonValidator(self._text, self._known)
        return self._validator


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _whole_number(text: str) -> int:
    if len(text) > JSON_DIGITS_MAX:
        raise ValueError(f"a number has {len(text)} digits")
    return int(text)
