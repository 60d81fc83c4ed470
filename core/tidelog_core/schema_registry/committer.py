"""How the registry commits its changes: with a journal in a bucket, or without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidelog_core.errors import SchemasMovedOn, VersionConflict
from tidelog_core.metadata.schema_records import SchemaJournal, schema_journal_key
from tidelog_core.metadata.store import ABSENT, Check, MetadataStore, Write

JOURNAL = schema_journal_key()
JOURNAL_NAME = (JOURNAL.collection, JOURNAL.key)  # as errors name it


class Committer(Protocol):
    """Commits the registry's changes, each at the position that it was decided at."""

    async def begin(self) -> SchemaJournal | None:
        """Return the position that a change is decided at. Call it before all other reads."""

    async def commit(
        self, begun: SchemaJournal | None, writes: Sequence[Write], checks: Sequence[Check] = ()
    ) -> None:
        """Do all the writes or none. Durable on return. Raises ``VersionConflict``."""


class StoreCommitter:
    """Commits to the metadata store alone, for a registry without a bucket."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def begin(self) -> SchemaJournal | None:
        """Return ``None``."""
        return None

    async def commit(
        self, begun: SchemaJournal | None, writes: Sequence[Write], checks: Sequence[Check] = ()
    ) -> None:
        """Commit. Raises ``SchemasMovedOn`` if other processes keep a journal."""
        assert begun is None
        try:
            await self._store.commit(writes, checks=[*checks, Check(JOURNAL, ABSENT)])
        except VersionConflict as error:
            if JOURNAL_NAME in error.keys:
                problem = "its journal is in a bucket that this process has not"
                raise SchemasMovedOn(problem) from error
            raise
