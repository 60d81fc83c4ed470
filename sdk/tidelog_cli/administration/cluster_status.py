"""``tidelog status``: whether the cluster is well, on one screen."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog_cli.administration.nodes import all_partitions, describe_nodes
from tidelog_cli.clients import administer
from tidelog_cli.failures import FAILED
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from tidelog_cli.output import counted, note, print_json, print_table

if TYPE_CHECKING:
    from tidelog.admin import Admin
    from tidelog_core.model import TopicPartition

NAMES_SHOWN_MAX = 5
TIERING = "remote.storage.enable"
NODE_FIELDS = (
    "node",
    "address",
    "leaders",
    "replicas",
    "log_bytes",
    "free_bytes",
    "version",
    "problem",
)


def status(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 unless all is well, as for a script.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show the cluster's nodes, leaders, replicas, disks and tier backlog.

    The backlog counts offsets that are not in the object store yet, those of active segments too.
    """
    found = administer(bootstrap, cluster_status)
    if json:
        print_json(found)
    else:
        _show(found)
    if check and not found["is_well"]:
        raise typer.Exit(FAILED)


async def cluster_status(admin: Admin) -> dict[str, Any]:
    """Return the state of the cluster for JSON."""
    from tidelog_cli.version import version_of_tidelog

    cluster = await admin.describe_cluster()
    partitions = await all_partitions(admin)
    nodes = await describe_nodes(admin)
    leaderless = [str(name) for name, one in partitions if one.leader < 0]
    under_replicated = [str(name) for name, one in partitions if len(one.isr) < len(one.replicas)]
    not_preferred = sum(one.leader not in (-1, *one.replicas[:1]) for _, one in partitions)
    moves, backlog = await asyncio.gather(
        admin.list_reassignments(),
        tier_backlog(admin, [name for name, one in partitions if one.leader >= 0]),
    )
    disk_problems = {str(one["node"]): one["problem"] for one in nodes if one["problem"]}
    return {
        "is_well": not (leaderless or under_replicated or disk_problems),
        "cluster_id": cluster.cluster_id,
        "tidelog_version": version_of_tidelog(),
        "controller": cluster.controller_id,
        "nodes": nodes,
        "topics": len({name.topic for name, _ in partitions}),
        "partitions": len(partitions),
        "leaderless": sorted(leaderless),
        "under_replicated": sorted(under_replicated),
        "not_led_by_preferred": not_preferred,
        "reassigning": sorted(map(str, moves)),
        "tier_backlog_offsets": backlog,
        "disk_problems": disk_problems,
        "mixed_versions": mixed_versions(nodes),
    }


def mixed_versions(nodes: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Return the nodes of each version of Tidelog; empty if all have the same."""
    found: dict[str, list[int]] = {}
    for node in nodes:
        found.setdefault(node["version"] or "unknown", []).append(node["node"])
    return found if len(found) > 1 else {}


async def tier_backlog(admin: Admin, partitions: list[TopicPartition]) -> int | None:
    """Return the number of offsets of tiered topics that are on nodes only.

    None if a setting or an offset of some topic may not be read.
    """
    from tidelog.errors import TidelogError

    topics = sorted({name.topic for name in partitions})
    try:
        settings = await admin.describe_several_configs("topic", topics, keys=[TIERING])
        is_tiered = {topic: found[TIERING].value == "true" for topic, found in settings.items()}
        tiered = [name for name in partitions if is_tiered.get(name.topic)]
        starts, ends, in_tier = await asyncio.gather(
            admin.list_offsets(dict.fromkeys(tiered, "earliest")),
            admin.list_offsets(dict.fromkeys(tiered, "latest")),
            admin.list_offsets(dict.fromkeys(tiered, "latest-tiered")),
        )
    except TidelogError:
        return None
    return sum(
        max(0, end.offset - max(starts[name].offset, in_tier[name].offset + 1))
        for name, end in ends.items()
    )


def _show(found: dict[str, Any]) -> None:
    nodes = found["nodes"]
    print(f"cluster {found['cluster_id']}: {'all is well' if found['is_well'] else 'degraded'}")
    print(
        f"{counted(len(nodes), 'node')}, {counted(found['topics'], 'topic')}, "
        f"{counted(found['partitions'], 'partition')}, command {found['tidelog_version']}"
    )
    for text, names in (
        ("without a leader", found["leaderless"]),
        ("under-replicated", found["under_replicated"]),
        ("being moved", found["reassigning"]),
    ):
        print(f"{text}: {_listed(names)}")
    print(f"not led by their preferred replica: {found['not_led_by_preferred']}")
    backlog = found["tier_backlog_offsets"]
    print(f"not tiered yet: {'unknown' if backlog is None else f'{backlog} offsets'}")
    rows = [[node[field] for field in NODE_FIELDS] for node in nodes]
    print_table([field.replace("_", " ") for field in NODE_FIELDS], rows)
    if found["mixed_versions"]:
        listed = "; ".join(
            f"{version} on {', '.join(map(str, ids))}"
            for version, ids in sorted(found["mixed_versions"].items())
        )
        note(f"the nodes have several versions of Tidelog: {listed}; finish the upgrade")


def _listed(names: list[str]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return f"{len(names)} ({', '.join(names[:NAMES_SHOWN_MAX])}{more})"
