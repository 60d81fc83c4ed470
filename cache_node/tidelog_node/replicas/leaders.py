"""Finds the leader of a partition named in a request, and the error if it is another node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from tidelog_core.errors import (
    NotLeaderOrFollower,
    TidelogError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Partition
from tidelog_core.model import TopicPartition

from tidelog_node.wire.produce import Endpoint


@dataclass(frozen=True, slots=True)
class CurrentLeader:
    """A partition's leader in the image."""

    leader_id: int
    leader_epoch: int


class Leaders:
    """Finds partitions in the newest image, by their topic's name or id in bytes."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    def find(self, topic: bytes, partition: int, *, is_id: bool) -> CurrentLeader | None:
        """Return the partition's leader, ``None`` if it has none."""
        found = self.partition_of(topic, partition, is_id=is_id)
        if found is None or found.leader < 0 or found.awaits_first_leader:
            return None
        return CurrentLeader(found.leader, found.leader_epoch)

    def partition_of(self, topic: bytes, partition: int, *, is_id: bool) -> Partition | None:
        """Return the partition in the image, ``None`` if there is no such one."""
        return _partition(self._view.image, topic, partition, is_id=is_id)

    def endpoint(self, broker_id: int, listener: str) -> Endpoint | None:
        """Return a broker's endpoint for clients of a listener, ``None`` if it has none."""
        broker = self._view.image.brokers.get(broker_id)
        endpoint = None if broker is None else broker.endpoint_of(listener)
        if broker is None or endpoint is None:
            return None
        return Endpoint(broker_id, endpoint.host, endpoint.port, broker.rack)

    def endpoints(self, broker_ids: Iterable[int], listener: str) -> list[Endpoint]:
        """Return the endpoints of the brokers that have one for clients of the listener."""
        found = [self.endpoint(broker_id, listener) for broker_id in sorted(broker_ids)]
        return [endpoint for endpoint in found if endpoint is not None]

    def replica_epoch(self, broker_id: int) -> int | None:
        """Return the version of a broker's registration, ``None`` if it is not registered."""
        broker = self._view.image.brokers.get(broker_id)
        return None if broker is None else broker.version

    def refusal(self, topic: bytes, partition: int, *, is_id: bool) -> TidelogError:
        """Return the error that says why this node does not lead the partition."""
        image = self._view.image
        if _partition(image, topic, partition, is_id=is_id) is not None:
            return NotLeaderOrFollower("another node leads the partition")
        self._view.nudge()  # It may be too new for this node's image.
        if is_id and image.topic_by_id(UUID(bytes=topic)) is None:
            return UnknownTopicId("no topic has this id")
        return UnknownTopicOrPartition("no such topic or partition")


def _partition(
    image: ClusterImage, topic: bytes, partition: int, *, is_id: bool
) -> Partition | None:
    if is_id:
        found = image.topic_by_id(UUID(bytes=topic))
        name = None if found is None else found.name
    else:
        name = topic.decode(errors="replace")
    return None if name is None else image.partition(TopicPartition(name, partition))
