"""The registry's schemas as Produce needs them: by id, and whether a subject has the id.

Read from the metadata store, and kept for a while: a schema is found again after
``KEPT_SECONDS``, a missing one after ``MISSING_SECONDS``. Callers that ask for the same at once
share one read. All that is kept is bounded.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidelog_core.metadata.store import MetadataStore
from tidelog_core.schema_registry.reading import RegistryReader
from tidelog_core.schemas.avro.parsing import parse_avro
from tidelog_core.schemas.languages import parse
from tidelog_core.schemas.model import Reference, SchemaType
from tidelog_core.schemas.parsed import InvalidSchema
from tidelog_core.schemas.refusals import RegistryRefusal
from tidelog_core.schemas.subject_names import DEFAULT_CONTEXT, SubjectName

KEPT_SECONDS = 30.0
MISSING_SECONDS = 1.0
SCHEMAS_MAX = 500
CHARACTERS_MAX = 16_000_000  # of the texts that are kept
SUBJECTS_MAX = 1_000
NAMES_MAX = 1_000  # of the messages of one schema
CANDIDATES_MAX = 10  # subjects that are looked at for one schema
READS_MAX = 16  # at a time

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class KnownSchema:
    """A schema under its id."""

    schema_id: int
    schema_type: SchemaType
    text: str
    known: tuple[tuple[Reference, str], ...]  # those that it refers to, as codecs need them
    subjects: frozenset[str]  # that have it, deleted versions too
    names: frozenset[str]  # of its record, or of its messages

    @property
    def characters(self) -> int:
        """The length of all texts."""
        return len(self.text) + sum(len(text) for _, text in self.known)


class KnownSchemas:
    """Finds schemas. For the tasks of one event loop."""

    def __init__(
        self, store: MetadataStore, executor: Executor, clock: Callable[[], float]
    ) -> None:
        """``clock`` counts seconds. The executor parses: that may take long."""
        self._reader = RegistryReader(store)
        self._executor = executor
        self._reads = asyncio.Semaphore(READS_MAX)
        self._schemas = _Kept[int, KnownSchema](
            clock, SCHEMAS_MAX, size_max=CHARACTERS_MAX, size_of=lambda one: one.characters
        )
        self._subjects = _Kept[str, frozenset[int]](clock, SUBJECTS_MAX)

    async def find(self, schema_id: int, *, is_new: bool = False) -> KnownSchema | None:
        """Return the schema of the default context. Raises ``StoreUnavailable``.

        ``is_new``: with the subjects that it has now, not ``KEPT_SECONDS`` ago.
        """
        older_than_s = MISSING_SECONDS if is_new else None
        return await self._schemas.get(
            schema_id, lambda: self._read(schema_id), older_than_s=older_than_s
        )

    async def has(self, subject: str, schema_id: int) -> bool:
        """Return whether a version of the subject, not deleted, has the id."""

        async def read() -> frozenset[int] | None:
            async with self._reads:
                found = await self._reader.subject(SubjectName.parse(subject))
            return frozenset(one.schema_id for one in found.live) or None

        ids = await self._subjects.get(subject, read)
        if ids is not None and schema_id not in ids:
            # It may have a new version.
            ids = await self._subjects.get(subject, read, older_than_s=MISSING_SECONDS)
        return ids is not None and schema_id in ids

    async def _read(self, schema_id: int) -> KnownSchema | None:
        reader, root = self._reader, SubjectName(DEFAULT_CONTEXT, "")
        async with self._reads:
            text = await reader.text(DEFAULT_CONTEXT, schema_id)
            if text is None:
                return None
            schema = text.schema
            identity = await reader.identity(DEFAULT_CONTEXT, schema.guid)
            try:
                known = tuple(await reader.resolve(root, schema.references))
            except RegistryRefusal:
                return None  # It is being deleted, with what it refers to.
        loop = asyncio.get_running_loop()
        names = await loop.run_in_executor(
            self._executor, names_in, schema.schema_type, schema.text, known
        )
        uses = () if identity is None else identity.uses
        subjects = frozenset(one.subject for one in uses if one.schema_id == schema_id)
        return KnownSchema(
            schema_id, schema.schema_type, schema.text, known, subjects, frozenset(names)
        )


def names_in(
    schema_type: SchemaType, text: str, known: tuple[tuple[Reference, str], ...]
) -> list[str]:
    """Return what subjects may be named after: a record, messages, or a title."""
    try:
        if schema_type is SchemaType.AVRO:
            of, _ = parse_avro(text, [other for _, other in known])
            return [of.full_name] if of.full_name else []
        if schema_type is SchemaType.JSON:
            document = json.loads(text)
            title = document.get("title") if isinstance(document, dict) else None
            return [title] if isinstance(title, str) else []
        found = parse(schema_type, text, known)  # Refused if the node has no such library.
        from tidelog_core.schemas.protobuf.names import messages
        from tidelog_core.schemas.protobuf.schema import ProtobufSchema

        assert isinstance(found, ProtobufSchema)
        return [name for _, name in messages(found.file)][:NAMES_MAX]
    except (InvalidSchema, ValueError, RecursionError):
        return []


class _Kept(Generic[K, V]):
    """What was read lately, for each key, and what is being read.

    What was not needed for the longest time is forgotten first. A value that alone has more than
    ``size_max`` is kept until the next one.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        count_max: int,
        *,
        size_max: int = sys.maxsize,
        size_of: Callable[[V], int] = lambda _: 0,
    ) -> None:
        self._clock = clock
        self._count_max = count_max
        self._size_max = size_max
        self._size_of = size_of
        self._size = 0  # of all values that are kept
        self._found: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._missing: OrderedDict[K, float] = OrderedDict()
        self._reading: dict[K, asyncio.Task[V | None]] = {}

    async def get(
        self,
        key: K,
        read: Callable[[], Awaitable[V | None]],
        *,
        older_than_s: float | None = None,
    ) -> V | None:
        """Return the value, read again if it is older than that, by default ``KEPT_SECONDS``."""
        now = self._clock()
        kept = self._found.get(key)
        if kept is not None and now - kept[0] < (
            KEPT_SECONDS if older_than_s is None else older_than_s
        ):
            self._found.move_to_end(key)
            return kept[1]
        missed_at = self._missing.get(key)
        if missed_at is not None and now - missed_at < MISSING_SECONDS:
            return None
        task = self._reading.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._note(key, read))
            self._reading[key] = task
            task.add_done_callback(lambda _: self._reading.pop(key, None))
        return await asyncio.shield(task)

    async def _note(self, key: K, read: Callable[[], Awaitable[V | None]]) -> V | None:
        value = await read()
        now = self._clock()
        known = self._found.pop(key, None)
        if known is not None:
            self._size -= self._size_of(known[1])
        self._missing.pop(key, None)
        if value is None:
            self._missing[key] = now
            if len(self._missing) > self._count_max:
                self._missing.popitem(last=False)
            return None
        self._found[key] = now, value
        self._size += self._size_of(value)
        while len(self._found) > self._count_max or (
            self._size > self._size_max and len(self._found) > 1
        ):
            _, (_, oldest) = self._found.popitem(last=False)
            self._size -= self._size_of(oldest)
        return value
