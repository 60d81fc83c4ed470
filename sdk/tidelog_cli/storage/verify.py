"""``tidelog verify`` checks that all tiered segments are intact and in place."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from tidelog_cli.failures import FAILED, LEFT_OVER, UsageError
from tidelog_cli.named_arguments import OnlyTopics
from tidelog_cli.options import Json
from tidelog_cli.output import counted, note, print_json, progress, show_reading
from tidelog_cli.storage.admin_api import AdminApi, AdminUrl, chosen_api
from tidelog_cli.stores import (
    ClusterId,
    DataDir,
    FromBucket,
    Metadata,
    Objects,
    locate_stores,
    require_stores,
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
    admin_url: AdminUrl = None,
    json: Json = False,
) -> None:
    """Check every tiered segment: its objects, CRCs, hashes and offsets.

    Of diskless topics the objects of chains are checked too, and that no offset is missing.
    Reads only the stores, so the cluster may be running or stopped. Names every object that is
    damaged, unknown or missing, and leftovers of abandoned copies, which the scrub removes.
    Exit status: 0 no problems, 1 problems found, 3 only leftovers found.
    """
    from tidelog_core.verification.source import planned_by_bucket, planned_by_metadata

    wanted = list(topics or ())
    api = chosen_api(context, admin_url, "data_dir", "metadata", "objects", "from_")
    if api is not None:
        _verify_by_admin_api(api, wanted, is_json=json)
        return
    if from_ is not None:
        # With --from, the environment's store URLs do not apply.
        sources = map(context.get_parameter_source, ("data_dir", "metadata", "objects"))
        if any(source is not None and source.name == "COMMANDLINE" for source in sources):
            raise UsageError("--from checks a bucket alone: remove the other store options")
        require_stores(objects=from_)
        opening = planned_by_bucket(from_, wanted, cluster_id, show_reading=show_reading)
    else:
        if cluster_id is not None:
            raise UsageError("--cluster-id needs --from")
        locations = locate_stores(data_dir, metadata, objects)
        opening = planned_by_metadata(locations.metadata, locations.objects, wanted)
    findings = asyncio.run(_check(opening, is_json=json))
    found = findings.document()
    if json:
        print_json(found)
    _end(found, is_json=json)


def _verify_by_admin_api(api: AdminApi, topics: list[str], *, is_json: bool) -> None:
    """Have the admin API check them, and print what it found."""
    _, found = api.run_job("/verifications", {"topics": api.topics(topics) if topics else []})
    for text in found.pop("notes"):
        note(text)
    if is_json:
        print_json(found)
    else:
        for one in (*found["problems"], *found["leftovers"]):
            where = "" if one["topic"] is None else f"{one['topic']}-{one['partition']}: "
            print(f"{where}{one['object']}: {one['problem']}")
    _end(found, is_json=is_json)


def _end(found: Mapping[str, Any], *, is_json: bool) -> None:
    """Print the summary unless JSON was printed, and exit with the status of the findings."""
    problems, leftovers = found["problem_count"], found["leftover_count"]
    if not is_json:
        outcome = counted(problems, "problem") if problems else "all is well"
        if leftovers:
            outcome += f", {counted(leftovers, 'object')} left over"
        chains = found.get("chain_objects", 0)
        also = f" and {counted(chains, 'object')} of chains" if chains else ""
        print(f"{found['segments']} segments, {found['bytes']} bytes{also} checked: {outcome}")
    if problems:
        raise typer.Exit(FAILED)
    if leftovers:
        raise typer.Exit(LEFT_OVER)


async def _check(opening: AbstractAsyncContextManager[Planned], *, is_json: bool) -> Findings:
    """Check planned segments; print each problem at once, and earlier ones at the end."""
    from tidelog_core.verification.check_run import check_planned

    def show(problem: Problem) -> None:
        if not is_json:
            print(_line(problem), flush=True)

    async with opening as planned:
        for text in planned.notes:
            note(text)
        with progress("verifying", total=sum(p.size_bytes for p in planned.partitions)) as advance:
            return await check_planned(planned, on_bytes=advance, on_problem=show)


def _line(problem: Problem) -> str:
    text = f"{problem.object}: {problem.problem}"
    return text if problem.partition is None else f"{problem.partition}: {text}"
