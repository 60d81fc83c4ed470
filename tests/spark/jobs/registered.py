"""A registry beside a tiered topic, and values that name its schemas."""

from __future__ import annotations

import asyncio
import io
import json
import struct
from pathlib import Path
from typing import Any

import fastavro
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.schema_registry.journal.journal import RegistryJournal
from tidelog_core.schema_registry.registry import SchemaRegistry, Wanted
from tidelog_core.schema_registry.settings import RegistryConfig, RegistrySettings
from tidelog_core.schemas.model import Compatibility, Schema, SchemaType
from tidelog_spark.jobs.values.bucket_schemas import LATEST, read_schemas
from tidelog_spark.jobs.values.decoding import DecoderSpec

from tests.spark.jobs.exported import Source
from tests.support.tiered_cluster import CLUSTER_ID


def avro(*fields: tuple[str, Any], name: str = "Order") -> Schema:
    made = [
        {"name": one, "type": kind, **({"default": None} if isinstance(kind, list) else {})}
        for one, kind in fields
    ]
    return Schema(SchemaType.AVRO, json.dumps({"type": "record", "name": name, "fields": made}))


def framed(schema_id: int, payload: bytes) -> bytes:
    return b"\0" + struct.pack(">i", schema_id) + payload


def written(schema_id: int, schema: Schema, value: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, json.loads(schema.text), value)
    return framed(schema_id, stream.getvalue())


class Registry:
    """A registry beside a tiered topic. It is closed when values are read."""

    def __init__(self, source: Source, folder: Path) -> None:
        self.options = source.cluster.options
        self._database = source.cluster.database
        self._bucket = Path(self.options["objects"].removeprefix("file://"))

    def do(self, *steps: Any) -> list[int]:
        """Register schemas under subjects, or do what a function does; return the ids."""

        async def run() -> list[int]:
            store = SqliteMetadataStore(self._database)
            journal = RegistryJournal(store, FolderObjectStore(self._bucket), CLUSTER_ID)
            registry = SchemaRegistry(store, committer=journal)
            try:
                ids = []
                for step in steps:
                    if callable(step):
                        await step(registry)
                        continue
                    subject, schema = step
                    ids.append((await registry.register(subject, Wanted(schema))).schema_id)
                return ids
            finally:
                await store.close()

        return asyncio.run(run())

    def spec(self, subject: str = "t-value", version: int = LATEST, **given: Any) -> DecoderSpec:
        schemas = read_schemas(**self.options, subject=subject, version=version)
        return DecoderSpec(format="registry", registry=schemas, **given)


async def any_level(registry: SchemaRegistry) -> None:
    await RegistrySettings(registry).set_config("", RegistryConfig(Compatibility.NONE))
