"""Turns the bytes of records' values into columns, in the format that they are said to have."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from tidelog_core.errors import InvalidConfig

from tidelog_spark.jobs.value_decoder import Decoded, ValueDecoder

FORMATS = ("raw", "json", "avro", "protobuf")
FRAMINGS = ("none", "confluent")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """How values are to be read, as it is sent to tasks."""

    format: str = "raw"
    schema: bytes = b""  # what the schema's file holds
    message: str = ""  # Protobuf's full name of the message
    framing: str = "none"

    def open(self) -> ValueDecoder:
        """Return a decoder. Raises ``InvalidConfig`` where the schema cannot be used."""
        if self.framing not in FRAMINGS:
            raise InvalidConfig([f"framing {self.framing!r} must be one of {', '.join(FRAMINGS)}"])
        is_framed = self.framing == "confluent"
        match self.format:
            case "raw":
                return RawValues()
            case "json":
                from tidelog_spark.jobs.json_values import JsonValues

                return JsonValues(self.schema, is_framed=is_framed)
            case "avro":
                from tidelog_spark.jobs.avro_values import AvroValues

                return AvroValues(self.schema, is_framed=is_framed)
            case "protobuf":
                from tidelog_spark.jobs.protobuf_values import ProtobufValues

                return ProtobufValues(self.schema, self.message, is_framed=is_framed)
        raise InvalidConfig([f"format {self.format!r} must be one of {', '.join(FORMATS)}"])


RAW = DecoderSpec()


class RawValues:
    """Values as they are, in one column."""

    fields = (pa.field("kafka_value", pa.binary()),)

    def decode(self, values: pa.Array) -> Decoded:
        """Return the values themselves."""
        return Decoded((values,), {})
