"""What has to be known of a Produce request's records before they are appended.

Compacted topics want a key in every record, and some topics a codec of their own: that takes
time by the record and by the byte. A request may take as much of it as the limits here say; they
grow with the bytes that came, so that a client cannot buy much of it with few bytes. A request
that needs more has all its batches looked into by the ``BatchInspector``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidelog_core.clock import wall_clock_ms
from tidelog_core.errors import TidelogError
from tidelog_core.log.append_checks import CheckedBatches, check_produced
from tidelog_core.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    LookBudget,
    TooMuchToLookAt,
)

from tidelog_node.inspection.inspector import BatchInspector
from tidelog_node.replicas import Replica
from tidelog_node.wire.primitives import INT32
from tidelog_node.wire.produce import ProduceRequest

# Of one request: about 2 ms of the event loop.
RECORDS_MAX = 2_000
DECOMPRESSED_BYTES_MAX = 1_048_576
CONVERTED_BYTES_MAX = 32_768
# Of one batch, compressed or not; most are well within it.
BYTES_PER_RECORD_MIN = 8
# Uncompressed batches of a request up to this need no look of their own before the append.
PLAIN_BYTES_MAX = 16_384

# In a batch.
CODEC_POSITION, CODEC_MASK = 22, 0x7
RECORD_COUNT_POSITION = 57

Led = Mapping[bytes, Mapping[int, Replica]]
# Why a batch must not be appended, or what it was found to be; None: it has not been looked at.
Look = CheckedBatches | TidelogError | None


class Looked(NamedTuple):
    """What was found out about a request's batches."""

    # By the identity of the request's views: a partition may be named more than once.
    looks: Mapping[int, Look]
    is_of_copy: bool  # the batches stay where they are when the request's handling ends

    def of(self, records: memoryview | None) -> Look:
        """Return what is known of a batch of the request."""
        return self.looks.get(id(records))

    def kept(self) -> Looked:
        """Return what may be believed once the request's bytes are elsewhere."""
        return self if self.is_of_copy else NOT_LOOKED


NOT_LOOKED = Looked({}, True)


def has_to_look(request: ProduceRequest, led_by: Led) -> bool:
    """Whether there are records to be looked at that may take longer than they are large.

    Of the others the append makes sure itself.
    """
    plain_bytes = 0
    for name, partitions in request.topics:
        led = led_by.get(name)
        if led is None:
            continue
        for index, records in partitions:
            replica = led.get(index)
            if replica is None or not replica.looks_at_records or records is None:
                continue
            plain_bytes += len(records)
            if plain_bytes > PLAIN_BYTES_MAX:
                return True
            if len(records) >= HEADER_SIZE and records[CODEC_POSITION] & CODEC_MASK:
                return True
    return False


class BatchLooks:
    """Looks at the batches of Produce requests, or has that done."""

    def __init__(self, inspector: BatchInspector) -> None:
        self._inspector = inspector

    def look(self, request: ProduceRequest, led_by: Led) -> Looked | None:
        """Return what the batches are, or None where that takes longer than the loop has time."""
        looks: dict[int, Look] = {}
        budget = LookBudget(
            records=RECORDS_MAX,
            headers=RECORDS_MAX,
            size_bytes=DECOMPRESSED_BYTES_MAX,
            converted_bytes=CONVERTED_BYTES_MAX,
        )
        now_ms = wall_clock_ms()
        for replica, records in _to_look_at(request, led_by):
            (count,) = INT32.unpack_from(records, RECORD_COUNT_POSITION)
            if count * BYTES_PER_RECORD_MIN > len(records):
                return None
            try:
                looks[id(records)] = check_produced(
                    records, replica.config, now_ms=now_ms, budget=budget
                )
            except TooMuchToLookAt:
                return None
            except TidelogError as error:
                looks[id(records)] = error
        return Looked(looks, False)

    async def look_elsewhere(self, request: ProduceRequest, led_by: Led) -> Looked:
        """Return what the batches are, also why they cannot be appended.

        The request's bytes must stay as they are.
        """
        looks: dict[int, Look] = {}
        for replica, records in _to_look_at(request, led_by):
            config = None
            while replica.config is not config:  # It may change meanwhile.
                config = replica.config
                try:
                    looks[id(records)] = await self._inspector.check(
                        records, config, now_ms=wall_clock_ms()
                    )
                except TidelogError as error:
                    looks[id(records)] = error
        return Looked(looks, True)


def _to_look_at(request: ProduceRequest, led_by: Led) -> list[tuple[Replica, memoryview]]:
    """Return the batches that are whole and belong to partitions that look at records."""
    found = []
    for name, partitions in request.topics:
        led = led_by.get(name, {})
        for index, records in partitions:
            replica = led.get(index)
            if replica is None or not replica.looks_at_records or records is None:
                continue
            if len(records) < HEADER_SIZE:
                continue
            (size_bytes,) = INT32.unpack_from(records, 8)
            if size_bytes + LOG_OVERHEAD == len(records):
                found.append((replica, records))
    return found
