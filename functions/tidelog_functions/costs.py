"""What functions cost: each invocation is counted, and a process adds to the ledger once a minute.

A process of Lambda serves many invocations and is frozen in between, so what it has counted waits
in it until a later one. What a process that Lambda ends has not added yet is lost: less than a
minute of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

from tidelog_core.clock import steady_clock_ms, wall_clock_ms
from tidelog_core.cost.collecting import add_bytes, add_requests, milliunits
from tidelog_core.cost.counts import (
    FUNCTION_CALL,
    FUNCTION_TIME,
    HOUR_MS,
    METADATA_READ,
    METADATA_WRITE,
)
from tidelog_core.cost.entries import Addition, Limits, Tally
from tidelog_core.cost.ledger import CurrentHourClosed, add
from tidelog_core.cost.prices import load_prices
from tidelog_core.errors import TidelogError
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.metadata.stores.usage import StoreUsage, usage_of
from tidelog_core.objects.counted_store import CountedObjectStore, ObjectUsage
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.keys import split_topic_folder, topic_folder_of

from tidelog_functions.invocation import FunctionSettings, open_stores

logger = logging.getLogger(__name__)

MEMORY_VARIABLE = "AWS_LAMBDA_FUNCTION_MEMORY_SIZE"  # MiB; Lambda sets it
MEMORY_MIB = 512  # of the stack's functions
TOPIC_COUNTS_MAX = 10_000  # that wait for the ledger; then they wait without topics
SECONDS_MAX = 2.0  # that an invocation waits for the ledger


@dataclass(slots=True)
class FunctionCosts:
    """The counts of one function in this process that are not added yet."""

    function: str
    counted: Tally = field(default_factory=Tally)
    waiting: Addition | None = None  # may be stored already
    added_ms: float | None = None  # by the steady clock; None: never

    async def add_to(self, store: MetadataStore, settings: FunctionSettings) -> None:
        """Add the counts to the ledger.

        Raises ``CurrentHourClosed`` and the store's errors; then it is tried again later.
        """
        config = settings.node_config
        limits = Limits(load_prices(config.cost_price_file), config.cost_ledger_topics_max)
        now_hour = wall_clock_ms() // HOUR_MS
        while self.waiting is not None or self.counted.counts:
            if self.waiting is None:
                writer = f"function-{self.function}"
                token, now_ms = uuid4().hex, wall_clock_ms()
                self.waiting = Addition(token, now_hour, writer, self.counted, now_ms)
                self.counted = Tally()
            if await add(store, self.waiting, limits, now_hour=now_hour):
                self.waiting = None
            else:  # Its hour is closed, and does not have it.
                closed_hour = self.waiting.hour
                self.counted.merge(self.waiting.tally)
                self.waiting = None
                if closed_hour == now_hour:
                    raise CurrentHourClosed(now_hour)


_OF_PROCESS: dict[tuple[str, str], FunctionCosts] = {}  # by metadata store and function: one


@asynccontextmanager
async def counted_stores(
    settings: FunctionSettings,
    function: str,
    *,
    clock_ms: Callable[[], float] = steady_clock_ms,
) -> AsyncIterator[tuple[MetadataStore, ObjectStore]]:
    """Open both stores for one invocation, and count it when it ends, also with an error."""
    key = (settings.metadata_url, function)
    costs = _OF_PROCESS.setdefault(key, FunctionCosts(function))
    began = time.monotonic()
    async with open_stores(settings) as (store, bare):
        objects = CountedObjectStore(bare, group_of=topic_folder_of)
        try:
            yield store, objects
        finally:
            if settings.node_config.cost_ledger_enable:
                _count_call(costs.counted, objects.usage, seconds=time.monotonic() - began)
                await _count_and_add(costs, store, settings, clock_ms)


async def _count_and_add(
    costs: FunctionCosts,
    store: MetadataStore,
    settings: FunctionSettings,
    clock_ms: Callable[[], float],
) -> None:
    """Count the units of the invocation, and add to the ledger if a minute has passed."""
    usage = usage_of(store) or StoreUsage()
    _count_units(costs.counted, usage)
    if len(costs.counted.topics) > TOPIC_COUNTS_MAX:
        costs.counted.topics.clear()
    interval_ms = settings.node_config.cost_ledger_interval_ms
    if costs.added_ms is None or clock_ms() - costs.added_ms >= interval_ms:
        before = (usage.costing_read_units, usage.costing_write_units)
        await _add(costs, store, settings)
        costs.added_ms = clock_ms()
        _count_units(costs.counted, usage, before=before)


async def _add(costs: FunctionCosts, store: MetadataStore, settings: FunctionSettings) -> None:
    """Add to the ledger, if that takes little time: no invocation fails for it."""
    try:
        async with asyncio.timeout(SECONDS_MAX):
            await costs.add_to(store, settings)
    except (TidelogError, TimeoutError) as error:
        reason = str(error) or "the metadata store takes too long"
        logger.warning("costs not recorded, will retry", extra={"reason": reason})


def _count_call(tally: Tally, usage: ObjectUsage, *, seconds: float) -> None:
    tally.add(FUNCTION_CALL, 1)
    tally.add(FUNCTION_TIME, _memory_mib() * round(seconds * 1000))
    _count_objects(tally, usage)


def _count_objects(tally: Tally, usage: ObjectUsage) -> None:
    rest: dict[str, int] = {}
    for (method, _), count in usage.requests.items():
        rest[method] = rest.get(method, 0) + count
    sent, received = usage.sent_bytes, usage.received_bytes
    for folder, one in usage.by_group.items():
        topic, _ = split_topic_folder(folder)
        for method, count in one.requests.items():
            rest[method] -= count
            add_requests(tally, method, count, topic=topic)
        sent, received = sent - one.sent_bytes, received - one.received_bytes
        add_bytes(tally, sent=one.sent_bytes, received=one.received_bytes, topic=topic)
    for method, count in rest.items():
        add_requests(tally, method, count)
    add_bytes(tally, sent=sent, received=received)


def _count_units(
    tally: Tally, usage: StoreUsage, *, before: tuple[float, float] = (0.0, 0.0)
) -> None:
    tally.add(METADATA_READ, milliunits(usage.costing_read_units - before[0]))
    tally.add(METADATA_WRITE, milliunits(usage.costing_write_units - before[1]))


def _memory_mib() -> int:
    text = os.environ.get(MEMORY_VARIABLE, "")
    return int(text) if text.isdigit() else MEMORY_MIB
