"""Schemas from the registry's journal in the bucket: no node and no registry has to run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tidelog_core.metadata.location import opened_metadata_store
from tidelog_core.metadata.records import Cluster, cluster_key
from tidelog_core.objects.location import opened_object_store
from tidelog_core.schema_registry.journal.bucket_items import BucketIndex, read_index
from tidelog_core.schema_registry.reading import RegistryReader
from tidelog_core.schemas.model import Schema
from tidelog_core.schemas.refusals import RegistryRefusal
from tidelog_core.schemas.subject_names import DEFAULT_CONTEXT, SubjectName

from tidelog.arrow.schemas.found_schemas import FoundSchema
from tidelog.errors import InvalidConfig

LATEST = -1
T = TypeVar("T")


class BucketSchemas:
    """The schemas that the bucket had when this was made, of one context. Its functions block."""

    def __init__(self, *, metadata: str, objects: str, context: str = DEFAULT_CONTEXT) -> None:
        """The URLs of the stores. Raises the stores' errors."""
        self._objects = objects
        self._root = SubjectName(context, "")
        self._index = _wait(lambda: _read_index(metadata, objects))

    def latest(self, subject: str) -> FoundSchema:
        """Return the newest schema of a subject. Raises ``InvalidConfig``."""

        async def find(reader: RegistryReader) -> FoundSchema:
            schema = await reader.schema_of(SubjectName.parse(subject), LATEST)
            if schema is None:
                raise InvalidConfig([f"the bucket has no schema of the subject {subject!r}"])
            return await self._resolved(reader, schema)

        return self._ask(find)

    def by_id(self, schema_id: int) -> FoundSchema | None:
        """Return the schema with the id, ``None`` if there is none."""

        async def find(reader: RegistryReader) -> FoundSchema | None:
            found = await reader.texts(self._root.context, [schema_id])
            if schema_id not in found:
                return None
            return await self._resolved(reader, found[schema_id].schema)

        return self._ask(find)

    def by_guid(self, guid: str) -> FoundSchema | None:
        """Return the schema with the guid, ``None`` if there is none."""
        schema_id = self._index.id_of(self._root.context, guid)
        return None if schema_id is None else self.by_id(schema_id)

    async def _resolved(self, reader: RegistryReader, schema: Schema) -> FoundSchema:
        try:
            known = await reader.resolve(self._root, schema.references, with_deleted=True)
        except RegistryRefusal as error:
            raise InvalidConfig([f"a schema in the bucket cannot be used: {error}"]) from None
        return FoundSchema(schema.schema_type, schema.text, tuple(known))

    def _ask(self, find: Callable[[RegistryReader], Coroutine[Any, Any, T]]) -> T:
        async def ask() -> T:
            async with opened_object_store(self._objects) as objects:
                return await find(RegistryReader(self._index.read_from(objects)))

        return _wait(ask)


async def _read_index(metadata: str, url: str) -> BucketIndex:
    async with opened_metadata_store(metadata) as store:
        item = await store.get(cluster_key())
    cluster_id = "" if item is None else Cluster.from_item(item).cluster_id
    async with opened_object_store(url) as objects:
        index, _ = await read_index(objects, cluster_id)
    return index


def _wait(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the work in a thread of its own: the caller's may have an event loop that runs."""
    with ThreadPoolExecutor(1, "tidelog-schemas") as thread:
        return thread.submit(lambda: asyncio.run(work())).result()
