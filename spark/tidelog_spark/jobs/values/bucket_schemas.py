"""The schemas of a topic's values, from the registry's journal in the bucket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, replace

from tidelog_core.errors import InvalidConfig
from tidelog_core.metadata.location import opened_metadata_store
from tidelog_core.metadata.records import Cluster, cluster_key
from tidelog_core.metadata.schema_records import SubjectVersion
from tidelog_core.objects.location import opened_object_store
from tidelog_core.schema_registry.journal.bucket_items import BucketIndex, read_index
from tidelog_core.schema_registry.reading import RegistryReader
from tidelog_core.schemas.languages import Known
from tidelog_core.schemas.model import Schema
from tidelog_core.schemas.refusals import RegistryRefusal
from tidelog_core.schemas.subject_names import SubjectName

logger = logging.getLogger(__name__)

LATEST = -1


@dataclass(frozen=True, slots=True)
class ResolvedSchema:
    """A schema with the texts that it refers to."""

    schema: Schema
    known: Known


@dataclass(frozen=True, slots=True)
class ColumnsSchema:
    """The version of a subject that gives the columns."""

    subject: SubjectName
    version: int
    schema_id: int
    is_latest: bool  # the newest version was asked for

    def __str__(self) -> str:
        return f"schema {self.schema_id} (version {self.version} of {self.subject.text})"


@dataclass(frozen=True, slots=True)
class RegistrySchemas:
    """The schemas that values may have, and the one that gives the columns."""

    objects: str  # the bucket
    index: BucketIndex
    columns: ColumnsSchema
    reader: ResolvedSchema  # of the columns

    @property
    def context(self) -> str:
        """The context of the ids in values."""
        return self.columns.subject.context

    def load(self, ids: Collection[int]) -> dict[int, ResolvedSchema | str]:
        """Return the schemas with these ids, or why there is none. Raises the store's errors."""
        return asyncio.run(self._load(ids))

    def read_again(self) -> RegistrySchemas:
        """Return these with what the bucket has by now; columns stay. Raises the store's errors."""
        return asyncio.run(self._read_again())

    def renewed(self) -> RegistrySchemas:
        """Return these with the columns of the version that is the latest now, if that was asked.

        Raises ``InvalidConfig`` and the store's errors.
        """
        version = LATEST if self.columns.is_latest else self.columns.version
        read = _read_bucket(self.objects, self.index.cluster_id, self.columns.subject, version)
        return asyncio.run(read)

    async def _read_again(self) -> RegistrySchemas:
        async with opened_object_store(self.objects) as objects:
            index, _ = await read_index(objects, self.index.cluster_id)
        return replace(self, index=index)

    async def _load(self, ids: Collection[int]) -> dict[int, ResolvedSchema | str]:
        async with opened_object_store(self.objects) as objects:
            reader = RegistryReader(self.index.read_from(objects))
            found: dict[int, ResolvedSchema | str] = {}
            texts = await reader.texts(self.context, ids)
            for one in ids:
                if one not in texts:
                    found[one] = f"the bucket has no schema with its id, {one}"
                    continue
                try:
                    found[one] = await _resolved(reader, self.context, texts[one].schema)
                except RegistryRefusal as error:
                    found[one] = f"its schema {one}: {error}"
            return found


def read_schemas(
    metadata: str, objects: str, *, subject: str, version: int = LATEST
) -> RegistrySchemas:
    """Return the schemas of the bucket, to be read as a version of a subject.

    An older version is found even if it was deleted softly. Needs neither a node nor a registry.
    Raises ``InvalidConfig`` if there is no such version, and the stores' errors.
    """
    return asyncio.run(_read_schemas(metadata, objects, SubjectName.parse(subject), version))


async def _read_schemas(
    metadata: str, url: str, name: SubjectName, version: int
) -> RegistrySchemas:
    async with opened_metadata_store(metadata) as store:
        item = await store.get(cluster_key())
    cluster_id = "" if item is None else Cluster.from_item(item).cluster_id
    return await _read_bucket(url, cluster_id, name, version)


async def _read_bucket(
    url: str, cluster_id: str, name: SubjectName, version: int
) -> RegistrySchemas:
    async with opened_object_store(url) as objects:
        index, problems = await read_index(objects, cluster_id)
        for problem in problems:
            logger.warning("object of the schema journal is damaged", extra={"reason": problem})
        reader = RegistryReader(index.read_from(objects))
        found = await _version_of(reader, name, version)
        text = None if found is None else await reader.text(name.context, found.schema_id)
        if found is None or text is None:
            raise InvalidConfig([await _missing(reader, name, version)])
        try:
            resolved = await _resolved(reader, name.context, text.schema)
        except RegistryRefusal as error:
            raise InvalidConfig([f"the schema of {name.text}: {error}"]) from None
    columns = ColumnsSchema(name, found.version, found.schema_id, version == LATEST)
    return RegistrySchemas(url, index, columns, resolved)


async def _version_of(
    reader: RegistryReader, name: SubjectName, version: int
) -> SubjectVersion | None:
    """Return a version, also one that was deleted softly, which is never the latest."""
    subject = await reader.subject(name)
    if version == LATEST:
        return subject.live[-1] if subject.live else None
    return next((one for one in subject.versions if one.version == version), None)


async def _missing(reader: RegistryReader, name: SubjectName, version: int) -> str:
    found = await reader.subject(name)
    if not found.versions:
        names = (await reader.subject_names())[:10]
        known = f"; it has {', '.join(names)}" if names else ""
        return f"the bucket has no schema of the subject {name.text}{known}"
    if version == LATEST:
        return f"all versions of {name.text} are deleted: name one"
    known = ", ".join(str(one.version) for one in found.versions[-10:])
    return f"{name.text} has no version {version}; it has {known}"


async def _resolved(reader: RegistryReader, context: str, schema: Schema) -> ResolvedSchema:
    name = SubjectName(context, "")
    known = await reader.resolve(name, schema.references, with_deleted=True)
    return ResolvedSchema(schema, known)
