"""Plans a stream's micro-batches on the driver, with stores and connections kept open.

Spark asks for the newest offsets a hundred times a second while it is idle, so the answer
is cached for a while: a tier grows only when a segment is sealed, and each reading lists the
segments' metadata, from the segment being read on. All segments are listed if those leave
a gap, and from time to time: a segment copied by another leader may start far below the
end of the one before, and be the only new one.

Chains of diskless topics are listed more often than the metadata is read. If objects were collected
or a chain has ended, the metadata says how the logs continue, and is read at once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from time import monotonic
from typing import Any, TypeVar
from uuid import UUID

from tidelog_core.errors import InvalidConfig, ObjectNotFound
from tidelog_core.model import TopicPartition

from tidelog_spark.loop_thread import LoopThread
from tidelog_spark.options.option_values import OffsetLimit
from tidelog_spark.options.positions import Positions
from tidelog_spark.options.read_options import ReadOptions
from tidelog_spark.planning.limits import (
    check_limits,
    start_offsets,
    with_node_ends,
    written_starts,
)
from tidelog_spark.planning.plan_run import run_plan
from tidelog_spark.planning.table_planner import ATTEMPTS_MAX
from tidelog_spark.reading.splits import Split
from tidelog_spark.stores.catalog import Catalog, load_catalog
from tidelog_spark.stores.chain_tails import ChainTails, is_gap_known
from tidelog_spark.stores.partition_log import PartitionLog
from tidelog_spark.stores.sources import Sources, open_sources
from tidelog_spark.streaming.stream_progress import OffsetRange, Ranges, batch_ranges

logger = logging.getLogger(__name__)

T = TypeVar("T")

NOWHERE = Positions({})

TIER_READ_INTERVAL_S = 1.0
NODE_READ_INTERVAL_S = 0.1
CHAIN_READ_INTERVAL_S = 0.2
LIST_ALL_INTERVAL_S = 60.0


class StreamPlanner:
    """A stream's view of its logs. Use it from one thread; ``close`` ends it."""

    def __init__(self, options: ReadOptions, *, read_interval_s: float | None = None) -> None:
        self._options = options
        if read_interval_s is None:
            read_interval_s = (
                TIER_READ_INTERVAL_S if options.nodes is None else NODE_READ_INTERVAL_S
            )
        self._read_interval_s = read_interval_s
        self._thread = LoopThread("stream")
        self._opened = AsyncExitStack()
        self._sources: Sources | None = None
        self._catalog: Catalog | None = None
        self._read_at_s = 0.0
        self._chains_read_at_s = 0.0
        self._listed_all_at_s = -math.inf
        self._unreadable: set[str] = set()  # already warned of
        self._seen: set[TopicPartition] = set()  # They may be deleted, and created again.

    def close(self) -> None:
        """Close stores and connections."""
        try:
            self._run(self._opened.aclose())
        finally:
            self._thread.stop()

    @property
    def catalog(self) -> Catalog | None:
        """Return the catalog that was read last."""
        return self._catalog

    def read_catalog(self, read_to: Positions = NOWHERE, *, is_fresh: bool = False) -> Catalog:
        """Return the partitions with their ends, cached or (fresh) read now.

        Partitions in ``read_to`` may have been deleted, and their segments are needed only from
        there on. Raises as ``load_catalog``.
        """
        is_old = monotonic() - self._read_at_s >= self._read_interval_s
        if self._catalog is None or is_fresh or is_old or self._follow_chains():
            self._catalog = self._run(self._load_catalog(read_to))
            self._read_at_s = self._chains_read_at_s = monotonic()
        return self._catalog

    def initial(self) -> Positions:
        """Return the stream's start.

        Raises as ``check_limits``, ``start_offsets`` and ``written_starts``.
        """
        catalog = self.read_catalog(is_fresh=True)
        check_limits(self._options, catalog)
        return Positions(self._run(self._start_offsets(catalog)), catalog.topic_ids)

    def splits(self, start: Positions, end: Positions) -> tuple[Split, ...]:
        """Return the splits of the micro-batch.

        Raises ``DataLost`` with all missing ranges, unless data loss is tolerated;
        ``CorruptItem`` if metadata cannot be read; ``InvalidConfig`` if the nodes are needed but
        not configured.
        """
        return self._run(self._splits(start, end))

    def _follow_chains(self) -> bool:
        """Bring the tails up to date if it is time; return whether the metadata is to be read."""
        is_old = monotonic() - self._chains_read_at_s >= CHAIN_READ_INTERVAL_S
        if not is_old or self._sources is None or self._sources.tails is None:
            return False
        is_needed = self._run(self._read_chains(self._sources.tails))
        self._chains_read_at_s = monotonic()
        return is_needed

    async def _read_chains(self, tails: ChainTails) -> bool:
        assert self._catalog is not None
        found = await tails.read_again()
        if found is None or found.is_collected or found.is_sealed:
            return found is not None
        if found.is_grown:
            logs = [tails.with_tail(log, is_over_gaps=False) for log in self._catalog.logs]
            if any(map(is_gap_known, logs)):
                return True
            self._catalog = replace(self._catalog, logs=tuple(logs))
        return False

    async def _load_catalog(self, read_to: Positions) -> Catalog:
        sources = await self._open()
        nodes, now_s = sources.nodes, monotonic()
        list_from: dict[tuple[UUID, int], int] = {}
        if self._catalog is not None and now_s - self._listed_all_at_s < LIST_ALL_INTERVAL_S:
            list_from = listing_starts(self._catalog, read_to)
        else:
            self._listed_all_at_s = now_s
        catalog = await load_catalog(
            sources.metadata,
            self._options.selection,
            known=self._seen | read_to.offsets.keys(),
            is_tier_wanted=nodes is None,
            list_from=list_from,
            tails=sources.tails,
        )
        self._seen.update(log.partition for log in catalog.logs)
        self._warn(catalog)
        if nodes is None:
            return catalog
        return replace(catalog, logs=tuple(await with_node_ends(catalog.logs, nodes)))

    async def _start_offsets(self, catalog: Catalog) -> dict[TopicPartition, int]:
        sources = await self._open()
        starts = await start_offsets(self._options, catalog, sources.objects, sources.nodes)
        return await written_starts(self._options, catalog, starts, sources.nodes)

    async def _splits(self, start: Positions, end: Positions) -> tuple[Split, ...]:
        sources = await self._open()
        for attempts_left in reversed(range(ATTEMPTS_MAX)):
            catalog = self._catalog
            is_first = attempts_left == ATTEMPTS_MAX - 1
            if not is_first or catalog is None or not self._is_enough(catalog, start, end):
                catalog = await load_catalog(
                    sources.metadata,
                    self._options.selection,
                    known=self._seen | start.offsets.keys() | end.offsets.keys(),
                    tails=sources.tails,
                )
            batch = batch_ranges(start, end, catalog)
            logs = self._logs(catalog, batch.ranges)
            limits = replace(
                self._options,
                start=OffsetLimit(None, {p: one.start for p, one in batch.ranges.items()}),
                end=OffsetLimit(None, {p: one.end for p, one in batch.ranges.items()}),
            )
            try:
                planned = await run_plan(
                    limits, catalog, logs, sources.objects, problems=batch.problems
                )
            except ObjectNotFound:
                # Retention may have deleted the segment since.
                if not attempts_left:
                    raise
            else:
                return planned.splits
        raise AssertionError("the last attempt returns or raises")

    def _is_enough(self, catalog: Catalog, start: Positions, end: Positions) -> bool:
        """Return whether the catalog contains every segment of the micro-batch."""
        logs = {log.partition: log for log in catalog.logs}
        return self._options.nodes is None and all(
            partition in logs
            and logs[partition].listed_from <= start.offsets.get(partition, 0)
            and offset <= logs[partition].end_offset
            for partition, offset in end.offsets.items()
        )

    def _logs(self, catalog: Catalog, ranges: Ranges) -> list[PartitionLog]:
        logs = {log.partition: log for log in catalog.logs}
        found: list[PartitionLog] = []
        for partition, one in ranges.items():
            if (problem := catalog.problem_of(partition)) is not None:
                raise problem
            found.append(self._with_end(logs[partition], one))
        return found

    def _with_end(self, log: PartitionLog, one: OffsetRange) -> PartitionLog:
        if one.end <= (log.tiered_end_offset if log.tail is None else log.end_offset):
            return log
        if self._options.nodes is None:
            raise InvalidConfig(
                [
                    f"the micro-batch reads {log.partition} to offset {one.end} and the bucket has"
                    f" it up to {log.end_offset}: give 'kafka.bootstrap.servers' or"
                    " 'disklessTail' as before, or wait until it is tiered"
                ]
            )
        # The nodes had these offsets when the micro-batch was first planned.
        return replace(log, node_end_offset=one.end)

    async def _open(self) -> Sources:
        if self._sources is None:
            self._sources = await self._opened.enter_async_context(open_sources(self._options))
        return self._sources

    def _warn(self, catalog: Catalog) -> None:
        gone = {one.topic for one in self._seen} - catalog.topic_ids.keys()
        warnings = {**catalog.warnings, **dict.fromkeys(gone, "the topic was deleted")}
        for name in warnings.keys() - self._unreadable:
            logger.warning(
                "cannot be read, will wait for it", extra={"item": name, "reason": warnings[name]}
            )
        self._unreadable = set(warnings)

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(call)


def listing_starts(catalog: Catalog, read_to: Positions) -> dict[tuple[UUID, int], int]:
    """Return the offset from which to list each partition's segments, by read positions."""
    starts: dict[tuple[UUID, int], int] = {}
    for log in catalog.logs:
        offset = read_to.offsets.get(log.partition)
        read_id = read_to.topic_ids.get(log.partition.topic, log.topic_id)
        if offset is not None and log.topic_id is not None and read_id == log.topic_id:
            start = log.listing_start(offset)
            if start:
                starts[log.topic_id, log.partition.partition] = start
    return starts
