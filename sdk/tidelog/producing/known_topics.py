"""The topics that a producer sends to: their partitions, partitioners and queues."""

from __future__ import annotations

from collections.abc import Callable

from tidelog_core.model import TopicPartition

from tidelog.cluster import Cluster
from tidelog.given_values import partition_number
from tidelog.metadata import TopicInfo
from tidelog.partitioners import TopicPartitioner
from tidelog.producing.accumulator import PartitionQueue


class KnownTopic:
    """A topic's partitions and partitioner."""

    __slots__ = ("metadata_version", "partition_count", "partitioner", "partitions", "queues")

    def __init__(self, partitioner: TopicPartitioner) -> None:
        self.partitioner = partitioner
        self.partitions: tuple[TopicPartition, ...] = ()
        self.partition_count = 0
        self.queues: dict[int, PartitionQueue] = {}  # of the partitions that records were sent to
        self.metadata_version = -1


class KnownTopics:
    """The topics of one producer."""

    def __init__(
        self,
        cluster: Cluster,
        make_partitioner: Callable[[str], TopicPartitioner],
        check_open: Callable[[], None],
        *,
        timeout_s: float,
    ) -> None:
        """``check_open`` raises once the producer is closed, which it may be during a wait."""
        self._cluster = cluster
        self._make_partitioner = make_partitioner
        self._check_open = check_open
        self._timeout_s = timeout_s
        self.by_name: dict[str, KnownTopic] = {}

    async def current(self, topic: str, partition: int | None = None) -> KnownTopic:
        """Return the topic, updated from the metadata, once that has the partition.

        The cluster must have been started. Raises as ``RecordWriter.send``.
        """
        if partition is not None:
            partition = partition_number(partition)
        known = self.by_name.get(topic)
        if known is None or known.metadata_version != self._cluster.version:
            info = self._cluster.topic(topic)
            if info is None or info.error or not info.partitions:
                info = await self._cluster.wait_for_topic(topic, timeout_s=self._timeout_s)
            known = self._update(info)
        if partition is None or 0 <= partition < known.partition_count:
            return known
        info = self._cluster.topic(topic)
        assert info is not None, "known"
        return self._update(
            await self._cluster.wait_for_partition(info, partition, timeout_s=self._timeout_s)
        )

    def _update(self, info: TopicInfo) -> KnownTopic:
        self._check_open()
        topic = info.name
        known = self.by_name.get(topic)
        if known is None:
            known = self.by_name[topic] = KnownTopic(self._make_partitioner(topic))
        if known.partition_count != info.partition_count:
            known.partitions = tuple(TopicPartition(topic, number) for number in info.partitions)
            known.partition_count = info.partition_count
        known.metadata_version = self._cluster.version
        return known
