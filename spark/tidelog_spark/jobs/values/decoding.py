"""Selects the decoder that turns record values into columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
from tidelog_core.errors import InvalidConfig

from tidelog_spark.jobs.values.bucket_schemas import RegistrySchemas
from tidelog_spark.jobs.values.value_decoder import Decoded, ValueDecoder

FORMATS = ("raw", "json", "avro", "protobuf", "registry")
FRAMINGS = ("none", "confluent")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """The format of values, in a form that can be sent to tasks."""

    format: str = "raw"
    schema: bytes = b""  # content of the schema's file
    message: str = ""  # Protobuf's full name of the message
    framing: str = "none"
    registry: RegistrySchemas | None = None  # of the format "registry"

    def renewed(self) -> DecoderSpec:
        """Return this with the registry's schemas of now. Raises ``InvalidConfig``."""
        if self.registry is None:
            return self
        return replace(self, registry=self.registry.renewed())

    def describe_columns(self) -> str:
        """Return the name of the schema that gives the columns."""
        if self.registry is not None:
            return str(self.registry.columns)
        return "the given schema"

    def open(self) -> ValueDecoder:
        """Return a decoder. Raises ``InvalidConfig`` if the schema is not usable."""
        if self.framing not in FRAMINGS:
            raise InvalidConfig([f"framing {self.framing!r} must be one of {', '.join(FRAMINGS)}"])
        is_framed = self.framing == "confluent"
        match self.format:
            case "raw":
                return RawValues()
            case "json":
                from tidelog_spark.jobs.values.json_values import JsonValues

                return JsonValues(self.schema, is_framed=is_framed)
            case "avro":
                from tidelog_spark.jobs.values.avro_values import AvroValues

                return AvroValues(self.schema, is_framed=is_framed)
            case "protobuf":
                from tidelog_spark.jobs.values.protobuf_values import ProtobufValues

                return ProtobufValues(self.schema, self.message, is_framed=is_framed)
            case "registry" if self.registry is not None:
                from tidelog_core.schemas.parsed_schema import InvalidSchema

                from tidelog_spark.jobs.values.registry_values import RegistryValues

                try:
                    return RegistryValues(self.registry, self.message)
                except InvalidSchema as error:
                    raise InvalidConfig([f"the registry's schema cannot be used: {error}"]) from (
                        None
                    )
        raise InvalidConfig([f"format {self.format!r} must be one of {', '.join(FORMATS)}"])


RAW = DecoderSpec()


class RawValues:
    """Values unchanged, in one column."""

    fields = (pa.field("kafka_value", pa.binary()),)

    def decode(self, values: pa.Array) -> Decoded:
        """Return the values themselves."""
        return Decoded((values,), {})
