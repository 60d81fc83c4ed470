"""Plans a table's read from its options, with stores opened for it; also makes bookmarks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from tidelog_core.errors import ObjectNotFound

from tidelog_spark.options.bookmarks import Bookmark
from tidelog_spark.options.option_values import OffsetLimit, TimestampLimit
from tidelog_spark.options.positions import Positions
from tidelog_spark.options.read_options import ReadOptions, parse_options
from tidelog_spark.planning.limits import check_limits, end_offsets, start_offsets, with_node_ends
from tidelog_spark.planning.plan import Plan
from tidelog_spark.planning.plan_run import run_plan
from tidelog_spark.stores.catalog import Catalog, load_catalog
from tidelog_spark.stores.sources import Sources, open_sources

logger = logging.getLogger(__name__)

T = TypeVar("T")

ATTEMPTS_MAX = 3


def plan_read(options: ReadOptions) -> Plan:
    """Return the splits of the read. Blocks during the stores' calls.

    Raises ``UnknownTopicOrPartition``, ``InvalidConfig`` if the limits do not match the
    partitions, ``ObjectNotFound`` and ``CorruptObject`` for index objects, and the errors of
    ``plan``.
    """
    return _in_own_thread(partial(_attempts, options, _plan))


def bookmark(options: Mapping[str, str]) -> str:
    """Return the offsets that a read with these options covers now, for the option ``asOf``.

    A read with ``asOf`` returns the same rows after later writes, or raises ``DataLost`` if
    retention or a deletion has removed some of them. Raises the same errors as a read.
    """
    parsed = parse_options(options)
    return _in_own_thread(partial(_attempts, parsed, _bookmark)).to_text()


def _in_own_thread(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the call in a separate thread: a notebook's driver has a loop in this one."""
    with ThreadPoolExecutor(1, thread_name_prefix="plan") as executor:
        return executor.submit(lambda: asyncio.run(call())).result()


async def _attempts(
    options: ReadOptions,
    attempt: Callable[[ReadOptions, Catalog, Sources], Coroutine[Any, Any, T]],
) -> T:
    async with open_sources(options) as sources:
        for attempts_left in reversed(range(ATTEMPTS_MAX)):
            try:
                return await attempt(options, await _read_catalog(options, sources), sources)
            except ObjectNotFound:
                # Retention may have deleted the segment since: then the metadata lacks it.
                if not attempts_left:
                    raise
    raise AssertionError("the last attempt returns or raises")


async def _read_catalog(options: ReadOptions, sources: Sources) -> Catalog:
    catalog = await load_catalog(sources.metadata, options.selection, tails=sources.tails)
    for name, problem in catalog.warnings.items():
        logger.warning("cannot be read, left out", extra={"item": name, "reason": problem})
    if sources.nodes is not None:
        logs = await with_node_ends(catalog.logs, sources.nodes)
        catalog = replace(catalog, logs=tuple(logs))
    check_limits(options, catalog)
    return catalog


async def _plan(options: ReadOptions, catalog: Catalog, sources: Sources) -> Plan:
    if sources.nodes is not None:
        # The nodes also know times after the tiered end.
        if isinstance(options.start, TimestampLimit):
            start = await start_offsets(options, catalog, sources.objects, sources.nodes)
            options = replace(options, start=OffsetLimit(None, start))
        if isinstance(options.end, TimestampLimit):
            end = await end_offsets(options, catalog, sources.objects, sources.nodes)
            options = replace(options, end=OffsetLimit(None, end))
    return await run_plan(options, catalog, catalog.logs, sources.objects)


async def _bookmark(options: ReadOptions, catalog: Catalog, sources: Sources) -> Bookmark:
    start = await start_offsets(options, catalog, sources.objects, sources.nodes)
    end = await end_offsets(options, catalog, sources.objects, sources.nodes)
    ends = {partition: max(start[partition], offset) for partition, offset in end.items()}
    explicit = replace(
        options, start=OffsetLimit(None, start), end=OffsetLimit(None, ends), keys=None
    )
    await run_plan(explicit, catalog, catalog.logs, sources.objects)  # Raises for lost offsets.
    return Bookmark(Positions(start), Positions(ends, catalog.topic_ids), options.is_read_committed)
