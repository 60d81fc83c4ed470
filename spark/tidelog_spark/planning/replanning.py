"""Replans a split whose objects are gone: the same offsets in the current segments.

Compaction and erasure replace old segments by a new one, and the old objects are deleted
after the topic's ``file.delete.delay.ms``: a later task finds none. A rewrite changes
neither offsets nor batch boundaries, so the rest of a split is planned again as a read
from offset to offset, with the read's filters and isolation level. No I/O except in
``plan_read``, the function that planned the split.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from tidelog_core.errors import ObjectNotFound, UnknownTopicOrPartition
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.model import TopicPartition

from tidelog_spark.options.option_values import Assign, OffsetLimit
from tidelog_spark.options.read_options import ReadOptions
from tidelog_spark.planning.limits import OtherTopic
from tidelog_spark.planning.plan import Plan
from tidelog_spark.reading.splits import DataLost, Slice, Split

logger = logging.getLogger(__name__)


def replan(
    split: Split, *, options: ReadOptions, plan_read: Callable[[ReadOptions], Plan]
) -> Split:
    """Return the split with the slices that contain its offsets now.

    Raises ``DataLost`` for offsets that are gone, or, if the option allows it, omits them with
    a warning. Returns the same split if the metadata still names the missing objects. Also
    raises the errors of ``plan_read``.
    """
    slices: list[Slice] = []
    aborted: dict[AbortedTransaction, None] = {}
    try:
        for run in _runs(split.slices):
            for planned in _plan(_read_of(split, run, options), plan_read).splits:
                # A slice by time is one batch, and stays one unless it is gone.
                slices += [
                    replace(
                        part,
                        from_timestamp_ms=run[0].from_timestamp_ms,
                        until_timestamp_ms=run[0].until_timestamp_ms,
                    )
                    for part in planned.slices
                ]
                aborted |= dict.fromkeys(planned.aborted)
    except ObjectNotFound:
        return split
    except (UnknownTopicOrPartition, OtherTopic) as error:
        start, end = split.slices[0].start_offset, split.slices[-1].end_offset
        lost = f"offsets [{start}, {end}) of {split.topic}-{split.partition} are gone: {error}"
        if options.fail_on_data_loss:
            raise DataLost([lost]) from None
        logger.warning("skipped lost offsets", extra={"reason": lost})
        return replace(split, slices=())
    return replace(split, slices=tuple(slices), aborted=tuple(aborted))


def _plan(options: ReadOptions, plan_read: Callable[[ReadOptions], Plan]) -> Plan:
    """Return the plan of a run. Raises the errors of ``plan_read``.

    The tier has what is gone from a chain, and most often what is above. Looking there asks the
    metadata alone; a look at the chains reads the footers of all of their objects, in every task.
    """
    if options.is_tail_read:
        with suppress(DataLost):
            return plan_read(replace(options, is_tail_read=False, fail_on_data_loss=True))
    return plan_read(options)


def _read_of(split: Split, run: list[Slice], options: ReadOptions) -> ReadOptions:
    """Return the options to read only the run's offsets, all of which are in the bucket."""
    partition = TopicPartition(split.topic, split.partition)
    return replace(
        options,
        selection=Assign((partition,)),
        start=OffsetLimit(None, {partition: run[0].start_offset}),
        end=OffsetLimit(None, {partition: run[-1].end_offset}),
        min_partitions=0,
        nodes=None,
        is_tail_read=options.nodes is None and options.is_tail_read,
        # A topic created again has other records at these offsets.
        topic_ids={} if split.topic_id is None else {split.topic: split.topic_id},
    )


def _runs(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Return runs of slices to plan together; slices by time are single."""
    runs: list[list[Slice]] = []
    was_timed = True
    for part in slices:
        if part.start_offset >= part.end_offset:
            continue  # All of its rows have been read.
        is_timed = part.from_timestamp_ms is not None or part.until_timestamp_ms is not None
        if is_timed or was_timed:
            runs.append([])
        runs[-1].append(part)
        was_timed = is_timed
    return runs
