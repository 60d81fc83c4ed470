"""The tier's state of this node's partitions, led and followed, for their leader epochs."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from tidelog_core.errors import NotLeaderOrFollower
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.leadership import Leadership
from tidelog_core.model import TopicPartition

from tidelog_node.tier.led_partition import (
    LedPartition,
    ReplicaSource,
    TieredReplica,
    known_tiered_end,
)
from tidelog_node.tier.remote_log import RemoteLog, RemoteReader

PartitionKey = tuple[UUID, int]


class TieredPartitions:
    """Finds the tier's state of a partition. For the tasks of one event loop."""

    def __init__(
        self, *, replicas: ReplicaSource, view: ClusterView, reader: Callable[[], RemoteReader]
    ) -> None:
        """``reader`` makes the resources that a partition's tiered log reads with."""
        self._replicas = replicas
        self._view = view
        self._reader = reader
        self._led: dict[PartitionKey, LedPartition] = {}
        self._followed: dict[PartitionKey, RemoteLog] = {}  # tiered logs that followers have read
        self.may_lead_less = False  # there may be state to forget

    @property
    def failing_count(self) -> int:
        """The number of led partitions that wait after a failure."""
        return sum(led.failure_count > 0 for led in self._led.values())

    def get_led(self, key: PartitionKey) -> LedPartition | None:
        """Return the state of a led partition, of any epoch."""
        return self._led.get(key)

    def get_remote(self, key: PartitionKey) -> RemoteLog | None:
        """Return the tiered part of a partition if it is in use."""
        led = self._led.get(key)
        return self._followed.get(key) if led is None else led.remote

    def remote_log(self, replica: TieredReplica) -> RemoteLog:
        """Return the tiered part of a partition that this node leads or follows.

        Raises ``NotLeaderOrFollower`` if it does neither.
        """
        if not replica.is_follower:
            if not replica.is_leader:
                raise NotLeaderOrFollower(f"{replica.partition} is no longer on this node")
            return self.lead(replica).remote
        key = (replica.topic_id, replica.partition.partition)
        remote = self._followed.get(key)
        if remote is None:
            remote = self._followed[key] = self.new_remote_log(replica)
        return remote

    def known_led(self, replica: TieredReplica) -> LedPartition | None:
        """Return the partition's state in its current leader epoch, if there is one."""
        led = self._led.get((replica.topic_id, replica.partition.partition))
        is_same = (
            led is not None
            and led.replica is replica
            and led.leadership.leader_epoch == replica.leader_epoch
        )
        return led if is_same else None

    def lead(self, replica: TieredReplica) -> LedPartition:
        """Return the partition's state; a new one if its leader epoch has changed."""
        led = self.known_led(replica)
        if led is None:
            key = (replica.topic_id, replica.partition.partition)
            leadership = Leadership(*key, replica.leader_epoch)
            remote = self.new_remote_log(replica)
            led = self._led[key] = LedPartition(replica, leadership, remote)
        return led

    def leads(self, replica: TieredReplica) -> bool:
        """Whether this node leads the partition according to the newest image."""
        partition = self._view.image.partition(replica.partition)
        return (
            partition is not None
            and partition.topic_id == replica.topic_id
            and replica.is_leader
            and partition.leader_epoch == replica.leader_epoch
        )

    def forget_others(self) -> None:
        """Forget the partitions that this node no longer leads or follows."""
        if not self.may_lead_less:
            return
        self.may_lead_less = False
        for key, led in tuple(self._led.items()):
            if led.replica.is_dropped or not self.leads(led.replica):
                del self._led[key]
        for topic_id, number in tuple(self._followed):
            topic = self._view.image.topic_by_id(topic_id)
            named = None if topic is None else TopicPartition(topic.name, number)
            replica = None if named is None else self._replicas.get(named)
            if replica is None or replica.topic_id != topic_id or not replica.is_follower:
                del self._followed[topic_id, number]

    def new_remote_log(self, replica: TieredReplica) -> RemoteLog:
        """Return the tiered part of a partition, with nothing read yet."""
        return RemoteLog(
            self._reader(),
            replica.topic_id,
            replica.partition,
            tiered_end=lambda: known_tiered_end(replica.log),
        )
