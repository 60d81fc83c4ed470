"""Start and end offsets of a read, from its options and the existing logs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tidelog_core.errors import CorruptObject, ErrorCode, InvalidConfig, TidelogError
from tidelog_core.model import TopicPartition
from tidelog_core.objects.store import ObjectStore

from tidelog_spark.options.option_values import EARLIEST, LATEST, Limit, OffsetLimit, TimestampLimit
from tidelog_spark.options.read_options import ReadOptions
from tidelog_spark.planning.plan import NoSuchTimestamp
from tidelog_spark.planning.plan_run import run_plan
from tidelog_spark.reading.splits import DataLost, Slice, Split
from tidelog_spark.stores.catalog import Catalog, gather
from tidelog_spark.stores.partition_log import PartitionLog

if TYPE_CHECKING:
    from tidelog_spark.nodes import Nodes

logger = logging.getLogger(__name__)

Offsets = dict[TopicPartition, int]


class OtherTopic(TidelogError):
    """A topic was deleted and created again since the offsets were noted."""

    code = ErrorCode.inconsistent_topic_id


def check_limits(options: ReadOptions, catalog: Catalog) -> None:
    """Raise ``InvalidConfig`` unless the limits name exactly the partitions to read.

    Raises ``OtherTopic`` if the limits belong to another topic of the same name.
    """
    partitions = {log.partition for log in catalog.logs}
    problems = [
        *_partition_problems("starting", options.start, partitions),
        *_partition_problems("ending", options.end, partitions),
    ]
    if problems:
        raise InvalidConfig(problems)
    recreated = [
        f"topic {topic!r} was deleted and created again since its offsets were noted, or they are"
        f" of another cluster: its id was {topic_id} and is {catalog.topic_ids[topic]}; give"
        " offsets of the present topic"
        for topic, topic_id in options.topic_ids.items()
        if catalog.topic_ids.get(topic, topic_id) != topic_id
    ]
    if recreated:
        raise OtherTopic("; ".join(recreated))


async def start_offsets(
    options: ReadOptions, catalog: Catalog, objects: ObjectStore, nodes: Nodes | None
) -> Offsets:
    """Return each partition's start offset. Raises as ``check_limits`` and ``plan``."""
    limit = options.start
    if isinstance(limit, OffsetLimit):
        return {log.partition: _offset(limit, log) for log in catalog.logs}
    found = await _search(options, limit, catalog, objects, nodes)
    absent = sorted(partition for partition, offset in found.items() if offset is None)
    if absent and not options.is_late_start_latest:
        raise NoSuchTimestamp(
            f"no record of {', '.join(map(str, absent))} is as new as the start; with"
            " startingOffsetsByTimestampStrategy=latest such a partition is read from its end"
        )
    return _or_end(found, catalog)


async def written_starts(
    options: ReadOptions, catalog: Catalog, starts: Offsets, nodes: Nodes | None
) -> Offsets:
    """Return the starts of a stream, none of them after the end of its log on the nodes.

    A stream would wait there and pass over the records before. Without nodes nobody knows whether
    there are records after the tier's end, so such a start is kept. Raises ``DataLost``, unless
    data loss is tolerated.
    """
    ends = {log.partition: log.end_offset for log in catalog.logs}
    late = [partition for partition, start in starts.items() if start > ends[partition]]
    if nodes is None or not late:
        return starts
    # A start may be behind an open transaction, at which readers of committed data end.
    high_watermarks = await nodes.high_watermarks(late)
    known = {p: max(end, ends[p]) for p, end in high_watermarks.items()}
    written = {partition: end for partition, end in known.items() if starts[partition] > end}
    problems = [
        f"the stream would start at {starts[partition]} of {partition}, which ends at {end}"
        for partition, end in written.items()
    ]
    if problems and options.fail_on_data_loss:
        raise DataLost(problems)
    for problem in problems:
        logger.warning("start is moved to the end of the log", extra={"reason": problem})
    return {**starts, **written}


async def end_offsets(
    options: ReadOptions, catalog: Catalog, objects: ObjectStore, nodes: Nodes | None
) -> Offsets:
    """Return each partition's end offset, exclusive."""
    limit = options.end
    if isinstance(limit, OffsetLimit):
        return {log.partition: _offset(limit, log) for log in catalog.logs}
    return _or_end(await _search(options, limit, catalog, objects, nodes), catalog)


async def with_node_ends(logs: Iterable[PartitionLog], nodes: Nodes) -> list[PartitionLog]:
    """Return the logs with their end offsets on the nodes."""
    ends = await nodes.end_offsets(log.partition for log in logs)
    return [replace(log, node_end_offset=ends.get(log.partition)) for log in logs]


def _offset(limit: OffsetLimit, log: PartitionLog) -> int:
    asked = limit.everywhere
    if asked is None:
        asked = limit.by_partition[log.partition]
    return {EARLIEST: log.log_start_offset, LATEST: log.end_offset}.get(asked, asked)


def _or_end(found: dict[TopicPartition, int | None], catalog: Catalog) -> Offsets:
    ends = {log.partition: log.end_offset for log in catalog.logs}
    return {p: ends[p] if offset is None else offset for p, offset in found.items()}


async def _search(
    options: ReadOptions,
    limit: TimestampLimit,
    catalog: Catalog,
    objects: ObjectStore,
    nodes: Nodes | None,
) -> dict[TopicPartition, int | None]:
    """Return each partition's first offset at or after its time, or ``None``."""
    times = {
        log.partition: limit.by_partition[log.partition]
        if limit.everywhere is None
        else limit.everywhere
        for log in catalog.logs
    }
    if nodes is not None:
        return await nodes.offsets_of_times(times)
    # Imported late: it loads the compiler, which other planning does not need.
    from tidelog_spark.reading.split_reader import first_offset_of_time

    # Planned as a read from these times on; then each partition's first batch is read.
    search = replace(
        options,
        start=limit,
        end=OffsetLimit(LATEST, {}),
        is_late_start_latest=True,
        is_read_committed=False,
        fail_on_data_loss=False,
        keys=None,
    )
    planned = await run_plan(search, catalog, catalog.logs, objects)

    async def read_offset(one: tuple[Split, Slice]) -> tuple[TopicPartition, int]:
        split, part = one
        end = part.position + part.size_bytes
        data = await objects.get_range(part.object_key, part.position, end)
        if len(data) != part.size_bytes:
            raise CorruptObject(part.object_key, f"it ends before byte {end}")
        partition = TopicPartition(split.topic, split.partition)
        return partition, first_offset_of_time(part, bytes(data))

    timed = [
        (split, part)
        for split in planned.splits
        for part in split.slices
        if part.from_timestamp_ms is not None
    ]
    return {**dict.fromkeys(times), **dict(await gather(read_offset, timed))}


def _partition_problems(side: str, limit: Limit, partitions: set[TopicPartition]) -> Sequence[str]:
    if limit.everywhere is not None or limit.by_partition.keys() == partitions:
        return ()
    option = f"{side}Offsets" if isinstance(limit, OffsetLimit) else f"{side}OffsetsByTimestamp"
    absent = ", ".join(map(str, sorted(partitions - limit.by_partition.keys())))
    surplus = ", ".join(map(str, sorted(limit.by_partition.keys() - partitions)))
    problems = []
    if absent:
        problems.append(f"option {option!r} must name every partition that is read; add {absent}")
    if surplus:
        problems.append(f"option {option!r} names {surplus}, not among the partitions read")
    return problems
