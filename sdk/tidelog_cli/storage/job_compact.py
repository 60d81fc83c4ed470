"""``tidelog job compact`` keeps only the newest tiered record of each key."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog_cli.failures import FAILED, CommandFailed, UsageError
from tidelog_cli.options import Json
from tidelog_cli.output import note, print_json, print_table
from tidelog_cli.storage.jobs import Submit, run_spark_job
from tidelog_cli.stores import (
    DataDir,
    Metadata,
    Objects,
    StoreLocations,
    locate_stores,
    opened_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidelog_core.tier_compaction.compact import CompactionReport
    from tidelog_core.tier_compaction.targets import RewriteTarget


Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", help="Only this topic; all compacted topics by default.", show_default=False
    ),
]
Partitions = Annotated[
    list[int] | None,
    typer.Option(
        "--partition",
        min=0,
        help="Only this partition, of one topic; may be repeated.",
        show_default=False,
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Compact even below min.cleanable.dirty.ratio.")
]


def compact(
    *,
    topics: Topics = None,
    partitions: Partitions = None,
    force: Force = False,
    spark: Annotated[
        bool, typer.Option("--spark", help="Distribute the partitions over a Spark cluster.")
    ] = False,
    submit: Submit = "",
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    json: Json = False,
) -> None:
    """Compact the tiered segments of topics with cleanup.policy=compact.

    Works on the stores, with or without running nodes, and does not disturb them; it can be
    stopped at any time and run again. Replaced objects are deleted after
    file.delete.delay.ms, by the next run or by retention.
    """
    locations = locate_stores(data_dir, metadata, objects)
    if spark:
        arguments = spark_arguments(locations, topics or (), partitions or (), is_forced=force)
        arguments += ["--json"] if json else []
        raise typer.Exit(run_spark_job("compact", arguments, submit=submit))
    reports, problems = asyncio.run(_compact(locations, topics or [], partitions or [], force))
    report_outcome(reports, problems, is_json=json)


def spark_arguments(
    locations: StoreLocations, topics: Sequence[str], partitions: Sequence[int], *, is_forced: bool
) -> list[str]:
    """Return the arguments of the equivalent Spark job."""
    arguments = ["--metadata", locations.metadata, "--objects", locations.objects]
    for topic in topics:
        arguments += ["--topic", topic]
    for partition in partitions:
        arguments += ["--partition", str(partition)]
    return [*arguments, "--force"] if is_forced else arguments


async def targets_of(
    locations: StoreLocations, topics: Sequence[str], partitions: Sequence[int]
) -> list[RewriteTarget]:
    """Return the partitions to compact: of the named topics, or of all compacted ones.

    Raises ``UsageError``, ``UnknownTopicOrPartition``, and ``CommandFailed`` for a named topic
    that is not compacted.
    """
    from tidelog_core.metadata.stored_cluster import select_topics
    from tidelog_core.tier_compaction.targets import rewrite_targets

    if partitions and len(topics) != 1:
        raise UsageError("--partition needs exactly one --topic")
    async with opened_metadata(locations.metadata) as (_, image):
        targets: list[RewriteTarget] = []
        for name in select_topics(image, topics):
            found = rewrite_targets(
                image,
                name,
                metadata=locations.metadata,
                objects=locations.objects,
                partitions=partitions,
            )
            if found and "compact" not in found[0].config.cleanup_policy:
                if topics:
                    raise CommandFailed(
                        f"topic {name!r} is not compacted: set cleanup.policy=compact first"
                    )
                continue
            targets += found
        return targets


async def _compact(
    locations: StoreLocations, topics: list[str], partitions: list[int], is_forced: bool
) -> tuple[list[CompactionReport], list[str]]:
    """Return the reports and the failures; a failed partition does not stop the others."""
    from tidelog_core.errors import TidelogError
    from tidelog_core.tier_compaction.compact import compact_partition

    reports, problems = [], []
    for target in await targets_of(locations, topics, partitions):
        try:
            async with target.opened() as tier:
                reports.append(await compact_partition(tier, is_forced=is_forced))
        except TidelogError as error:
            problems.append(f"{target.name}: {type(error).__name__}: {error}")
    return reports, problems


def report_outcome(
    reports: Sequence[CompactionReport], problems: Sequence[str], *, is_json: bool
) -> None:
    """Print one row, or one JSON object, per partition; fail if there are problems."""
    _print_reports(reports, is_json=is_json)
    for problem in problems:
        note(problem)
    if problems:
        raise typer.Exit(FAILED)


def _print_reports(reports: Sequence[CompactionReport], *, is_json: bool) -> None:
    if is_json:
        print_json([report.document() for report in reports])
        return
    print_table(
        ("topic", "partition", "outcome", "segments", "bytes", "before", "records removed"),
        [
            (
                report.partition.topic,
                report.partition.partition,
                report.outcome.value,
                report.segments_after,
                report.bytes_after,
                report.bytes_before,
                report.removed_records,
            )
            for report in reports
        ],
    )
