"""Decodes values whose schemas are in the registry: each by the schema that it names.

The columns are those of the reader's schema, one version of a subject. A value of another version
is read as Avro resolves schemas, by the numbers of Protobuf's fields, or by the names of JSON's
properties. Values that do not fit are problems, each with its reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from tidelog_core.errors import InvalidConfig
from tidelog_core.schemas.languages import parse
from tidelog_core.schemas.model import SchemaType
from tidelog_core.schemas.parsed_schema import InvalidSchema
from tidelog_core.schemas.values.framing import VALUE_HEADER, schema_header, split_named
from tidelog_core.schemas.values.framing import UnreadableValue as UnreadablePayload

from tidelog_spark.jobs.values.bucket_schemas import RegistrySchemas, ResolvedSchema
from tidelog_spark.jobs.values.value_decoder import (
    Decoded,
    UnreadableValue,
    ValueDecoder,
    describe,
    framed_id,
    unframed,
)

DECODERS_MAX = 500  # of schemas, in memory
RESOLVED = "resolved"  # Avro's format with the types of other schemas written out


class RegistryValues:
    """Reads values of any schema of the registry as one of them."""

    def __init__(self, schemas: RegistrySchemas, message: str = "") -> None:
        """``message`` is Protobuf's full name; "": the first of the reader's schema."""
        self._schemas = schemas
        self._message = message
        self._decoders: dict[int, ValueDecoder | str] = {}
        self._has_read_again = False
        decoder = self._decoder(schemas.reader)
        self.fields = decoder.fields

    def decode(self, values: pa.Array) -> Decoded:
        """Return the values' fields as columns."""
        return self._decoded(values.to_pylist(), {})

    def decode_with(self, values: pa.Array, headers: pa.Array) -> Decoded:
        """Return the values' fields as columns; headers of their records may name the schemas."""
        named: dict[int, bytes] = {}
        if headers.null_count < len(headers):
            for number, pairs in enumerate(headers.to_pylist()):
                found = ((one["key"], one["value"]) for one in pairs or ())
                header = schema_header(found, VALUE_HEADER)
                if header is not None:
                    named[number] = header
        return self._decoded(values.to_pylist(), named)

    def _decoded(self, values: list[bytes | None], headers: Mapping[int, bytes]) -> Decoded:
        payloads: dict[int, list[bytes]] = defaultdict(list)
        rows: dict[int, list[int]] = defaultdict(list)
        problems: dict[int, str] = {}
        for number, value in enumerate(values):
            if value is None:
                continue
            try:
                schema_id, payload = self._split(value, headers.get(number))
            except (UnreadableValue, UnreadablePayload) as error:
                problems[number] = describe(error)
                continue
            payloads[schema_id].append(payload)
            rows[schema_id].append(number)
        self._load(list(rows))
        parts: list[tuple[pa.Array, ...]] = [tuple(pa.array([], f.type) for f in self.fields)]
        places = np.full(len(values), -1, np.int64)
        at = 0
        for schema_id, some in payloads.items():
            decoder = self._decoders[schema_id]
            if isinstance(decoder, str):
                problems |= dict.fromkeys(rows[schema_id], decoder)
                continue
            decoded = decoder.decode(pa.array(some, pa.binary()))
            for index, problem in decoded.problems.items():
                problems[rows[schema_id][index]] = f"{problem} (schema {schema_id})"
            parts.append(decoded.columns)
            places[rows[schema_id]] = np.arange(at, at + len(some))
            at += len(some)
        taken = pa.array(places, mask=places < 0)
        columns = tuple(pa.concat_arrays(of).take(taken) for of in zip(*parts, strict=True))
        return Decoded(columns, problems)

    def _split(self, value: bytes, header: bytes | None) -> tuple[int, bytes]:
        """Return the schema's id and the payload. Raises ``UnreadableValue``, both of them."""
        if header is None:
            return framed_id(value), unframed(value)
        frame = split_named(value, header)
        payload = frame.payload(self._schemas.reader.schema.schema_type)
        if not isinstance(frame.schema, str):
            return frame.schema, payload
        schema_id = self._id_of(frame.schema)
        if schema_id is None:
            raise UnreadableValue(f"the bucket has no schema with its guid, {frame.schema}")
        return schema_id, payload

    def _id_of(self, guid: str) -> int | None:
        found = self._schemas.index.id_of(self._schemas.context, guid)
        if found is None and not self._has_read_again:
            self._has_read_again = True
            self._schemas = self._schemas.read_again()
            found = self._schemas.index.id_of(self._schemas.context, guid)
        return found

    def _load(self, ids: list[int]) -> None:
        """Have a decoder, or the reason that there is none, for each id."""
        missing = [one for one in ids if one not in self._decoders]
        if not missing:
            return
        if len(self._decoders) + len(missing) > DECODERS_MAX:
            self._decoders.clear()
            missing = ids
        loaded = self._schemas.load(missing)
        absent = [one for one, found in loaded.items() if isinstance(found, str)]
        if absent and not self._has_read_again:
            # A schema may have been registered after the schemas were read, and before the
            # offsets of this task were planned. So once is enough.
            self._has_read_again = True
            self._schemas = self._schemas.read_again()
            loaded |= self._schemas.load(absent)
        for one, found in loaded.items():
            if isinstance(found, str):
                self._decoders[one] = found
                continue
            try:
                self._decoders[one] = self._decoder(found)
            except (InvalidConfig, InvalidSchema) as error:
                self._decoders[one] = f"its schema {one} cannot be used: {describe(error)}"

    def _decoder(self, written: ResolvedSchema) -> ValueDecoder:
        """Return the decoder of values of a schema. Raises ``InvalidConfig``, ``InvalidSchema``."""
        reader = self._schemas.reader
        kind = written.schema.schema_type
        if kind is not reader.schema.schema_type:
            raise InvalidConfig(
                [f"it is {kind}, and the schema of the columns is {reader.schema.schema_type}"]
            )
        if kind is SchemaType.AVRO:
            from tidelog_spark.jobs.values.avro_values import AvroValues

            return AvroValues(_avro(reader), is_framed=False, written=_avro(written))
        if kind is SchemaType.JSON:
            from tidelog_spark.jobs.values.json_values import JsonValues

            return JsonValues(reader.schema.text.encode(), is_framed=False)
        from tidelog_spark.jobs.values.registry_messages import RegistryMessages

        return RegistryMessages(reader, written, self._message)


def _avro(found: ResolvedSchema) -> bytes:
    schema = found.schema
    return parse(schema.schema_type, schema.text, found.known).formatted(RESOLVED).encode()
