"""Reads the rows of one split: of a task of a table, of a stream, of a job.

Tasks run in other Python processes than the plan. They import neither the stores of the metadata
nor the client's messages, unless they need them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from tidelog_core.model import TopicPartition
from tidelog_core.objects.location import open_object_store
from tidelog_core.objects.store import ObjectStore

from tidelog_spark.error_hints import with_hint
from tidelog_spark.options.first_node import wait_of_attempt_ms
from tidelog_spark.options.read_options import ReadOptions
from tidelog_spark.reading.reader_process import kept_store, settled
from tidelog_spark.reading.splits import Split
from tidelog_spark.stores.missing_stores import naming_option

if TYPE_CHECKING:
    from tidelog_spark.planning.plan import Plan
    from tidelog_spark.reading.split_reader import StoreOpener


def read_rows(options: ReadOptions, split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one split of the read."""
    return _wanted_rows(options, split, partial(_opened, open_object_store, options))


def task_rows(options: ReadOptions, split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in a process of Spark's, which will read other splits too."""
    from pyspark import TaskContext  # Exports read rows without Spark.

    context = TaskContext.get()
    options = of_attempt(options, 0 if context is None else context.attemptNumber())
    rows = _wanted_rows(options, split, partial(_opened, kept_store, options), is_kept=True)
    with with_hint():
        yield from settled(rows)


def of_attempt(options: ReadOptions, attempt: int) -> ReadOptions:
    """Return the options for an attempt of a task: a later one waits less long for nodes."""
    if options.nodes is None:
        return options
    wait_ms = wait_of_attempt_ms(attempt)
    return replace(options, nodes=replace(options.nodes, first_node_timeout_ms=wait_ms))


def _opened(open_store: Callable[[str], ObjectStore], options: ReadOptions) -> ObjectStore:
    with naming_option("objects"):  # An executor may lack the driver's folder.
        return open_store(options.objects)


def _wanted_rows(
    options: ReadOptions, split: Split, open_store: StoreOpener, *, is_kept: bool = False
) -> Iterator[pa.RecordBatch]:
    rows = _all_rows(options, split, open_store, is_kept=is_kept)
    return rows if options.keys is None else _with_keys(rows, options.keys)


def _all_rows(
    options: ReadOptions, split: Split, open_store: StoreOpener, *, is_kept: bool
) -> Iterator[pa.RecordBatch]:
    if split.tail is None:
        from tidelog_spark.reading.split_reader import read_split

        return read_split(
            split,
            open_store,
            is_kept=is_kept,
            include_headers=options.include_headers,
            fail_on_data_loss=options.fail_on_data_loss,
            replan=partial(_replan, options),
        )
    from tidelog_spark.reading.tail import read_tail

    assert options.nodes is not None
    assert split.topic_id is not None
    return read_tail(
        TopicPartition(split.topic, split.partition),
        split.tail,
        options.nodes,
        topic_id=split.topic_id,
        include_headers=options.include_headers,
        is_read_committed=options.is_read_committed,
        fail_on_data_loss=options.fail_on_data_loss,
    )


def _replan(options: ReadOptions, split: Split) -> Split:
    from tidelog_spark.planning.replanning import replan

    return replan(split, options=options, plan_read=_plan_read)


def _plan_read(options: ReadOptions) -> Plan:
    from tidelog_spark.planning.table_planner import plan_read

    return plan_read(options)


def _with_keys(
    batches: Iterator[pa.RecordBatch], keys: frozenset[bytes]
) -> Iterator[pa.RecordBatch]:
    import pyarrow.compute as pc

    wanted = pa.array(sorted(keys), pa.binary())
    for batch in batches:
        found = batch.filter(pc.is_in(batch.column("key"), value_set=wanted))
        if found.num_rows:
            yield found
