"""``tidelog restore`` recreates a cluster from its bucket in an empty metadata store."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog_cli.failures import FAILED, UsageError
from tidelog_cli.options import Json
from tidelog_cli.output import counted, note, print_json, progress, show_reading
from tidelog_cli.stores import (
    ClusterId,
    DataDir,
    FromBucket,
    Metadata,
    require_stores,
    stores_in,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidelog_core.restoration.plan import Restoration, RestoredTopic
    from tidelog_core.restoration.schemas import RestoredSchemas
    from tidelog_core.restoration.selection import Remark


def restore(
    *,
    from_: FromBucket = None,
    metadata: Metadata = None,
    data_dir: DataDir = None,
    brokers: Annotated[
        str,
        typer.Option(
            metavar="ID,…", help="Broker ids of the nodes that will run; they get the replicas."
        ),
    ] = "1",
    replication_factor: Annotated[
        int | None,
        typer.Option(min=1, help="Replicas of each partition; each topic's own number by default."),
    ] = None,
    cluster_id: ClusterId = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read the bucket and report; write nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Restore a cluster from its bucket alone: topics, settings, records and schemas.

    For a lost metadata store. Writes topics, partitions, segments and schemas into an empty
    metadata store. Chains of diskless topics and the journal of schemas are sealed, other objects
    are only read. Then start the nodes with empty data directories and the same object store.
    Diskless topics get every acknowledged record back, and the registry every schema. Not
    restored, because the bucket does not contain them: other topics' records that were not
    tiered, groups and their offsets, node settings. Foreign and damaged objects are named, and
    the rest is restored. Exit status: 0 everything restored, 1 not everything.
    """
    metadata_url, objects_url = _locate(from_, metadata, data_dir, is_dry=dry_run)
    broker_ids = parse_brokers(brokers)
    if replication_factor is not None and replication_factor > len(broker_ids):
        raise UsageError(f"{len(broker_ids)} brokers cannot hold {replication_factor} replicas")
    restoration, schemas = asyncio.run(
        _restore(
            metadata_url,
            objects_url,
            broker_ids,
            replication_factor=replication_factor,
            cluster_id=cluster_id,
        )
    )
    if json:
        print_json(_document(restoration, schemas, is_written=not dry_run))
    else:
        _print_summary(restoration, schemas, is_written=not dry_run)
    if restoration.problems or schemas.problems:
        raise typer.Exit(FAILED)


def parse_brokers(text: str) -> tuple[int, ...]:
    """Parse broker ids like ``1,2,3``. Raises ``UsageError``."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        raise UsageError(f"--brokers {text!r} must be broker ids with commas between them")
    return tuple(dict.fromkeys(map(int, parts)))


def _locate(
    from_: str | None, metadata: str | None, data_dir: Path | None, *, is_dry: bool
) -> tuple[str | None, str]:
    """Return the URLs of metadata store and bucket; a dry run needs no metadata store."""
    if data_dir is not None:
        stores = stores_in(data_dir)
        metadata, from_ = metadata or stores.metadata, from_ or stores.objects
    if from_ is None:
        raise UsageError("no bucket to restore: give --from s3://bucket/prefix or file:///path")
    if metadata is None and not is_dry:
        raise UsageError("no metadata store to restore into: give --metadata or --data-dir")
    require_stores(objects=from_)
    if data_dir is not None and not is_dry:
        data_dir.mkdir(parents=True, exist_ok=True)
    return None if is_dry else metadata, from_


async def _restore(
    metadata_url: str | None,
    objects_url: str,
    brokers: Sequence[int],
    *,
    replication_factor: int | None,
    cluster_id: str | None,
) -> tuple[Restoration, RestoredSchemas]:
    from tidelog_core.clock import wall_clock_ms
    from tidelog_core.metadata.location import opened_metadata_store
    from tidelog_core.objects.location import opened_object_store
    from tidelog_core.restoration.chain_seals import seal_chains
    from tidelog_core.restoration.plan import plan_restoration
    from tidelog_core.restoration.restored_store import require_restorable, write_restoration
    from tidelog_core.restoration.schemas import restore_schemas
    from tidelog_core.restoration.survey import find_cluster, read_count, survey

    opening = (
        nullcontext()
        if metadata_url is None
        else opened_metadata_store(metadata_url, may_be_new=True)
    )
    async with opened_object_store(objects_url) as objects, opening as store:
        cluster, remarks = await find_cluster(objects, objects_url, cluster_id)
        for text in remarks:
            note(text)
        if store is not None:
            await require_restorable(store, cluster.cluster_id)  # Checked before hours of reading.
            await seal_chains(objects, cluster, broker_id=brokers[0], clock_ms=wall_clock_ms)
        with show_reading(read_count(cluster)) as advance:
            found = await survey(objects, cluster, on_read=advance)
        restoration = plan_restoration(
            found, brokers=brokers, replication_factor=replication_factor
        )
        if store is not None:
            total = sum(len(topic.segments) for topic in restoration.topics)
            with progress("writing", total=total, unit="segments") as advance:
                schemas = await write_restoration(store, restoration, objects, on_written=advance)
        else:
            schemas = await restore_schemas(objects, cluster.cluster_id, None)
        return restoration, schemas


def _print_summary(restoration: Restoration, schemas: RestoredSchemas, *, is_written: bool) -> None:
    problems = [*restoration.problems, *schemas.problems]
    for problem in problems:
        print(f"{problem.object}: {problem.text}")
    segments = [segment for topic in restoration.topics for segment in topic.segments]
    count = len(problems)
    chained = sum(chained_offsets(topic) for topic in restoration.topics)
    if restoration.left_out:
        note(f"left out: {counted(len(restoration.left_out), 'object')}; --json has the reasons")
    if restoration.fewer_replicas:
        names = ", ".join(restoration.fewer_replicas)
        note(f"fewer replicas than before, because there are fewer brokers: {names}")
    print(
        f"cluster {restoration.cluster_id} {'restored' if is_written else 'can be restored'}: "
        f"{counted(len(restoration.topics), 'topic')}, {counted(len(segments), 'segment')}, "
        f"{sum(segment.size_bytes for segment in segments)} bytes"
        + (f", {chained} offsets in chains" if chained else "")
        + (f", {counted(schemas.schema_count, 'schema')}" if schemas.schema_count else "")
        + "; "
        + (counted(count, "problem") if count else "no problems")
    )


def chained_offsets(restored: RestoredTopic) -> int:
    """Return the number of offsets above the tier that chains have."""
    ends = _tiered_ends(restored)
    partitions = {p.partition: p for p in restored.plan.partitions}
    return sum(
        max(0, tail.end_offset - max(ends.get(number, 0), partitions[number].log_start_offset))
        for number, tail in restored.tails.items()
    )


def _document(
    restoration: Restoration, schemas: RestoredSchemas, *, is_written: bool
) -> dict[str, object]:
    problems = [*restoration.problems, *schemas.problems]
    return {
        "ok": not problems,
        "written": is_written,
        "cluster_id": restoration.cluster_id,
        "topics": [_topic(restored) for restored in restoration.topics],
        "schemas": {"subjects": schemas.subject_count, "schemas": schemas.schema_count},
        "problems": _remarks(problems),
        "left_out": _remarks(restoration.left_out),
        "fewer_replicas": list(restoration.fewer_replicas),
    }


def _topic(restored: RestoredTopic) -> dict[str, object]:
    counts = Counter(segment.partition for segment in restored.segments)
    ends, tails = _tiered_ends(restored), restored.tails
    return {
        "topic": restored.plan.topic.name,
        "topic_id": str(restored.plan.topic.topic_id),
        "partitions": [
            {
                "partition": partition.partition,
                "replicas": list(partition.replicas),
                "segments": counts[partition.partition],
                "log_start": partition.log_start_offset,
                "tiered_end": ends.get(partition.partition),
                "chain_end": tails[partition.partition].end_offset
                if partition.partition in tails
                else None,
            }
            for partition in restored.plan.partitions
        ],
    }


def _tiered_ends(restored: RestoredTopic) -> dict[int, int]:
    ends: dict[int, int] = {}
    for segment in restored.segments:
        ends[segment.partition] = max(ends.get(segment.partition, 0), segment.end_offset)
    return ends


def _remarks(remarks: Sequence[Remark]) -> list[dict[str, str]]:
    return [{"object": remark.object, "problem": remark.text} for remark in remarks]
