"""``spark.readStream.format("tidelog")``: micro-batches of growing logs.

A micro-batch is the offsets between two positions, which Spark stores in its checkpoint
before the batch runs: after a crash the same batch is planned again from them, and reads
the same rows. Spark does not store the stream's start, and asks for it again after a crash
in the first batch: so the end of the first batch contains it too (``@start``), and a
stream with nothing to read yet has one batch without rows, to store it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from tidelog_core.errors import InvalidRequest
from tidelog_core.model import TopicPartition

from tidelog_spark.error_hints import with_hint
from tidelog_spark.options.positions import Positions
from tidelog_spark.options.read_options import ReadOptions
from tidelog_spark.split_rows import task_rows
from tidelog_spark.streaming.stream_progress import advance, available, behind, offset_count

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog_spark.stores.catalog import Catalog
    from tidelog_spark.streaming.stream_planner import StreamPlanner

INITIAL = "@initial"
START = "@start"
CUT_AFTER_S = 10.0  # A log that ends before the read position for so long is taken to be truncated.


class TidelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans on the driver, reads in tasks, which receive only the options."""

    def __init__(self, options: ReadOptions, *, read_interval_s: float | None = None) -> None:
        self._options = options
        self._read_interval_s = read_interval_s
        self._opened: StreamPlanner | None = None
        self._until: Positions | None = None  # of Trigger.AvailableNow
        self._last_batch_s: float | None = None
        self._behind_since: dict[TopicPartition, float] = {}

    def __getstate__(self) -> Mapping[str, Any]:
        """Return the state that a task needs."""
        return {"options": self._options}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Make a reader for a task."""
        self.__init__(state["options"])  # type: ignore[misc]

    @with_hint()
    def initialOffset(self) -> dict[str, object]:
        """Return the start of a new stream. Raises as ``StreamPlanner.initial``."""
        return {**self._planner.initial().to_json(), INITIAL: True}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of the options."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @with_hint()
    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """Return the end of the next micro-batch; ``start`` itself if there is none yet."""
        positions = Positions.from_json(start)
        catalog = self._planner.read_catalog(positions)
        cut = self._cut_logs(positions, catalog)
        ranges = available(positions, catalog, until=self._until, cut=cut)
        if self._is_delayed(limit, offset_count(ranges)):
            return start
        end = advance(positions, catalog, ranges, offsets_max=_offsets_max(limit))
        if end == positions and INITIAL not in start:
            return start
        self._last_batch_s = monotonic()
        begun = {START: positions.to_json()} if INITIAL in start else {}
        return {**end.to_json(), **begun}

    def reportLatestOffset(self) -> dict[str, object] | None:
        """Return the logs' ends at the last reading."""
        catalog = self._planner.catalog
        return None if catalog is None else _ends(catalog).to_json()

    @with_hint()
    def prepareForTriggerAvailableNow(self) -> None:
        """Store the logs' current ends: the stream stops there."""
        self._until = _ends(self._planner.read_catalog(is_fresh=True))

    @with_hint()
    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[InputPartition]:
        """Return one partition for each split of the micro-batch. Raises as ``splits``."""
        if start == end:
            return []
        begin = start
        if INITIAL in start and START in end:
            # Only the start stored by the first batch is valid.
            noted = end[START]
            if not isinstance(noted, dict):
                raise InvalidRequest(f"the checkpoint's {START} is not a JSON object")
            begin = noted
        splits = self._planner.splits(Positions.from_json(begin), Positions.from_json(end))
        return [InputPartition(split) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one split."""
        return task_rows(self._options, partition.value)

    def commit(self, end: dict[str, object]) -> None:
        """Do nothing: Spark stores the positions."""

    def stop(self) -> None:
        """Close the stores and connections."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    @property
    def _planner(self) -> StreamPlanner:
        if self._opened is None:
            from tidelog_spark.streaming.stream_planner import StreamPlanner  # Tasks do not plan.

            self._opened = StreamPlanner(self._options, read_interval_s=self._read_interval_s)
        return self._opened

    def _cut_logs(self, positions: Positions, catalog: Catalog) -> set[TopicPartition]:
        """Return the partitions whose logs were truncated, as by an unclean election.

        A new leader may not know its end yet, and a tier may be behind the nodes' last end:
        those are waited for.
        """
        now_s = monotonic()
        found = behind(positions, catalog) if self._options.nodes is not None else set()
        self._behind_since = {p: self._behind_since.get(p, now_s) for p in found}
        return {p for p, since in self._behind_since.items() if now_s - since >= CUT_AFTER_S}

    def _is_delayed(self, limit: ReadLimit, offsets: int) -> bool:
        """Return whether the batch waits for more rows.

        Never the first after a start, as with Spark's Kafka source, and never with
        Trigger.AvailableNow, which must reach its end.
        """
        least = self._options.min_offsets_per_trigger
        if least is None or isinstance(limit, ReadAllAvailable) or self._until is not None:
            return False
        if self._last_batch_s is None or offsets >= least:
            return False
        waited_ms = (monotonic() - self._last_batch_s) * 1000
        return waited_ms < self._options.max_trigger_delay_ms


def _ends(catalog: Catalog) -> Positions:
    nothing = Positions({})
    return advance(nothing, catalog, available(nothing, catalog), offsets_max=None)


def _offsets_max(limit: ReadLimit) -> int | None:
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows
    if isinstance(limit, ReadAllAvailable | ReadMinRows):
        return None
    raise InvalidRequest(f"a stream of records cannot be limited by {type(limit).__name__}")
