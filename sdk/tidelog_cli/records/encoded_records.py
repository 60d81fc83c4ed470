"""Records whose keys and values ``produce`` makes of JSON, by the schemas of a registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.registry_http import path_segment

from tidelog_cli.failures import CommandFailed, UsageError
from tidelog_cli.records.decoded_records import BYTES
from tidelog_cli.records.record_lines import LineParser, LineRecord
from tidelog_cli.registry.registry_access import RegistryCodecs, registry_client

if TYPE_CHECKING:
    from tidelog_core.schemas.values.codecs import ValueCodec

FORMATS = (BYTES, "avro", "json", "protobuf")
FORMATS_HELP = "bytes, as they are; or JSON that becomes avro, json or protobuf by a schema."
SCHEMA_HELP = "A file to register for the topic, or an id. By default the topic's latest."


@dataclass(frozen=True, slots=True)
class Wanted:
    """How to write a part of the records: the key or the value."""

    part: str
    format: str  # of FORMATS
    schema: str | None  # a file or an id; None: the latest of the topic's subject
    message: str | None  # of Protobuf; None: the first of the file

    def __post_init__(self) -> None:
        if self.format == BYTES and self.schema is not None:
            raise UsageError(f"--{self.part}-schema needs --{self.part}-format")
        if self.message is not None and self.format != "protobuf":
            raise UsageError("--message needs --value-format protobuf")


@dataclass(frozen=True, slots=True)
class EncodingLines:
    """Parses lines, and encodes their keys and values."""

    lines: LineParser
    key: Callable[[bytes], bytes] | None
    value: Callable[[bytes], bytes] | None

    def parse(self, line: bytes, number: int) -> LineRecord | None:
        """Return the record. Raises ``CommandFailed`` with the line's number."""
        record = self.lines.parse(line, number)
        if record is None:
            return None
        return record._replace(
            key=_encoded(self.key, record.key, f"line {number}: the key"),
            value=_encoded(self.value, record.value, f"line {number}: the value"),
        )


def encoding(
    lines: LineParser, topic: str, wanted: tuple[Wanted, ...], registry: str
) -> LineParser:
    """Return the parser of lines with keys and values for schemas.

    Schemas in files are registered. Raises ``CommandFailed``.
    """
    if all(one.format == BYTES for one in wanted):
        return lines
    codecs = RegistryCodecs(registry_client(registry))
    encoders = {
        one.part: None if one.format == BYTES else _encoder(codecs, registry, topic, one)
        for one in wanted
    }
    return EncodingLines(lines, encoders["key"], encoders["value"])


def _encoder(
    codecs: RegistryCodecs, registry: str, topic: str, wanted: Wanted
) -> Callable[[bytes], bytes]:
    from tidelog_core.schemas.parsed_schema import InvalidSchema
    from tidelog_core.schemas.values.codecs import ProtobufCodec, load_value
    from tidelog_core.schemas.values.framing import UnreadableValue, framed

    schema_id = _schema_id(registry, topic, wanted)
    try:
        schema_type, codec = codecs.of(schema_id)
        if schema_type.lower() != wanted.format:
            raise CommandFailed(
                f"schema {schema_id} is {schema_type}, not --{wanted.part}-format {wanted.format}"
            )
        if wanted.message is not None and isinstance(codec, ProtobufCodec):
            codec.choose(wanted.message)
    except (InvalidSchema, UnreadableValue) as error:
        raise CommandFailed(f"{wanted.part}s cannot be written: {error}") from None
    used: ValueCodec = codec
    return lambda text: framed(schema_id, used.encode(load_value(text)))


def _schema_id(registry: str, topic: str, wanted: Wanted) -> int:
    """Return the id of the schema to write with."""
    given = wanted.schema
    if given is not None and given.isascii() and given.isdecimal():
        return int(given)
    client = registry_client(registry)
    path = f"/subjects/{path_segment(f'{topic}-{wanted.part}')}/versions"
    if given is None:
        found = client.get(f"{path}/latest")
    else:
        try:
            text = Path(given).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"--{wanted.part}-schema {given!r} is neither an id nor a file: {error}"
            ) from None
        found = client.post(path, {"schema": text, "schemaType": wanted.format.upper()})
    try:
        return int(found["id"])
    except (KeyError, TypeError, ValueError):
        raise CommandFailed("the registry's answer has no id") from None


def _encoded(
    encode: Callable[[bytes], bytes] | None, data: bytes | None, what: str
) -> bytes | None:
    from tidelog_core.schemas.values.framing import UnreadableValue

    if encode is None or data is None:
        return data
    try:
        return encode(data)
    except UnreadableValue as error:
        raise CommandFailed(f"{what} does not fit its schema: {error}") from None
