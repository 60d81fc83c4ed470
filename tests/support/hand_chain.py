"""A chain of diskless partitions that commits when a test says so."""

from __future__ import annotations

from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager

DISKLESS = {"diskless.enable": "true", "remote.storage.enable": "true"}  # settings of a topic


class HandChain:
    """Keeps the ranges that logs have grown by."""

    def __init__(self) -> None:
        self.noted: list[tuple[int, int]] = []

    def enter(self, replicas: ReplicaManager, replica: Replica, epoch: int) -> None:
        """Let the replica lead in the epoch once the image shows it."""
        replica.chain = self
        replicas.confirm_lead(replica, epoch)

    def on_append(
        self, replica: Replica, base_offset: int, end_offset: int, size_bytes: int
    ) -> None:
        assert size_bytes > 0
        self.noted.append((base_offset, end_offset))

    def leave(self, replica: Replica) -> None:
        replica.chain = None
