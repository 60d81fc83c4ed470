"""Records whose keys and values ``consume`` shows as JSON, by the schemas of a registry."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog_cli.failures import CommandFailed
from tidelog_cli.output import counted, note
from tidelog_cli.records.record_text import RecordFormat, json_fields, json_line
from tidelog_cli.registry.registry_access import RegistryCodecs, registry_client

if TYPE_CHECKING:
    from tidelog.consuming.records import ConsumerRecord

BYTES, AUTO = "bytes", "auto"
FORMATS = (BYTES, "avro", "json", "protobuf", AUTO)
FORMATS_HELP = "bytes, as they are; avro, json or protobuf by the registry's schema; or auto."
NAMED_MAX = 20  # problems that are written out


class _Undecodable(Exception):
    """The key or the value cannot be shown."""


@dataclass(slots=True)
class RecordDecoder:
    """Decodes records one after the other. For one thread at a time."""

    codecs: RegistryCodecs
    key_format: str
    value_format: str
    failed_count: int = 0

    @classmethod
    def of(cls, key_format: str, value_format: str, registry: str) -> RecordDecoder | None:
        """Return the decoder, ``None`` if nothing is to be decoded. Raises ``UsageError``."""
        if key_format == value_format == BYTES:
            return None
        return cls(RegistryCodecs(registry_client(registry)), key_format, value_format)

    def text_format(self, plain: RecordFormat) -> RecordFormat:
        """Return the format of decoded records; nothing is printed of those that fail."""

        def shown(record: ConsumerRecord) -> bytes:
            decoded = self._decoded(record)
            return b"" if decoded is None else plain(decoded)

        return shown

    def json_format(self) -> RecordFormat:
        """Return the format with decoded keys and values as JSON within the record's.

        Of records that fail, the bytes are printed.
        """

        def shown(record: ConsumerRecord) -> bytes:
            decoded = self._decoded(record)
            if decoded is None:
                return json_line(record)
            fields = json_fields(record)
            for name, wanted, data in (
                ("key", self.key_format, decoded.key),
                ("value", self.value_format, decoded.value),
            ):
                if wanted != BYTES and data is not None:
                    fields.pop(f"{name}_base64", None)
                    fields[name] = _embedded(data)
            try:
                text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
            except RecursionError:
                self._note_failed(record, "record nests too deeply for a line of JSON")
                return json_line(record)
            return text.encode(errors="replace") + b"\n"

        return shown

    def require_all(self) -> None:
        """Raise ``CommandFailed`` if records could not be decoded."""
        if self.failed_count:
            records = counted(self.failed_count, "record")
            raise CommandFailed(f"{records} could not be decoded; stderr names the first of them")

    def _decoded(self, record: ConsumerRecord) -> ConsumerRecord | None:
        """Return the record with JSON as key and value, ``None`` if that is not possible."""
        part, data = "key", record.key
        try:
            key = self._shown(record, part, data, self.key_format)
            part, data = "value", record.value
            value = self._shown(record, part, data, self.value_format)
        except _Undecodable as error:
            self._note_failed(record, f"{part} cannot be decoded: {error}")
            return None
        return record._replace(key=key, value=value)

    def _note_failed(self, record: ConsumerRecord, problem: str) -> None:
        self.failed_count += 1
        if self.failed_count <= NAMED_MAX:
            note(f"{record.topic}-{record.partition} offset {record.offset}: the {problem}")

    def _shown(
        self, record: ConsumerRecord, part: str, data: bytes | None, wanted: str
    ) -> bytes | None:
        from tidelog_core.schemas.parsed_schema import InvalidSchema
        from tidelog_core.schemas.values.codecs import shown_value
        from tidelog_core.schemas.values.framing import (
            KEY_HEADER,
            MAGIC,
            VALUE_HEADER,
            UnreadableValue,
            schema_header,
            split_named,
        )

        if data is None or wanted == BYTES:
            return data
        name = KEY_HEADER if part == "key" else VALUE_HEADER
        header = schema_header(record.headers, name)
        if wanted == AUTO and header is None and data[:1] != bytes([MAGIC]):
            return data
        try:
            frame = split_named(data, header)
            schema_type, codec = self.codecs.of(frame.schema)
            if wanted not in (AUTO, schema_type.lower()):
                text = f"its schema {frame.schema} is {schema_type}, not {wanted.upper()}"
                raise _Undecodable(text)
            payload = frame.payload(schema_type)
            return shown_value(codec.decode(payload)).encode(errors="replace")
        except (InvalidSchema, UnreadableValue) as error:
            raise _Undecodable(str(error)) from None


def _embedded(data: bytes) -> object:
    """Return decoded text as JSON; text that was not decoded may not be JSON."""
    from tidelog_core.schemas.values.codecs import load_value
    from tidelog_core.schemas.values.framing import UnreadableValue

    try:
        value: object = load_value(data)
    except UnreadableValue:
        return data.decode(errors="replace")
    return value
