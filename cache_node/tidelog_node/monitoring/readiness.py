"""Decides whether clients should be sent to this node: the answer of ``/readyz``.

A node is ready if every check holds. The checks of a node that starts or stops say so; the others
read the state that the node acts on, so they cost no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tidelog_core.metadata.image.cluster_view import poll_seconds

from tidelog_node.disk.data_disk import DataDisk
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica_manager import ReplicaManager

STORE_SILENCE_SECONDS_MAX = 10.0  # since the last reading of the metadata store


class Phase(StrEnum):
    """The phases of a node's life."""

    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "draining"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a ready node has."""

    name: str
    is_ok: bool
    detail: str


class Readiness:
    """The checks of one node. For its event loop; the wiring adds the parts as it makes them."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.phase = Phase.STARTING
        self._node: NodeContext | None = None
        self._replicas: ReplicaManager | None = None

    def join(self, node: NodeContext) -> None:
        """Take the node's context: the cluster has been read."""
        self._node = node

    def recover(self, replicas: ReplicaManager) -> None:
        """Take the replicas: their logs are recovered."""
        self._replicas = replicas

    @property
    def node(self) -> NodeContext | None:
        """The node's context; ``None`` before the cluster was read."""
        return self._node

    def checks(self) -> Sequence[Check]:
        """Return every check, in the order in which a start fulfils them."""
        node, replicas = self._node, self._replicas
        store = Check("metadata_store", False, "not read yet") if node is None else _store(node)
        logs, disk = Check("logs", False, "not recovered yet"), Check("disk", False, "not checked")
        if replicas is not None:
            logs, disk = _logs(replicas), _disk(replicas.disk)
        has_lease = node is not None and node.membership.can_serve()
        lease = Check("lease", has_lease, "held" if has_lease else "not held: the node is fenced")
        phase = Check("phase", self.phase is Phase.SERVING, str(self.phase))
        return (phase, store, logs, disk, lease)


def _store(node: NodeContext) -> Check:
    view = node.view
    if view.failure:
        return Check("metadata_store", False, view.failure)
    interval_s = node.static_config.metadata_poll_interval_ms / 1000
    silent_s = view.seconds_since_read()
    is_ok = silent_s < STORE_SILENCE_SECONDS_MAX + poll_seconds(view.image, interval_s)
    return Check("metadata_store", is_ok, f"read {silent_s:.1f} s ago")


def _logs(replicas: ReplicaManager) -> Check:
    """A partition that is offline does not keep clients of all others away."""
    offline = len(replicas.in_trouble())
    return Check("logs", True, f"recovered, {offline} offline" if offline else "recovered")


def _disk(disk: DataDisk) -> Check:
    if disk.has_failed:
        return Check("disk", False, "failed")
    if disk.is_full:
        return Check("disk", False, "full: less is free than log.dir.reserve.bytes")
    return Check("disk", True, "works")
