"""``tidelog verify``: is everything that is tiered whole and in its place?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.failures import FAILED
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
    select_topics,
)

if TYPE_CHECKING:
    from tidelog.cli.verification import Findings, Problem


def verify(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Only these; all by default.")
    ] = None,
    *,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    json: Json = False,
) -> None:
    """Check every tiered segment: its objects, CRCs, hashes and offsets.

    Reads the stores, not the nodes, so it works while the cluster runs and while it
    does not. Names every object that is wrong. Exit status: 0 all is well, 1 something
    is not.
    """
    locations = locate_stores(data_dir, metadata, objects, needs_objects=True)
    findings = asyncio.run(_verify(locations, list(topics or ()), is_json=json))
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
    from tidelog.cli.verification import Verification, plan

    assert locations.objects is not None
    async with (
        opened_metadata(locations.metadata) as (store, image),
        opened_objects(locations.objects) as objects,
    ):
        plans = await plan(store, image, select_topics(image, topics))
        with progress("verifying", total=sum(p.size_bytes for p in plans)) as advance:
            verification = Verification(
                cluster_id=image.cluster_id, metadata=store, objects=objects, on_bytes=advance
            )
            async for problem in verification.run(plans):
                if not is_json:
                    print(_line(problem), flush=True)
        return verification.findings


def _line(problem: Problem) -> str:
    return f"{problem.partition}: {problem.object}: {problem.problem}"


def _document(findings: Findings) -> dict[str, object]:
    return {
        "ok": not findings.problems,
        "segments": findings.segment_count,
        "bytes": findings.size_bytes,
        "problems": [
            {
                "topic": problem.partition.topic,
                "partition": problem.partition.partition,
                "object": problem.object,
                "problem": problem.problem,
            }
            for problem in findings.problems
        ],
    }
