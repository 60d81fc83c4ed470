"""``tidelog verify``: is everything that is tiered whole and in its place?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.bucket import ClusterId, chosen_cluster
from tidelog.cli.failures import FAILED, CommandFailed, UsageError
from tidelog.cli.options import Json
from tidelog.cli.output import print_json, progress
from tidelog.cli.stores import (
    DataDir,
    Metadata,
    Objects,
    StoreLocations,
    locate_stores,
    opened_metadata,
    opened_objects,
    require_local,
    select_topics,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidelog_core.objects.store import ObjectStore

    from tidelog.cli.verification import Findings, PartitionPlan, Problem, Truth


def verify(
    context: typer.Context,
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Only these; all by default.")
    ] = None,
    *,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="URL",
            help="A bucket to check by itself, without a metadata store.",
            show_default=False,
        ),
    ] = None,
    cluster_id: ClusterId = None,
    json: Json = False,
) -> None:
    """Check every tiered segment: its objects, CRCs, hashes and offsets.

    Reads the stores, not the nodes, so it works while the cluster runs and while it
    does not. Names every object that is wrong, that nobody knows, or that is missing.
    Exit status: 0 all is well, 1 something is not.
    """
    wanted = list(topics or ())
    if from_ is not None:
        # What the environment says of a cluster is not meant for this.
        sources = map(context.get_parameter_source, ("data_dir", "metadata", "objects"))
        if any(source is not None and source.name == "COMMANDLINE" for source in sources):
            raise UsageError("--from checks a bucket by itself: give no other store with it")
        require_local(from_, "file", "object store")
        findings = asyncio.run(_verify_bucket(from_, wanted, cluster_id, is_json=json))
    else:
        if cluster_id is not None:
            raise UsageError("--cluster-id goes with --from")
        locations = locate_stores(data_dir, metadata, objects, needs_objects=True)
        findings = asyncio.run(_verify(locations, wanted, is_json=json))
    if json:
        print_json(_document(findings))
    else:
        count = len(findings.problems)
        print(
            f"{findings.segment_count} segments, {findings.size_bytes} bytes checked: "
            + (f"{count} problem{'s' * (count != 1)}" if count else "all is well")
        )
    if findings.problems:
        raise typer.Exit(FAILED)


async def _verify(locations: StoreLocations, topics: list[str], *, is_json: bool) -> Findings:
    from tidelog_core.restoration.survey import list_clusters
    from tidelog_core.tier.bucket import ClusterObjects

    from tidelog.cli.verification_plan import MetadataPlan

    assert locations.objects is not None
    async with opened_objects(locations.objects) as objects:
        async with opened_metadata(locations.metadata) as (_, image):
            cluster_id = image.cluster_id
        # Listed before the metadata is read, see MetadataPlan.
        clusters, _ = await list_clusters(objects, cluster_id)
        async with opened_metadata(locations.metadata) as (store, image):
            plan = MetadataPlan(store, image, objects)
            plans = await plan.partitions(select_topics(image, topics))
            cluster = clusters.get(cluster_id, ClusterObjects(cluster_id))
            strays = await plan.strays(cluster, is_all=not topics)
            return await _check(cluster_id, objects, plan, plans, strays, is_json=is_json)


async def _verify_bucket(
    url: str, topics: list[str], cluster_id: str | None, *, is_json: bool
) -> Findings:
    from tidelog_core.restoration.survey import read_count, survey

    from tidelog.cli.verification_plan import BucketPlan

    async with opened_objects(url) as objects:
        cluster = await chosen_cluster(objects, url, cluster_id)
        with progress("reading", total=read_count(cluster), unit="objects") as advance:
            plan = BucketPlan(await survey(objects, cluster, on_read=advance), objects)
        for name in topics:
            if name not in plan.topics:
                raise CommandFailed(f"there is no topic {name!r} in {url}")
        plans = plan.partitions(topics or plan.topics)
        return await _check(
            cluster.cluster_id, objects, plan, plans, plan.problems, is_json=is_json
        )


async def _check(
    cluster_id: str,
    objects: ObjectStore,
    truth: Truth,
    plans: Sequence[PartitionPlan],
    found: Sequence[Problem],
    *,
    is_json: bool,
) -> Findings:
    """Check what is planned, telling of each problem at once, and of those found before."""
    from tidelog.cli.verification import Verification

    with progress("verifying", total=sum(p.size_bytes for p in plans)) as advance:
        verification = Verification(
            cluster_id=cluster_id, truth=truth, objects=objects, on_bytes=advance
        )
        async for problem in verification.run(plans):
            if not is_json:
                print(_line(problem), flush=True)
    for problem in found:
        verification.add(problem)
        if not is_json:
            print(_line(problem), flush=True)
    return verification.findings


def _line(problem: Problem) -> str:
    text = f"{problem.object}: {problem.problem}"
    return text if problem.partition is None else f"{problem.partition}: {text}"


def _document(findings: Findings) -> dict[str, object]:
    return {
        "ok": not findings.problems,
        "segments": findings.segment_count,
        "bytes": findings.size_bytes,
        "problems": [
            {
                "topic": None if problem.partition is None else problem.partition.topic,
                "partition": None if problem.partition is None else problem.partition.partition,
                "object": problem.object,
                "problem": problem.problem,
            }
            for problem in findings.problems
        ],
    }
