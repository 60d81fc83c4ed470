"""Validates records that are produced to topics with schemas, before they are appended.

With ``confluent.value.schema.validation=true`` every value begins with the id of a schema that
its subject has, in the frame of Confluent's serializers; keys likewise. With
``tidelog.schema.validation.level=full`` the schema must also be able to read it. Null is allowed.
Nothing of a batch with a wrong record is appended, so its sequence counts as never sent.

Small batches are looked into here, all others in the inspection worker, which also reads values
with their schemas. Which schemas there are is read from the metadata store.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Set
from typing import NamedTuple

from tidelog_core.config import (
    RECORD_NAME_STRATEGY,
    TOPIC_NAME_STRATEGY,
    TopicConfig,
)
from tidelog_core.errors import CorruptItem, TidelogError
from tidelog_core.log.append_checks import validates_schemas
from tidelog_core.records.batch import HEADER_SIZE, LOG_OVERHEAD

from tidelog_node.handlers.produce.inspection import (
    CODEC_MASK,
    CODEC_POSITION,
    RECORD_COUNT_POSITION,
    InspectionResults,
)
from tidelog_node.inspection.inspector import BatchInspector, NotInspected
from tidelog_node.inspection.messages import FramesFound, Problem, RecordsRefused, SchemaUse
from tidelog_node.inspection.schema_checks import SchemaChecks
from tidelog_node.inspection.schema_frames import KEY, PROBLEMS_MAX, VALUE, frames_of
from tidelog_node.node_context import NodeContext
from tidelog_node.registry.known_schemas import CANDIDATES_MAX, KnownSchema, KnownSchemas
from tidelog_node.replicas.replica import Replica
from tidelog_node.wire.primitives import INT32
from tidelog_node.wire.produce import ProduceRequest

FULL = "full"
# Of a batch that is looked into in the event loop: about 1 ms, also if it has headers of two bytes.
RECORDS_HERE_MAX = 500
BYTES_HERE_MAX = 16_384
# Of the schemas of one batch, with those that they refer to: they are sent to the worker.
CHARACTERS_MAX = 4_000_000

Led = Mapping[bytes, Mapping[int, Replica]]


class _Rule(NamedTuple):
    """A topic's rule for the schemas of its keys or values."""

    part: str
    strategy: str


class ProduceSchemas:
    """Validates batches. For the tasks of one event loop."""

    def __init__(self, node: NodeContext, inspector: BatchInspector) -> None:
        self._inspector = inspector
        self._checks = SchemaChecks(node.health)
        inspector.close_with_it(self._checks.close)
        self._schemas = KnownSchemas(node.store, self._checks.names, time.monotonic)

    async def check(
        self, request: ProduceRequest, led_by: Led, results: InspectionResults, *, host: str
    ) -> None:
        """Note for each batch of a topic with schema validation whether it may be appended.

        The request's bytes must stay as they are.
        """
        place = -1
        for name, partitions in request.topics:
            led = led_by.get(name, {})
            for index, records in partitions:
                place += 1
                replica = led.get(index)
                if replica is None or not replica.checks_schemas:
                    continue
                # A batch that is refused already stays so: nobody looks at its schemas.
                refusal = results.refusal(place)
                if refusal is None and records is not None and _is_whole(records):
                    refusal = await self._refusal(replica, records, host)
                    # A request may have thousands of batches, and none of them may wait.
                    await asyncio.sleep(0)
                results.note_schemas(place, refusal)

    async def _refusal(
        self, replica: Replica, records: memoryview, host: str
    ) -> TidelogError | None:
        config: TopicConfig | None = None
        refusal: TidelogError | None = None
        while config is not replica.config:  # The settings may change during the check.
            config = replica.config
            try:
                refusal = await self._refusal_by(config, replica.partition.topic, records, host)
            except TidelogError as error:
                refusal = error.with_traceback(None)
        return refusal

    async def _refusal_by(
        self, config: TopicConfig, topic: str, records: memoryview, host: str
    ) -> TidelogError | None:
        rules = {rule.part: rule for rule in _rules_of(config)}
        if not rules:
            return None
        parts = tuple(rules)
        if _is_small(records):
            found = frames_of(records, parts)
        else:
            found = await self._inspector.frames(records, parts, host=host)
        found = await self._with_ids(found, rules, topic, host)
        schemas, problems = await self._look_up(found, rules, topic, host)
        if not problems and config.tidelog_schema_validation_level == FULL:
            characters = sum(one.characters for one in schemas.values())
            if characters > CHARACTERS_MAX:
                text = f"its schemas have {characters} characters, a batch may have"
                raise RecordsRefused([(0, f"{text} {CHARACTERS_MAX}")])
            sources = tuple(one.source for one in schemas.values())
            problems = await self._checks.values(records, parts, sources, found, host=host)
        return RecordsRefused(problems[:PROBLEMS_MAX]) if problems else None

    async def _with_ids(
        self, found: FramesFound, rules: Mapping[str, _Rule], topic: str, host: str
    ) -> FramesFound:
        """Return the schemas, with ids for those that records name by guid.

        One that is not registered keeps the id 0, which no schema has.
        """
        if not any(one.guid for one in found.uses):
            return found
        try:
            uses = [
                one._replace(schema_id=await self._id_of(one, rules[one.part], topic, host))
                if one.guid
                else one
                for one in found.uses
            ]
        except TidelogError as error:
            raise NotInspected(f"schemas cannot be looked up: {error}") from None
        return found._replace(uses=uses)

    async def _id_of(self, use: SchemaUse, rule: _Rule, topic: str, host: str) -> int:
        """Return the id of a schema by its guid, of several the one of the topic's subject."""
        ids = await self._schemas.ids_of(use.guid, host=host)
        if rule.strategy == TOPIC_NAME_STRATEGY:
            subject = f"{topic}-{rule.part}"
            own = await self._schemas.id_in(subject, ids, host=host)
            if own is None:  # An import may have given it one more since.
                ids = await self._schemas.ids_of(use.guid, host=host, is_new=True)
                own = await self._schemas.id_in(subject, ids, host=host)
            if own is not None:
                return own
        return min(ids, default=0)

    async def _look_up(
        self, found: FramesFound, rules: Mapping[str, _Rule], topic: str, host: str
    ) -> tuple[dict[int, KnownSchema], list[Problem]]:
        """Return the schemas, and the faults of records that have no such schema."""
        problems = list(found.problems)
        schemas: dict[int, KnownSchema] = {}
        try:
            known = await asyncio.gather(
                *(self._schemas.find(one.schema_id, host=host) for one in found.uses)
            )
            for use, schema in zip(found.uses, known, strict=True):
                if schema is None:
                    named = use.guid or use.schema_id
                    wrong = f"the {use.part}'s schema {named} is not registered"
                else:
                    schemas[use.schema_id] = schema
                    wrong = await self._wrong_subject(
                        use, schema, rules[use.part], topic, host=host
                    )
                if wrong:
                    problems += [(index, wrong) for index in use.indexes]
        except TidelogError as error:
            raise NotInspected(f"schemas cannot be looked up: {error}") from None
        problems.sort()
        return schemas, problems

    async def _wrong_subject(
        self, use: SchemaUse, schema: KnownSchema, rule: _Rule, topic: str, *, host: str
    ) -> str:
        """Return the fault of the schema's subjects; empty if there is none."""
        if rule.strategy == TOPIC_NAME_STRATEGY:
            subject = f"{topic}-{rule.part}"
            if await self._schemas.id_in(subject, {use.schema_id}, host=host) is not None:
                return ""
            return _wrong(use, f"subject {subject}")
        try:
            names = await self._schemas.names(schema, host=host)
        except RecordsRefused as refused:  # To this host: for others its names stay known.
            return refused.record_messages[0]
        prefix = "" if rule.strategy == RECORD_NAME_STRATEGY else f"{topic}-"
        ids: Set[int] = schema.ids if use.guid else {use.schema_id}
        uses = schema.uses_in(names, ids, prefix=prefix)
        is_right = await self._is_in_any(uses, host)
        if not is_right:
            # A subject may have the schema now that had it not when it was looked up.
            newer = await self._schemas.find(use.schema_id, host=host, is_new=True)
            if newer is not None:
                ids = newer.ids if use.guid else ids
                more = newer.uses_in(names, ids, prefix=prefix) - uses
                is_right = await self._is_in_any(more, host)
                uses |= more
        return "" if is_right else _wrong(use, _looked_at({subject for subject, _ in uses}))

    async def _is_in_any(self, uses: Set[tuple[str, int]], host: str) -> bool:
        """Return whether a subject has one of its ids in a version that is not deleted.

        Raises ``CorruptItem`` for a malformed subject if no other has.
        """
        ids: defaultdict[str, set[int]] = defaultdict(set)
        for subject, schema_id in uses:
            ids[subject].add(schema_id)
        malformed: CorruptItem | None = None
        for subject in sorted(ids)[:CANDIDATES_MAX]:
            try:
                if await self._schemas.id_in(subject, ids[subject], host=host) is not None:
                    return True
            except CorruptItem as error:
                malformed = error
        if malformed is not None:
            raise malformed
        return False


def _wrong(use: SchemaUse, wanted: str) -> str:
    return f"the {use.part}'s schema {use.schema_id} is of no version of {wanted}"


def _looked_at(subjects: Set[str]) -> str:
    if len(subjects) <= CANDIDATES_MAX:
        return "the subject of its record"
    return f"the first {CANDIDATES_MAX} of {len(subjects)} subjects of its record"


def _rules_of(config: TopicConfig) -> list[_Rule]:
    if not validates_schemas(config):
        return []
    rules = []
    if config.confluent_key_schema_validation:
        rules.append(_Rule(KEY, config.confluent_key_subject_name_strategy))
    if config.confluent_value_schema_validation:
        rules.append(_Rule(VALUE, config.confluent_value_subject_name_strategy))
    return rules


def _is_whole(records: memoryview) -> bool:
    if len(records) < HEADER_SIZE:
        return False
    size: int = INT32.unpack_from(records, 8)[0]
    return size + LOG_OVERHEAD == len(records)


def _is_small(records: memoryview) -> bool:
    (count,) = INT32.unpack_from(records, RECORD_COUNT_POSITION)
    is_compressed = bool(records[CODEC_POSITION] & CODEC_MASK)
    return not is_compressed and count <= RECORDS_HERE_MAX and len(records) <= BYTES_HERE_MAX
