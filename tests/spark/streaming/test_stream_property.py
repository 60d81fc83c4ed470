"""Any sequence of micro-batches over growing logs reads each offset once and in order."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from tidelog_core.records.batch import CompressionType, Record, build_batch

from tests.spark.micro_batches import MicroBatches, Rows
from tests.support.tiered_cluster import TieredCluster

LIMITS = st.just(ReadAllAvailable()) | st.integers(1, 60).map(ReadMaxRows)


class GrowingLogs(RuleBasedStateMachine):
    """Topics of a pattern grow, and so do their numbers of partitions, while a stream reads."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.cluster = TieredCluster(Path(self.folder.name))
        self.written: Rows = defaultdict(list)
        self.skipped: dict[tuple[str, int], int] = {}  # what was there before a late start
        self.taken: Rows = defaultdict(list)
        self.partition_counts: list[int] = []

    @initialize(is_late=st.booleans(), topic_count=st.integers(0, 2))
    def begin(self, is_late: bool, topic_count: int) -> None:
        for number in range(topic_count):
            self.add_topic(2)
            self.append(number, 0, [3, 2], 1)
        self.stream = MicroBatches(
            {
                **self.cluster.options,
                "subscribePattern": "t.*",
                "startingOffsets": "latest" if is_late else "earliest",
            }
        )
        # The first batch may come late, but where it begins is decided now.
        self.take(ReadMaxRows(1))
        if is_late:
            self.skipped = {key: len(rows) for key, rows in self.written.items()}

    @rule(partition_count=st.integers(1, 3))
    @precondition(lambda self: len(self.partition_counts) < 4)
    def add_topic(self, partition_count: int) -> None:
        self.cluster.create_topic(f"t{len(self.partition_counts)}", partition_count=partition_count)
        self.partition_counts.append(partition_count)

    @rule(number=st.integers(0, 3))
    @precondition(lambda self: self.partition_counts)
    def add_partition(self, number: int) -> None:
        number %= len(self.partition_counts)
        self.partition_counts[number] += 1
        self.cluster.add_partitions(f"t{number}", self.partition_counts[number])

    @rule(
        number=st.integers(0, 3),
        partition=st.integers(0, 9),
        sizes=st.lists(st.integers(1, 20), min_size=1, max_size=4),
        codec=st.integers(0, 4),
    )
    @precondition(lambda self: self.partition_counts)
    def append(self, number: int, partition: int, sizes: list[int], codec: int) -> None:
        number %= len(self.partition_counts)
        partition %= self.partition_counts[number]
        rows = self.written[f"t{number}", partition]
        batches = []
        for size in sizes:
            base = len(rows)
            values = [b"%d-%d-%d" % (number, partition, base + i) for i in range(size)]
            rows += enumerate(values, base)
            batches.append(
                build_batch(
                    [Record(0, 1, None, value) for value in values],
                    base_offset=base,
                    compression=CompressionType(codec),
                )
            )
        self.cluster.add_segment(f"t{number}", batches, partition=partition)

    @rule(limit=LIMITS)
    def take(self, limit: ReadLimit) -> None:
        self.run_batch(limit)

    def run_batch(self, limit: ReadLimit) -> bool:
        """Run a batch; return whether there was one."""
        rows = self.stream.next_rows(limit)
        if isinstance(limit, ReadMaxRows):
            # Each partition gets one at least.
            count = sum(map(len, (rows or {}).values()))
            assert count <= limit.max_rows + sum(self.partition_counts)
        self.keep(rows or {})
        return rows is not None

    @rule(limit=LIMITS, is_read=st.booleans())
    def crash_in_a_batch(self, limit: ReadLimit, is_read: bool) -> None:
        """The driver dies with the batch written down; what it has read is thrown away."""
        if not self.stream.plan(limit):
            return
        before = self.stream.read() if is_read else None
        self.stream.restart()
        rows = self.stream.read()
        assert before is None or rows == before
        self.keep(rows)

    def keep(self, rows: Rows) -> None:
        for key, some in rows.items():
            self.taken[key] += some

    def teardown(self) -> None:
        if hasattr(self, "stream"):
            assert not (self.run_batch(ReadAllAvailable()) and self.run_batch(ReadAllAvailable()))
            self.stream.stop()
            for key, rows in self.written.items():
                assert self.taken[key] == rows[self.skipped.get(key, 0) :], key
            assert self.taken.keys() <= self.written.keys()
        self.folder.cleanup()


def test_micro_batches_over_growing_logs_read_each_offset_once_and_in_order():
    run_state_machine_as_test(
        GrowingLogs, settings=settings(max_examples=5, stateful_step_count=15, deadline=None)
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_more_sequences_of_micro_batches():
    run_state_machine_as_test(
        GrowingLogs, settings=settings(max_examples=150, stateful_step_count=25, deadline=None)
    )
