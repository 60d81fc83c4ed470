"""Inspects the records of a Produce request before they are appended.

Compacted topics need a key in every record, and some topics have a codec of their own. Both checks
cost time by the record and by the byte. A request may use as much as the limits here allow. The
limits grow with its bytes, so that a client cannot buy much time with few bytes. If a request needs
more, ``BatchInspector`` inspects all its batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress

from tidelog_core.clock import wall_clock_ms
from tidelog_core.config import TopicConfig
from tidelog_core.errors import TidelogError
from tidelog_core.log.append_checks import CheckedBatches, check_contents, check_headers
from tidelog_core.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    InspectionBudget,
    InspectionBudgetExceeded,
)

from tidelog_node.inspection.inspector import BatchInspector, NotInspected
from tidelog_node.replicas.replica import Replica
from tidelog_node.wire.primitives import INT32
from tidelog_node.wire.produce import ProduceRequest, ProduceTopic

# Of one request: about 2 ms of the event loop.
RECORDS_MAX = 2_000
DECOMPRESSED_BYTES_MAX = 1_048_576
CONVERTED_BYTES_MAX = 32_768
# Of one batch, compressed or not; most are well within it.
BYTES_PER_RECORD_MIN = 8
# Up to this size the append itself checks the uncompressed batches of a request.
PLAIN_BYTES_MAX = 16_384

# In a batch.
CODEC_POSITION, CODEC_MASK = 22, 0x7
RECORD_COUNT_POSITION = 57

Led = Mapping[bytes, Mapping[int, Replica]]


class InspectionResults:
    """The results of inspecting a request's batches before they are appended.

    A batch is identified by its place, the number of batches before it in the request, over all
    topics: its bytes may be copied, and a partition may be named more than once.
    """

    __slots__ = ("_budget", "_results", "_schemas", "is_of_copy", "is_spent")

    def __init__(self, *, is_of_copy: bool) -> None:
        self.is_of_copy = is_of_copy  # the batches stay in place after the handling ends
        self.is_spent = False  # a batch exceeded the limits; no later one is inspected here
        self._schemas: dict[int, TidelogError | None] = {}  # by place; None: they are right
        self._results: dict[int, tuple[TopicConfig, CheckedBatches | TidelogError]] = {}
        self._budget = InspectionBudget(
            records=RECORDS_MAX,
            headers=RECORDS_MAX,
            size_bytes=DECOMPRESSED_BYTES_MAX,
            converted_bytes=CONVERTED_BYTES_MAX,
        )

    def inspect(self, place: int, records: memoryview, config: TopicConfig) -> None:
        """Inspect a batch: its header always, its records within the rest of the limits.

        Raises ``InspectionBudgetExceeded``.
        """
        now_ms = wall_clock_ms()
        try:
            headers = check_headers(records, config, now_ms=now_ms)
            if self.is_spent:
                raise InspectionBudgetExceeded("the batches before took the time")
            (count,) = INT32.unpack_from(records, RECORD_COUNT_POSITION)
            if count * BYTES_PER_RECORD_MIN > len(records):
                raise InspectionBudgetExceeded(f"{count} records in {len(records)} bytes")
            found = check_contents(records, headers, config, now_ms=now_ms, budget=self._budget)
        except InspectionBudgetExceeded:
            self.is_spent = True
            raise
        except TidelogError as error:
            self.note(place, config, error)
        else:
            self.note(place, config, found)

    def note(self, place: int, config: TopicConfig, found: CheckedBatches | TidelogError) -> None:
        """Keep the result of inspecting a batch with these settings, or its refusal."""
        self._results[place] = config, found

    def refusal(self, place: int) -> TidelogError | None:
        """Return the known refusal of the batch."""
        known = self._results.get(place)
        return known[1] if known is not None and isinstance(known[1], TidelogError) else None

    def note_schemas(self, place: int, refusal: TidelogError | None) -> None:
        """Keep whether the batch's schemas are right."""
        self._schemas[place] = refusal

    def require_schemas(self, place: int) -> None:
        """Raise the refusal of the batch's schemas, and ``NotInspected`` if nobody looked."""
        if place not in self._schemas:
            raise NotInspected("the topic has changed while the batch waited")
        refusal = self._schemas[place]
        if refusal is not None:
            raise refusal

    def without_refused(self, request: ProduceRequest) -> ProduceRequest:
        """Return the request with the refused batches cut down to their headers.

        Nothing is copied here; a later copy becomes smaller.
        """
        topics: list[ProduceTopic] = []
        place = -1
        for name, partitions in request.topics:
            kept: list[tuple[int, memoryview | None]] = []
            for index, records in partitions:
                place += 1
                if records is not None and self.refusal(place) is not None:
                    kept.append((index, records[:HEADER_SIZE]))
                else:
                    kept.append((index, records))
            topics.append((name, kept))
        return dataclasses.replace(request, topics=topics)

    def for_copy(self) -> InspectionResults:
        """Return the results that hold for copied batches: the refusals."""
        copied = InspectionResults(is_of_copy=True)
        for place, (config, found) in self._results.items():
            if isinstance(found, TidelogError):
                copied.note(place, config, found)
        return copied

    def checked(self, place: int, records: memoryview, config: TopicConfig) -> CheckedBatches:
        """Return the result of inspecting a whole batch with these settings.

        If there is none for exactly these (the topic's have changed, the partition has come to this
        node, the bytes were copied since), the batch is inspected now, within the limits of this
        module: the event loop never does more. Raises the batch's refusal, and ``NotInspected`` if
        the limits do not suffice.
        """
        known = self._results.get(place)
        if known is None or known[0] is not config:
            try:
                self.inspect(place, records, config)
            except InspectionBudgetExceeded:
                raise NotInspected("the topic has changed while the batch waited") from None
            known = self._results[place]
        found = known[1]
        if isinstance(found, TidelogError):
            raise found
        return found


def needs_inspection(request: ProduceRequest, led_by: Led) -> bool:
    """Whether inspecting the records may cost more than their size suggests.

    The append checks all other batches itself.
    """
    plain_bytes = 0
    for name, partitions in request.topics:
        led = led_by.get(name)
        if led is None:
            continue
        for index, records in partitions:
            replica = led.get(index)
            if replica is None or not replica.inspects_records or records is None:
                continue
            if replica.checks_schemas:
                return True
            plain_bytes += len(records)
            if plain_bytes > PLAIN_BYTES_MAX:
                return True
            if len(records) >= HEADER_SIZE and records[CODEC_POSITION] & CODEC_MASK:
                return True
    return False


def checks_schemas(request: ProduceRequest, led_by: Led) -> bool:
    """Whether a batch is for a topic with schema validation: schemas have to be looked up."""
    for name, partitions in request.topics:
        led = led_by.get(name, {})
        for index, _ in partitions:
            replica = led.get(index)
            if replica is not None and replica.checks_schemas:
                return True
    return False


class ProduceInspector:
    """Inspects the batches of Produce requests, here or in the inspector's process."""

    def __init__(self, inspector: BatchInspector) -> None:
        self._inspector = inspector

    def inspect(self, request: ProduceRequest, led_by: Led) -> InspectionResults:
        """Return the results; ``is_spent`` is set if the batches exceed the limits.

        Refusals by header are complete even then.
        """
        results = InspectionResults(is_of_copy=False)
        for place, replica, records in _batches_to_inspect(request, led_by):
            with suppress(InspectionBudgetExceeded):
                results.inspect(place, records, replica.config)
        return results

    async def inspect_in_worker(
        self, request: ProduceRequest, led_by: Led, results: InspectionResults, *, host: str
    ) -> None:
        """Add the inspector's results and refusals for the batches that are whole.

        The inspections take turns with those of other hosts. The request's bytes must stay as they
        are.
        """
        for place, replica, records in _batches_to_inspect(request, led_by):
            config = None
            while replica.config is not config:  # The settings may change during the inspection.
                config = replica.config
                found: CheckedBatches | TidelogError
                try:
                    found = await self._inspector.check(
                        records, config, now_ms=wall_clock_ms(), host=host
                    )
                except TidelogError as error:
                    found = error
                results.note(place, config, found)


def _batches_to_inspect(
    request: ProduceRequest, led_by: Led
) -> list[tuple[int, Replica, memoryview]]:
    """Return the whole batches of partitions whose records are inspected, with their places."""
    found = []
    place = -1
    for name, partitions in request.topics:
        led = led_by.get(name, {})
        for index, records in partitions:
            place += 1
            replica = led.get(index)
            if replica is None or not replica.inspects_records or records is None:
                continue
            if len(records) < HEADER_SIZE:
                continue
            (size_bytes,) = INT32.unpack_from(records, 8)
            if size_bytes + LOG_OVERHEAD == len(records):
                found.append((place, replica, records))
    return found
