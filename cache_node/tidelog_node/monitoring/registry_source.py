"""Metrics of the schema registry: its requests, schemas and subjects."""

from __future__ import annotations

from collections.abc import Callable

from tidelog_core.metadata.schema_records import (
    SCHEMA_SUBJECT_COLLECTION,
    SchemaSubject,
    schema_journal_key,
)
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.schema_registry.journal.journal_checkpoints import JournalHealth
from tidelog_core.schema_registry.reading import record_of
from tidelog_core.schemas.subject_names import SubjectName
from tidelog_core.turns import Turn

from tidelog_node.counters import SchemaTraffic
from tidelog_node.monitoring.request_source import histogram
from tidelog_node.monitoring.scrape import Scrape

COUNTED_EVERY_SECONDS = 60.0  # All subjects are read for it, if there was a change.


class RegistrySource:
    """Reads the counters of a registry, and counts its schemas."""

    def __init__(
        self,
        traffic: SchemaTraffic,
        store: MetadataStore,
        health: JournalHealth,
        *,
        clock: Callable[[], float],
    ) -> None:
        """``clock`` returns seconds, and is steady."""
        self._traffic = traffic
        self._health = health
        self._store = store
        self._clock = clock
        self._counted_at: float | None = None
        self._counted_version: int | None = None  # of the journal's position
        self._subjects = self._schemas = 0

    async def collect(self, scrape: Scrape) -> None:
        """Add the series."""
        for kind, durations in self._traffic.durations.items():
            scrape.add("tidelog_schema_registry_request_seconds", histogram(durations), kind)
        for (kind, outcome), count in self._traffic.counts.items():
            scrape.add("tidelog_schema_registry_requests_total", count, kind, outcome)
        scrape.add(
            "tidelog_schema_registry_journal_damaged_objects_total",
            self._health.damaged_object_count,
        )
        scrape.add(
            "tidelog_schema_registry_checkpoint_failures_total",
            self._health.failed_checkpoint_count,
        )
        await self._count()
        scrape.add("tidelog_schema_registry_subjects", self._subjects)
        scrape.add("tidelog_schema_registry_schemas", self._schemas)

    async def _count(self) -> None:
        now = self._clock()
        if self._counted_at is not None and now - self._counted_at < COUNTED_EVERY_SECONDS:
            return
        item = await self._store.get(schema_journal_key())
        version = 0 if item is None else item.version
        if version != self._counted_version:
            subjects, schemas, turn = 0, set[tuple[str, int]](), Turn()
            for one in await self._store.list(SCHEMA_SUBJECT_COLLECTION):
                await turn.step()
                subject = record_of(one)
                if not isinstance(subject, SchemaSubject):
                    continue  # Its versions are not known.
                context = SubjectName.parse(subject.subject).context
                subjects += bool(subject.live)
                schemas |= {(context, known.schema_id) for known in subject.versions}
            self._subjects, self._schemas = subjects, len(schemas)
            self._counted_version = version
        self._counted_at = now
