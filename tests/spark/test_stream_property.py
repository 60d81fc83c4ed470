"""Any sequence of micro-batches over growing logs reads each offset once and in order.

The stream's reader is driven as Spark drives it: ask for the end, write it down, plan,
read, and after a crash do the batch that was written down again, with a new reader.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tidelog_core.records.batch import CompressionType, Record, build_batch
from tidelog_spark.options import parse_options
from tidelog_spark.streaming import TidelogStreamReader

from tests.spark.tiered import TieredCluster

Rows = dict[tuple[str, int], list[tuple[int, bytes]]]


class GrowingLogs(RuleBasedStateMachine):
    """Topics of a pattern grow, and so do their numbers of partitions, while a stream reads."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.cluster = TieredCluster(Path(self.folder.name))
        self.written: Rows = defaultdict(list)
        self.skipped: dict[tuple[str, int], int] = {}  # what was there before a late start
        self.read: Rows = defaultdict(list)
        self.topics: dict[str, int] = {}
        self.checkpoint: list[str] = []  # the ends of batches, as Spark writes them
        self.initial: str | None = None
        self.reader: TidelogStreamReader | None = None

    @initialize(is_late=st.booleans(), topic_count=st.integers(0, 2))
    def begin(self, is_late: bool, topic_count: int) -> None:
        self.options = {
            **self.cluster.options,
            "subscribePattern": "t.*",
            "startingOffsets": "latest" if is_late else "earliest",
        }
        for _ in range(topic_count):
            self.add_topic(2)
            self.append(len(self.topics) - 1, 0, [3, 2], 1)
        self.start_reader()
        if is_late:
            self.skipped = {key: len(rows) for key, rows in self.written.items()}

    @rule(partition_count=st.integers(1, 3))
    @precondition(lambda self: len(self.topics) < 4)
    def add_topic(self, partition_count: int) -> None:
        name = f"t{len(self.topics)}"
        self.cluster.create_topic(name, partition_count=partition_count)
        self.topics[name] = partition_count

    @rule(number=st.integers(0, 3))
    def add_partition(self, number: int) -> None:
        if self.topics:
            name = f"t{number % len(self.topics)}"
            self.topics[name] += 1
            self.cluster.add_partitions(name, self.topics[name])

    @rule(
        number=st.integers(0, 3),
        partition=st.integers(0, 9),
        sizes=st.lists(st.integers(1, 20), min_size=1, max_size=4),
        codec=st.integers(0, 4),
    )
    def append(self, number: int, partition: int, sizes: list[int], codec: int) -> None:
        if not self.topics:
            return
        name = f"t{number % len(self.topics)}"
        partition %= self.topics[name]
        rows = self.written[name, partition]
        batches = []
        for size in sizes:
            base = len(rows)
            rows += [
                (base + i, b"%s-%d-%d" % (name.encode(), partition, base + i)) for i in range(size)
            ]
            records = [Record(0, 1, None, value) for _, value in rows[base:]]
            batches.append(
                build_batch(records, base_offset=base, compression=CompressionType(codec))
            )
        self.cluster.add_segment(name, batches, partition=partition)

    @rule(limit=st.none() | st.integers(1, 60))
    def micro_batch(self, limit: int | None) -> None:
        self.run_batch(limit)

    @rule(limit=st.none() | st.integers(1, 60), is_read=st.booleans())
    def crash_in_a_batch(self, limit: int | None, is_read: bool) -> None:
        """The driver dies with the batch written down; what it has read is thrown away."""
        found = self.next_end(limit)
        if found is None:
            return
        start, end = found
        self.checkpoint.append(end)
        if is_read:
            self.rows_between(start, end)
        self.start_reader()
        start = self.checkpoint[-2] if len(self.checkpoint) > 1 else self.initial
        assert start is not None
        self.take(self.rows_between(start, end))

    def teardown(self) -> None:
        if self.reader is None:
            return
        for _ in range(100):
            if not self.run_batch(None):
                break
        self.reader.stop()
        for key, rows in self.written.items():
            assert self.read[key] == rows[self.skipped.get(key, 0) :], key
        assert self.read.keys() <= self.written.keys()
        self.folder.cleanup()

    def start_reader(self) -> None:
        if self.reader is not None:
            self.reader.stop()
        self.reader = TidelogStreamReader(
            parse_options(self.options, is_stream=True), look_interval_s=0
        )
        if not self.checkpoint:
            self.initial = json.dumps(self.reader.initialOffset())
        elif len(self.checkpoint) == 1:
            # Spark asks again where the stream begins while its first batch is not done.
            self.initial = json.dumps(self.reader.initialOffset())

    def next_end(self, limit: int | None) -> tuple[str, str] | None:
        assert self.reader is not None
        start = self.checkpoint[-1] if self.checkpoint else self.initial
        assert start is not None
        how = ReadAllAvailable() if limit is None else ReadMaxRows(limit)
        end = json.dumps(self.reader.latestOffset(json.loads(start), how))
        return None if end == start else (start, end)

    def run_batch(self, limit: int | None) -> bool:
        found = self.next_end(limit)
        if found is None:
            return False
        self.checkpoint.append(found[1])
        rows = self.rows_between(*found)
        if limit is not None:
            partitions = sum(self.topics.values())
            assert sum(map(len, rows.values())) <= limit + partitions
        self.take(rows)
        return True

    def rows_between(self, start: str, end: str) -> Rows:
        assert self.reader is not None
        found: Rows = defaultdict(list)
        for partition in self.reader.partitions(json.loads(start), json.loads(end)):
            for batch in self.reader.read(partition):
                columns: list[list[Any]] = [
                    batch.column(name).to_pylist()
                    for name in ("topic", "partition", "offset", "value")
                ]
                for topic, number, offset, value in zip(*columns, strict=True):
                    found[topic, number].append((offset, value))
        return found

    def take(self, rows: Rows) -> None:
        for key, some in rows.items():
            self.read[key] += some


GrowingLogs.TestCase.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)
TestGrowingLogs = GrowingLogs.TestCase
