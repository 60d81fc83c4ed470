"""``tidelog verify`` checks that all tiered segments are intact and in place."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import typer

from tidelog_cli.failures import FAILED, LEFT_OVER, UsageError
from tidelog_cli.named_arguments import OnlyTopics
from tidelog_cli.options import Json
from tidelog_cli.output import counted, note, print_json, progress, show_reading
from tidelog_cli.stores import (
    ClusterId,
    DataDir,
    FromBucket,
    Metadata,
    Objects,
    locate_stores,
    require_local,
)

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from tidelog_core.verification.segment_check import Problem
    from tidelog_core.verification.source import Planned
    from tidelog_core.verification.verification import Findings


def verify(
    context: typer.Context,
    topics: OnlyTopics = None,
    *,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    from_: FromBucket = None,
    cluster_id: ClusterId = None,
    json: Json = False,
) -> None:
    """Check every tiered segment: its objects, CRCs, hashes and offsets.

    Reads only the stores, so the cluster may be running or stopped. Names every object that is
    damaged, unknown or missing, and leftovers of abandoned copies, which the scrub removes.
    Exit status: 0 no problems, 1 problems found, 3 only leftovers found.
    """
    from tidelog_core.verification.source import planned_by_bucket, planned_by_metadata

    wanted = list(topics or ())
    if from_ is not None:
        # With --from, the environment's store URLs do not apply.
        sources = map(context.get_parameter_source, ("data_dir", "metadata", "objects"))
        if any(source is not None and source.name == "COMMANDLINE" for source in sources):
            raise UsageError("--from checks a bucket alone: remove the other store options")
        require_local(from_, "file", "object store")
        opening = planned_by_bucket(from_, wanted, cluster_id, show_reading=show_reading)
    else:
        if cluster_id is not None:
            raise UsageError("--cluster-id needs --from")
        locations = locate_stores(data_dir, metadata, objects)
        opening = planned_by_metadata(locations.metadata, locations.objects, wanted)
    findings = asyncio.run(_check(opening, is_json=json))
    if json:
        print_json(_document(findings))
    else:
        print(_summary(findings))
    if findings.problems:
        raise typer.Exit(FAILED)
    if findings.leftovers:
        raise typer.Exit(LEFT_OVER)


async def _check(opening: AbstractAsyncContextManager[Planned], *, is_json: bool) -> Findings:
    """Check planned segments; print each problem at once, and earlier ones at the end."""
    from tidelog_core.verification.verification import Verification

    async with opening as planned:
        for text in planned.notes:
            note(text)
        with progress("verifying", total=sum(p.size_bytes for p in planned.partitions)) as advance:
            verification = Verification(
                cluster_id=planned.cluster_id,
                truth=planned.truth,
                objects=planned.objects,
                on_bytes=advance,
            )
            async for problem in verification.run(planned.partitions):
                if not is_json:
                    print(_line(problem), flush=True)
        for problem in planned.strays:
            verification.add(problem)
            if not is_json:
                print(_line(problem), flush=True)
        return verification.findings


def _summary(findings: Findings) -> str:
    problems, leftovers = len(findings.problems), len(findings.leftovers)
    outcome = counted(problems, "problem") if problems else "all is well"
    if leftovers:
        outcome += f", {counted(leftovers, 'object')} left over"
    return f"{findings.segment_count} segments, {findings.size_bytes} bytes checked: {outcome}"


def _line(problem: Problem) -> str:
    text = f"{problem.object}: {problem.problem}"
    return text if problem.partition is None else f"{problem.partition}: {text}"


def _document(findings: Findings) -> dict[str, object]:
    return {
        "ok": not findings.problems,
        "segments": findings.segment_count,
        "bytes": findings.size_bytes,
        "problems": [_row(problem) for problem in findings.problems],
        "leftovers": [_row(leftover) for leftover in findings.leftovers],
    }


def _row(problem: Problem) -> dict[str, object]:
    name = problem.partition
    return {
        "topic": None if name is None else name.topic,
        "partition": None if name is None else name.partition,
        "object": problem.object,
        "problem": problem.problem,
    }
