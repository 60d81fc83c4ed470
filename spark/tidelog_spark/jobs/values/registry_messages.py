"""Decodes Protobuf values of the registry: a message of a schema, read as one of another."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from google.protobuf.message import DecodeError
from tidelog_core.errors import InvalidConfig
from tidelog_core.schemas.values.framing import UnreadableValue as UnreadablePayload
from tidelog_core.schemas.values.framing import split_indexes
from tidelog_core.schemas.values.protobuf_messages import ProtobufMessages

from tidelog_spark.jobs.values.bucket_schemas import ResolvedSchema
from tidelog_spark.jobs.values.protobuf_values import message_reader
from tidelog_spark.jobs.values.value_decoder import (
    Decoded,
    UnreadableValue,
    decode_each,
    require_columns,
)

FIRST = (0,)


class RegistryMessages:
    """Reads messages that were written with one schema as a message of another one."""

    def __init__(self, reader: ResolvedSchema, written: ResolvedSchema, message: str) -> None:
        """``message`` is of the reader's schema; "": the first. Raises ``InvalidConfig``."""
        messages = ProtobufMessages(reader.schema.text, reader.known)
        self._written = (
            messages if written == reader else ProtobufMessages(written.schema.text, written.known)
        )
        place = messages.place_of(message) if message else FIRST
        if place is None:
            raise InvalidConfig([f"the registry's schema has no message {message!r}"])
        try:
            self._name = messages.name_at(place)
            self._class = messages.class_at(place)
        except UnreadablePayload as error:
            raise InvalidConfig([f"the registry's schema: {error}"]) from None
        # The messages own the descriptors of their classes.
        self._messages = messages
        self._struct, self._read_message = message_reader(self._class.DESCRIPTOR, self._name)
        self.fields = tuple(self._struct)
        require_columns(self.fields)

    def decode(self, values: pa.Array) -> Decoded:
        """Return the messages' fields as columns."""
        errors = (DecodeError, UnreadableValue, UnreadablePayload)
        return decode_each(values, self._read, self._struct, errors)

    def _read(self, value: bytes) -> Mapping[str, object]:
        place, payload = split_indexes(value)
        name = self._written.name_at(place)
        if name != self._name:
            raise UnreadableValue(f"it is a {name}, and the columns are those of {self._name}")
        found = self._read_message(self._class.FromString(payload))
        assert isinstance(found, dict)
        return found
