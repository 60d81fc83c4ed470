"""Operations that move partitions to other replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog_core.admin.partitions.partition_changes import change_partitions
from tidelog_core.admin.partitions.reassignments import reassignment
from tidelog_core.model import TopicPartition
from tidelog_core.replication.placement.reassignment import ongoing_reassignment

from tidelog_functions.admin.cluster import AdminCluster
from tidelog_functions.admin.contract import Call
from tidelog_functions.admin.http import HttpAnswer


async def list_reassignments(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Return the ongoing reassignments, of one topic or of all."""
    image = await cluster.view.refresh()
    wanted = call.parameters.get("topic")
    names = image.topics if wanted is None else [wanted]
    return _ongoing(
        cluster,
        [
            TopicPartition(name, partition.partition)
            for name in names
            for partition in image.partitions(name)
        ],
    )


async def start_reassignment(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Make other replicas the partition's target."""
    may_resize = call.body.get("allow_replication_factor_change", True)
    return await _reassign(cluster, call, call.body["replicas"], may_resize=may_resize, status=202)


async def cancel_reassignment(cluster: AdminCluster, call: Call) -> HttpAnswer:
    """Remove the replicas that are being added."""
    return await _reassign(cluster, call, None, may_resize=True, status=200)


async def _reassign(
    cluster: AdminCluster,
    call: Call,
    target: Sequence[int] | None,
    *,
    may_resize: bool,
    status: int,
) -> HttpAnswer:
    name = TopicPartition(call.parameters["topic"], call.parameters["partition"])
    await cluster.partition(name)
    decide = reassignment(target, view=cluster.view, may_resize=may_resize)
    error = (await change_partitions(cluster.store, cluster.view, {name: decide}))[name]
    if error is not None:
        raise error
    await cluster.view.refresh()
    return _ongoing(cluster, [name], status=status)


def _ongoing(
    cluster: AdminCluster, names: Sequence[TopicPartition], *, status: int = 200
) -> HttpAnswer:
    shown: list[dict[str, Any]] = []
    for name in names:
        partition = cluster.view.image.partition(name)
        ongoing = None if partition is None else ongoing_reassignment(partition)
        if ongoing is not None:
            shown.append(
                {
                    "topic": name.topic,
                    "partition": name.partition,
                    "replicas": list(ongoing.replicas),
                    "adding": list(ongoing.adding),
                    "removing": list(ongoing.removing),
                }
            )
    return HttpAnswer({"reassignments": shown}, status=status)
