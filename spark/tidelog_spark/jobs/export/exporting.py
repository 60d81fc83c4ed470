"""A run of an export: from the table's end offsets to the end of the tiered log.

One run: prepare the table, read its offsets, plan from there, write files in tasks, commit
files and offsets together. A run that fails before the commit has no visible effect, and
the next one repeats its work.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID, uuid4

import pyarrow as pa
from tidelog_core.metadata.location import opened_metadata_store
from tidelog_core.model import TopicPartition
from tidelog_core.objects.location import opened_object_store

from tidelog_spark.jobs.export.export_tasks import (
    WriteSettings,
    WriteTask,
    exported_schema,
    write_tasks,
)
from tidelog_spark.jobs.outside_loops import outside_loops
from tidelog_spark.jobs.tables.erasable_table import delete_uncommitted
from tidelog_spark.jobs.tables.export_table import (
    ColumnConflict,
    ExportConflict,
    ExportTable,
    Offsets,
    TimePartitions,
    WrittenFile,
    partition_id,
)
from tidelog_spark.jobs.tables.table_lease import TableLease
from tidelog_spark.jobs.task_runner import TaskRunner
from tidelog_spark.jobs.values.decoding import RAW, DecoderSpec
from tidelog_spark.options.option_values import Subscribe
from tidelog_spark.options.positions import Positions
from tidelog_spark.options.read_options import parse_options
from tidelog_spark.planning.table_planner import plan_read
from tidelog_spark.reading.splits import DataLost, Split
from tidelog_spark.stores.catalog import load_catalog
from tidelog_spark.stores.chain_tails import ChainTails

logger = logging.getLogger(__name__)

# A task's files are about as large as its input, if that compresses equally.
TASK_SIZE_BYTES = 128 << 20
NAMED_MAX = 5  # partitions in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """The topics to export, and the format."""

    metadata: str
    objects: str
    topics: tuple[str, ...]
    decoder: DecoderSpec = RAW
    partitions: TimePartitions = TimePartitions.DAY
    include_headers: bool = False
    keeps_bad_records: bool = False
    is_read_committed: bool = True
    fail_on_data_loss: bool = True
    offsets_per_partition_max: int | None = None  # in one run; None: no limit
    include_tail: bool = False  # of diskless topics: what chains have and the tier lacks


@dataclass(frozen=True, slots=True)
class SourcePartition:
    """A partition to export from."""

    name: TopicPartition
    topic_id: UUID
    log_start_offset: int
    end_offset: int

    @property
    def id(self) -> str:
        """The name under which a table has the partition's offset."""
        return partition_id(self.topic_id, self.name.partition)


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The offsets ``[start, end)`` of a partition that a run exports."""

    partition: SourcePartition
    start: int
    end: int

    @property
    def name(self) -> TopicPartition:
        """The partition's name."""
        return self.partition.name


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The result of a run."""

    run_id: str
    row_count: int
    size_bytes: int
    file_count: int
    ranges: tuple[PartitionRange, ...]  # only those with something to export


def export(
    runner: TaskRunner,
    request: ExportRequest,
    table: ExportTable,
    *,
    lease: TableLease | None = None,
) -> ExportResult:
    """Append to the table up to the end of the tiered log, each record once.

    With a ``lease``, which is taken if there is something to export, raises ``TableBusy`` while
    another run has it. Raises ``ExportConflict`` if another export came first, ``SchemaConflict``,
    ``InvalidConfig`` for a table among the segments, ``DataLost`` if retention has deleted records
    before their export, ``OtherTopic`` if a topic was created again meanwhile, ``BadRecord`` (in a
    task) and the stores' errors. After any error the table is unchanged.
    """
    return outside_loops(partial(_export, runner, request, table, lease))


def _export(
    runner: TaskRunner, request: ExportRequest, table: ExportTable, lease: TableLease | None
) -> ExportResult:
    partitions = asyncio.run(_partitions(request))
    # After the ends are known: the schema of each record before them is in the registry by now.
    request = replace(request, decoder=request.decoder.renewed())
    schema = _prepared(request, table, partitions)
    exported = table.offsets([one.id for one in partitions])
    ranges = _ranges(request, partitions, exported)
    if ranges and lease is not None and lease.take(table.location):
        # The run that had it before may have exported since the table was read.
        schema = _prepared(request, table, partitions)
        ranges = _ranges(request, partitions, table.offsets([one.id for one in partitions]))
    run_id = str(uuid4())
    if not ranges:
        return ExportResult(run_id, 0, 0, 0, ())
    files = write_files(runner, request, table, schema=schema, ranges=ranges, run_id=run_id)
    offsets = {one.partition.id: one.end for one in ranges}
    try:
        table.commit(files, offsets, run_id=run_id)
    except ExportConflict as conflict:
        left = delete_uncommitted(f"{table.location}/{one.path}" for one in files)
        raise ExportConflict(f"{conflict}{left}") from None
    return ExportResult(
        run_id,
        sum(one.row_count for one in files),
        sum(one.size_bytes for one in files),
        len(files),
        tuple(ranges),
    )


def _prepared(
    request: ExportRequest, table: ExportTable, partitions: Sequence[SourcePartition]
) -> pa.Schema:
    """Return the schema of the table, which has all columns. Raises ``SchemaConflict``."""
    schema = exported_schema(
        request.decoder.open(),
        include_headers=request.include_headers,
        keeps_bad_records=request.keeps_bad_records and request.decoder.format != "raw",
    )
    try:
        return table.prepare(schema, segments=request.objects)
    except ColumnConflict as conflict:
        exported = table.offsets([one.id for one in partitions])
        waiting = [
            f"offset {start} of {one.name}"
            for one in partitions
            if (start := exported.get(one.id, one.log_start_offset)) < one.end_offset
        ]
        more = f" and {len(waiting) - NAMED_MAX} more" if len(waiting) > NAMED_MAX else ""
        raise ColumnConflict(
            [
                *conflict.problems,
                f"the export's columns are those of {request.decoder.describe_columns()}; not"
                f" exported from {', '.join(waiting[:NAMED_MAX]) or 'the end'}{more} on: export an"
                " older version of the schema, or a compatible one, or into another table",
            ]
        ) from None


def write_files(
    runner: TaskRunner,
    request: ExportRequest,
    table: ExportTable,
    *,
    schema: pa.Schema,
    ranges: Sequence[PartitionRange],
    run_id: str,
) -> list[WrittenFile]:
    """Write the ranges' rows. The files are invisible until they are committed."""
    read = parse_options(
        {
            "metadata": request.metadata,
            "objects": request.objects,
            "assign": json.dumps(_numbers(ranges)),
            # With the topics' ids: one may have been deleted and created again meanwhile.
            "startingOffsets": _positions({one.partition: one.start for one in ranges}),
            "endingOffsets": _positions({one.partition: one.end for one in ranges}),
            # Schemas may be named there.
            "includeHeaders": str(
                request.include_headers or request.decoder.format == "registry"
            ).lower(),
            # Without the tail the ranges end where the tier ends.
            "disklessTail": str(request.include_tail).lower(),
            "failOnDataLoss": str(request.fail_on_data_loss).lower(),
            "isolation": "read_committed" if request.is_read_committed else "read_uncommitted",
        }
    )
    tasks = grouped(plan_read(read).splits)
    if not tasks:
        return []
    settings = WriteSettings(
        read=read,
        decoder=request.decoder,
        keeps_bad_records=request.keeps_bad_records,
        location=table.location,
        schema=schema,
        partitions=request.partitions,
        run_folder=f"run={run_id}" if table.has_partition_columns else f"data/{run_id}",
    )
    return runner.run(tasks, partial(write_tasks, settings=settings))


def grouped(splits: Sequence[Split], size_bytes: int = TASK_SIZE_BYTES) -> list[WriteTask]:
    """Return tasks of about the size, so small splits share files. No I/O."""
    groups: list[list[Split]] = []
    filled_bytes = size_bytes
    for split in splits:
        split_bytes = sum(part.size_bytes for part in split.slices)
        if filled_bytes + split_bytes > size_bytes:
            groups.append([])
            filled_bytes = 0
        groups[-1].append(split)
        filled_bytes += split_bytes
    return [WriteTask(number, tuple(group)) for number, group in enumerate(groups)]


def _numbers(ranges: Sequence[PartitionRange]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for one in ranges:
        found.setdefault(one.name.topic, []).append(one.name.partition)
    return found


def _positions(offsets: Mapping[SourcePartition, int]) -> str:
    ids = {one.name.topic: one.topic_id for one in offsets}
    positions = Positions({one.name: offset for one, offset in offsets.items()}, ids)
    return json.dumps(positions.to_json())


async def _partitions(request: ExportRequest) -> list[SourcePartition]:
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened_metadata_store(request.metadata))
        tails = None
        if request.include_tail:
            objects = await stack.enter_async_context(opened_object_store(request.objects))
            tails = ChainTails(objects, is_read_committed=request.is_read_committed)
        catalog = await load_catalog(store, Subscribe(request.topics), tails=tails)
    return [
        SourcePartition(
            log.partition,
            catalog.topic_ids[log.partition.topic],
            log.log_start_offset,
            log.end_offset,
        )
        for log in catalog.logs
    ]


def _ranges(
    request: ExportRequest, partitions: Sequence[SourcePartition], exported: Offsets
) -> list[PartitionRange]:
    """Return the ranges to export, of partitions that have new records."""
    ranges: list[PartitionRange] = []
    lost: list[str] = []
    for one in partitions:
        start = exported.get(one.id, one.log_start_offset)
        if start < one.log_start_offset:
            lost.append(
                f"offsets [{start}, {one.log_start_offset}) of {one.name} were deleted"
                " before they were exported"
            )
            start = one.log_start_offset
        end = one.end_offset
        if request.offsets_per_partition_max is not None:
            end = min(end, start + request.offsets_per_partition_max)
        if start < end:
            ranges.append(PartitionRange(one, start, end))
    if lost and request.fail_on_data_loss:
        raise DataLost(lost)
    for problem in lost:
        logger.warning("skipped lost offsets", extra={"reason": problem})
    return ranges
