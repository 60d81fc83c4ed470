"""The registry's schemas as Produce needs them: by id, and whether a subject has the id.

Read from the metadata store, and kept for a while: a schema is found again after
``KEPT_SECONDS``, a missing one after ``MISSING_SECONDS``. Callers that ask for the same at once
share one read if they are of one host: hosts take turns, and wait for no other's queue. All that is
kept is bounded.
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from tidelog_core.metadata.store import MetadataStore
from tidelog_core.schema_registry.reading import RegistryReader
from tidelog_core.schemas.refusals import RegistryRefusal
from tidelog_core.schemas.subject_names import DEFAULT_CONTEXT, SubjectName

from tidelog_node.inspection.schema_messages import SchemaSource, TooManyNames
from tidelog_node.inspection.worker_process import NotInspected
from tidelog_node.registry.host_slots import HostSlots, TooManyWait

KEPT_SECONDS = 30.0
MISSING_SECONDS = 1.0
SCHEMAS_MAX = 500
CHARACTERS_MAX = 16_000_000  # of the texts that are kept, and of the names
SUBJECTS_MAX = 1_000
IDS_MAX = 100_000  # of the schemas that are known by their guids
CANDIDATES_MAX = 100  # subjects of one schema that are looked at for a record
READS_MAX = 16  # at a time
HOST_READS_MAX = 4  # of one host
HOST_WAITING_MAX = 1_000  # reads; a batch has up to 128

K = TypeVar("K")
V = TypeVar("V")


class NamesOf(Protocol):
    """Finds the names in a schema."""

    def __call__(self, schema: SchemaSource, *, host: str) -> Awaitable[list[str]]:
        """Return them; ``host`` is who asks."""


@dataclass(frozen=True, slots=True)
class KnownSchema:
    """A schema under its id."""

    source: SchemaSource
    ids: frozenset[int]  # imports may give one schema several
    subjects: Mapping[str, frozenset[int]]  # the ids that each has it under; deleted ones too

    def uses_in(self, names: Set[str], ids: Set[int], *, prefix: str) -> set[tuple[str, int]]:
        """Return the subjects that have it under one of some ids, with these.

        Only subjects with one of the names, after the prefix. It takes as long as there are
        subjects: a schema may have many more names.
        """
        start = len(prefix)
        return {
            (subject, each)
            for subject, known in self.subjects.items()
            if subject.startswith(prefix) and subject[start:] in names
            for each in known & ids
        }

    @property
    def characters(self) -> int:
        """The length of all texts."""
        return self.source.characters


class _Names(NamedTuple):
    """The names after which subjects of a schema may be named, or the refusal."""

    names: frozenset[str]
    character_count: int = 0
    refusal: TooManyNames | None = None


class KnownSchemas:
    """Finds schemas. For the tasks of one event loop."""

    def __init__(self, store: MetadataStore, names_of: NamesOf, clock: Callable[[], float]) -> None:
        """``clock`` counts seconds. ``names_of`` parses elsewhere: that may take long."""
        self._reader = RegistryReader(store)
        self._names_of = names_of
        slots = _slots()
        self._schemas = _Kept[int, KnownSchema](
            clock, slots, SCHEMAS_MAX, size_max=CHARACTERS_MAX, size_of=lambda one: one.characters
        )
        self._subjects = _Kept[str, frozenset[int]](clock, slots, SUBJECTS_MAX)
        self._guids = _Kept[str, frozenset[int]](
            clock, slots, SCHEMAS_MAX, size_max=IDS_MAX, size_of=len
        )
        # Reads do not wait for those that wait for the names' process.
        self._names = _Kept[int, _Names](
            clock,
            _slots(),
            SCHEMAS_MAX,
            size_max=CHARACTERS_MAX,
            size_of=lambda one: one.character_count,
        )

    async def find(self, schema_id: int, *, host: str, is_new: bool = False) -> KnownSchema | None:
        """Return the schema of the default context. Raises ``StoreUnavailable``.

        ``is_new``: with the subjects that it has now, not ``KEPT_SECONDS`` ago.
        """
        older_than_s = MISSING_SECONDS if is_new else None
        return await self._schemas.get(
            schema_id, host, lambda: self._read(schema_id), older_than_s=older_than_s
        )

    async def ids_of(self, guid: str, *, host: str, is_new: bool = False) -> frozenset[int]:
        """Return the ids of a schema in the default context. Raises ``StoreUnavailable``.

        ``is_new``: as it has them now, not ``KEPT_SECONDS`` ago.
        """

        async def read() -> frozenset[int] | None:
            identity = await self._reader.identity(DEFAULT_CONTEXT, guid)
            return None if identity is None else frozenset(one.schema_id for one in identity.uses)

        older_than_s = MISSING_SECONDS if is_new else None
        ids = await self._guids.get(guid, host, read, older_than_s=older_than_s)
        return ids or frozenset()

    async def id_in(self, subject: str, wanted: Set[int], *, host: str) -> int | None:
        """Return one of the ids that a version of the subject, not deleted, has."""

        async def read() -> frozenset[int] | None:
            found = await self._reader.subject(SubjectName.parse(subject))
            return frozenset(one.schema_id for one in found.live) or None

        ids = await self._subjects.get(subject, host, read)
        if ids is not None and wanted.isdisjoint(ids):
            # It may have a new version.
            ids = await self._subjects.get(subject, host, read, older_than_s=MISSING_SECONDS)
        return min(wanted & (ids or frozenset()), default=None)

    async def names(self, schema: KnownSchema, *, host: str) -> frozenset[str]:
        """Return the names that a subject may have: of the schema's record, messages, or title.

        Raises ``RecordsRefused`` if the schema is too costly for the host or has too many names,
        and ``NotInspected``.
        """

        async def find() -> _Names | None:
            try:
                found = await self._names_of(schema.source, host=host)
            except TooManyNames as refusal:  # Not to be found out again for each batch.
                return _Names(frozenset(), refusal=refusal.with_traceback(None))
            return _Names(frozenset(found), sum(map(len, found))) if found else None

        known = await self._names.get(schema.source.schema_id, host, find)
        if known is None:
            return frozenset()
        if known.refusal is not None:
            raise known.refusal.with_traceback(None)
        return known.names

    async def _read(self, schema_id: int) -> KnownSchema | None:
        reader, root = self._reader, SubjectName(DEFAULT_CONTEXT, "")
        text = await reader.text(DEFAULT_CONTEXT, schema_id)
        if text is None:
            return None
        schema = text.schema
        identity = await reader.identity(DEFAULT_CONTEXT, schema.guid)
        try:
            known = tuple(await reader.resolve(root, schema.references))
        except RegistryRefusal:
            return None  # It is being deleted, with what it refers to.
        uses = () if identity is None else identity.uses
        source = SchemaSource(
            schema_id, str(schema.schema_type), schema.text, known, guid=schema.guid
        )
        subjects: dict[str, frozenset[int]] = {}
        for one in uses:
            subjects[one.subject] = subjects.get(one.subject, frozenset()) | {one.schema_id}
        return KnownSchema(source, frozenset(one.schema_id for one in uses), subjects)


def _slots() -> HostSlots:
    return HostSlots(READS_MAX, of_host_max=HOST_READS_MAX, waiting_max=HOST_WAITING_MAX)


class _Kept(Generic[K, V]):
    """The values that were read lately, by key, and the reads that are under way.

    What was not needed for the longest time is forgotten first. A value that alone has more than
    ``size_max`` is kept until the next one.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        slots: HostSlots,
        count_max: int,
        *,
        size_max: int = sys.maxsize,
        size_of: Callable[[V], int] = lambda _: 0,
    ) -> None:
        self._clock = clock
        self._slots = slots
        self._count_max = count_max
        self._size_max = size_max
        self._size_of = size_of
        self._size = 0  # of all values that are kept
        self._found: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._missing: OrderedDict[K, float] = OrderedDict()
        self._reading: dict[tuple[K, str], asyncio.Task[V | None]] = {}  # by host too

    async def get(
        self,
        key: K,
        host: str,
        read: Callable[[], Awaitable[V | None]],
        *,
        older_than_s: float | None = None,
    ) -> V | None:
        """Return the value, read again if it is older than that, by default ``KEPT_SECONDS``.

        Raises ``StoreUnavailable``, and ``NotInspected`` if the host waits for too many.
        """
        kept_s = KEPT_SECONDS if older_than_s is None else older_than_s
        known = self._known(key, kept_s)
        if known is not None:
            return known[0]
        task = self._reading.get((key, host))
        if task is None:
            task = asyncio.get_running_loop().create_task(self._note(key, host, read, kept_s))
            self._reading[key, host] = task
            task.add_done_callback(lambda _: self._reading.pop((key, host), None))
        return await asyncio.shield(task)

    def _known(self, key: K, kept_s: float) -> tuple[V | None] | None:
        """Return the known value of the key; ``None``: it has to be read."""
        now = self._clock()
        kept = self._found.get(key)
        if kept is not None and now - kept[0] < kept_s:
            self._found.move_to_end(key)
            return (kept[1],)
        missed_at = self._missing.get(key)
        if missed_at is not None and now - missed_at < MISSING_SECONDS:
            return (None,)
        return None

    async def _note(
        self, key: K, host: str, read: Callable[[], Awaitable[V | None]], kept_s: float
    ) -> V | None:
        try:
            async with self._slots.slot(host):
                known = self._known(key, kept_s)  # by now, of another host
                if known is not None:
                    return known[0]
                return self._kept(key, await read())
        except TooManyWait:
            raise NotInspected(f"{HOST_WAITING_MAX} look-ups of its host wait") from None

    def _kept(self, key: K, value: V | None) -> V | None:
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
