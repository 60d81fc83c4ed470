"""Drives a stream's reader as Spark does, without Spark: a checkpoint, batches, crashes."""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from collections.abc import Mapping

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from tidelog_spark.options.read_options import parse_options
from tidelog_spark.streaming.stream_reader import TidelogStreamReader

Rows = dict[tuple[str, int], list[tuple[int, bytes | None]]]


class MicroBatches:
    """A stream and its checkpoint: the ends of its batches, written before they run."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)
        self.checkpoint: list[str] = []
        self.reader = self._new_reader()
        self._initial: str | None = None

    def restart(self, *, is_available_now: bool = False, **options: str) -> None:
        """Start a new reader, as after a crash or a stop; with other options if they are given."""
        self.reader.stop()
        self.options |= options
        self._initial = None
        self.reader = self._new_reader()
        if is_available_now:
            self.reader.prepareForTriggerAvailableNow()

    def stop(self) -> None:
        """End the reader."""
        self.reader.stop()

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Write down the end of the next batch; return whether there is one."""
        start = self._end_of(len(self.checkpoint) - 1)
        found = self.reader.latestOffset(
            json.loads(start), self.reader.getDefaultReadLimit() if limit is None else limit
        )
        end = json.dumps(found)
        if end == start:
            return False
        self.checkpoint.append(end)
        return True

    def read(self) -> Rows:
        """Return the rows of the batch that was written down last."""
        start = json.loads(self._end_of(len(self.checkpoint) - 2))
        found: Rows = defaultdict(list)
        for partition in self.reader.partitions(start, json.loads(self.checkpoint[-1])):
            # Tasks get what is left of reader and partition after a trip to them.
            reader, moved = pickle.loads(pickle.dumps((self.reader, partition)))
            assert isinstance(moved, InputPartition)
            for batch in reader.read(moved):
                names = ("topic", "partition", "offset", "value")
                columns = [batch.column(name).to_pylist() for name in names]
                for topic, number, offset, value in zip(*columns, strict=True):
                    found[topic, number].append((offset, value))
        return found

    def next_rows(self, limit: ReadLimit | None = None) -> Rows | None:
        """Run a batch and return its rows, ``None`` where there is nothing new."""
        return self.read() if self.plan(limit) else None

    def next_offsets(self, limit: ReadLimit | None = None) -> dict[str, list[int]] | None:
        """Run a batch and return its offsets by ``topic-partition``."""
        rows = self.next_rows(limit)
        if rows is None:
            return None
        return {f"{t}-{p}": [offset for offset, _ in some] for (t, p), some in rows.items()}

    def _end_of(self, batch: int) -> str:
        if batch >= 0:
            return self.checkpoint[batch]
        if self._initial is None:
            # Asked again after each start as long as the first batch is not done.
            self._initial = json.dumps(self.reader.initialOffset())
        return self._initial

    def _new_reader(self) -> TidelogStreamReader:
        options = parse_options(self.options, is_stream=True)
        return TidelogStreamReader(options, read_interval_s=0)
