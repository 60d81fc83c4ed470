"""``tidelog node``: the nodes of a cluster, and moving the leaderships away from one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog_cli.clients import administer
from tidelog_cli.failures import FAILED, CommandFailed
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from tidelog_cli.output import counted, note, print_json, print_rows

if TYPE_CHECKING:
    from tidelog.admin import Admin
    from tidelog.administering.results import PartitionDescription
    from tidelog_core.model import TopicPartition


def list_(*, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """List the live nodes: addresses, leaderships, replicas and free disk."""
    columns = (
        "node",
        "address",
        "rack",
        "leaders",
        "replicas",
        "free bytes",
        "of bytes",
        "problem",
    )
    print_rows(administer(bootstrap, describe_nodes), columns, is_json=json)


def drain(
    node: Annotated[int, typer.Argument(metavar="NODE", help="The node's id.")],
    *,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Move the leaderships of NODE to other replicas, as before its machine is stopped.

    The node becomes the last choice among the replicas and stays in sync. To undo it, reassign
    the partitions with NODE first. Exit status 1 if partitions are left, for which no other
    replica is in sync.
    """

    async def run(admin: Admin) -> tuple[list[str], list[str]]:
        return await _drain(admin, node)

    moved, kept = administer(bootstrap, run)
    if json:
        print_json({"node": node, "moved": moved, "kept": kept})
    else:
        print(f"{counted(len(moved), 'leadership')} moved away from node {node}")
    for name in kept:
        note(f"{name} stays: no other replica is in sync")
    if kept:
        raise typer.Exit(FAILED)


async def describe_nodes(admin: Admin) -> list[dict[str, Any]]:
    """Return a row for each live node; what cannot be asked of a node is None."""
    cluster = await admin.describe_cluster()
    led, held = Counter[int](), Counter[int]()
    for _, partition in await all_partitions(admin):
        led[partition.leader] += 1
        held.update(partition.replicas)
    disks = {one.node_id: one for one in await admin.describe_log_dirs()}
    versions = await admin.describe_versions()
    return [
        {
            "node": node.node_id,
            "address": f"{node.host}:{node.port}",
            "rack": node.rack,
            "leaders": led[node.node_id],
            "replicas": held[node.node_id],
            "free_bytes": disk.usable_bytes if (disk := disks.get(node.node_id)) else None,
            "total_bytes": disk.total_bytes if disk else None,
            "problem": disk.error if disk else None,  # withheld from who may not describe it
            "log_bytes": sum(r.size_bytes for r in disk.replicas) if disk else None,
            "version": versions.get(node.node_id),
        }
        for node in cluster.nodes
    ]


async def require_node(admin: Admin, node: int) -> set[int]:
    """Return the ids of the live nodes. Raises ``CommandFailed`` if this one is not among them."""
    known = {one.node_id for one in (await admin.describe_cluster()).nodes}
    if node not in known:
        raise CommandFailed(f"there is no live node {node}; live nodes: {_listed(known)}")
    return known


async def all_partitions(
    admin: Admin, *, internal: bool = False
) -> list[tuple[TopicPartition, PartitionDescription]]:
    """Return every partition of the cluster."""
    from tidelog_core.model import TopicPartition

    names = [listed.name for listed in await admin.list_topics(include_internal=internal)]
    described = await admin.describe_topics(names)
    return [
        (TopicPartition(topic.name, partition.partition), partition)
        for topic in described.values()
        for partition in topic.partitions
    ]


async def _drain(admin: Admin, node: int) -> tuple[list[str], list[str]]:
    """Return the partitions whose leadership has moved, and those that the node keeps."""
    known = await require_node(admin, node)
    wanted: dict[tuple[str, int], tuple[int, ...]] = {}
    led: list[TopicPartition] = []
    kept: list[str] = []
    for name, partition in await all_partitions(admin, internal=True):
        if node not in (partition.leader, *partition.replicas[:1]):
            continue
        others = [n for n in partition.replicas if n != node]
        others.sort(key=lambda n: n not in partition.isr or n not in known)  # stable
        if not others or others[0] not in partition.isr or others[0] not in known:
            kept.append(str(name))
            continue
        wanted[name] = (*others, *([node] if node in partition.replicas else []))
        if partition.leader == node:
            led.append(name)
    moved = await admin.alter_reassignments(wanted) if wanted else {}
    elected = await admin.elect_leaders([name for name in led if not moved.get(name)])
    failed = {name for name, error in (*moved.items(), *elected.items()) if error is not None}
    kept += [str(name) for name in failed]
    return sorted(str(name) for name in led if name not in failed), sorted(set(kept))


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ids)))
