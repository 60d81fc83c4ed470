"""Remembers which brokers have given a lead back to this node without having led the partition.

They may be unable to read its records: an object in the bucket is damaged, for example, while this
node has the records on its disk. To spread leads it would give them the same partition again, since
the moves follow from who leads what.
"""

from __future__ import annotations

from collections.abc import Set
from uuid import UUID

from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import Partition
from tidelog_core.model import NO_LEADER

REMEMBERED_MS = 3_600_000  # the tier has the records by then, and nobody needs the object

_Key = tuple[UUID, int]  # of a partition


class ReturnedLeads:
    """Follows the diskless partitions of which a chain of this broker has the last records."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._image: ClusterImage | None = None  # as last noted
        self._given: dict[_Key, int] = {}  # to brokers that do not lead them yet
        self._returned: dict[_Key, tuple[int, float]] = {}  # by whom, and when

    def note(self, image: ClusterImage, able: Set[int], now_ms: float) -> None:
        """Note the partitions that have changed; ``able`` are the brokers that may lead.

        A broker that is not able gives leads back for that reason.
        """
        if image is self._image:
            return
        before, self._image = self._image, image
        for topic_id, partitions in image.partitions_by_topic.items():
            if before is None or before.partitions_by_topic.get(topic_id) is not partitions:
                for partition in partitions:
                    self._visit(partition, able, now_ms)
        topic_ids = image.partitions_by_topic.keys()
        self._given = {key: to for key, to in self._given.items() if key[0] in topic_ids}
        self._returned = {
            key: (broker_id, since_ms)
            for key, (broker_id, since_ms) in self._returned.items()
            if key[0] in topic_ids and now_ms < since_ms + REMEMBERED_MS
        }

    def is_by(self, broker_id: int, partition: Partition, now_ms: float) -> bool:
        """Return whether the broker has given this lead back within the last hour."""
        key = partition.topic_id, partition.partition
        by, since_ms = self._returned.get(key, (NO_LEADER, 0.0))
        return by == broker_id and now_ms < since_ms + REMEMBERED_MS

    def _visit(self, partition: Partition, able: Set[int], now_ms: float) -> None:
        key = partition.topic_id, partition.partition
        if not partition.wal or partition.wal[-1].chain.broker_id != self._broker_id:
            self._given.pop(key, None)  # Another broker has led it since.
        elif partition.leader == self._broker_id:
            by = self._given.pop(key, NO_LEADER)
            if by in able:
                self._returned[key] = by, now_ms
        elif partition.leader != NO_LEADER:
            self._given[key] = partition.leader
