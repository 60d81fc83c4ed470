"""Keeps the logs of diskless partitions that this node has left while nobody leads them.

An election or a move can take a node out of the replicas before the next leader has read the
records. If that leader finds one of their objects damaged, it gives the partition to the leader
before (``PassedLeads``), whose log may be the only copy. So a log goes once another broker leads
the partition, or if its topic does.

The log stays open, and nothing uses it: a close flushes it, and thousands may be left at once. A
thread closes it before the next replica of the partition opens it again.

A log that is being opened again (``LogReopener``) is left only afterwards, whatever becomes of it:
until then a thread works on its files. If its partition returns, the next replica waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidelog_core.diskless.wal.epoch_chains import current_chain
from tidelog_core.errors import StorageError, TidelogError
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import Partition
from tidelog_core.model import TopicPartition

from tidelog_node.replicas.replica import Replica

logger = logging.getLogger(__name__)


class LeftLogs:
    """The dropped replicas whose logs are kept. For the node's event loop."""

    def __init__(self, remove: Callable[[TopicPartition, Replica], None]) -> None:
        """``remove`` removes the log of a dropped replica."""
        self._remove = remove
        self._kept: dict[str, dict[int, Replica]] = {}  # by topic
        # This node is a replica of them again, and has not opened their logs again.
        self._returned: dict[TopicPartition, Replica] = {}
        self._reopening: dict[TopicPartition, Replica] = {}  # dropped ones too

    def replicas(self) -> list[Replica]:
        """Return all whose logs are kept."""
        kept = (replica for kept in self._kept.values() for replica in kept.values())
        return [*kept, *self._returned.values()]

    def opened(self) -> list[Replica]:
        """Return those whose logs are open. A start keeps the others without opening them."""
        return [replica for replica in self.replicas() if replica.opened_log is not None]

    def leave(self, replica: Replica, image: ClusterImage) -> None:
        """Keep the log of a dropped replica, or remove it."""
        topic, index = replica.partition
        reopening = self._reopening.get(replica.partition)
        if reopening is not None:
            if reopening is not replica:
                replica.let_go()  # It has no log.
            return  # The other one is left once the files are free.
        replica = self._returned.pop(replica.partition, replica)  # It was not opened again.
        if not _is_unled(replica, image):
            self._remove(replica.partition, replica)
            return
        self._kept.setdefault(topic, {})[index] = replica
        logger.info(
            "log kept until another broker leads its partition",
            extra={"partition": str(replica.partition)},
        )

    def follow_topic(self, image: ClusterImage, name: str) -> None:
        """Remove the logs of the topic's partitions that are led by now."""
        kept = self._kept.get(name, {})
        for index, replica in tuple(kept.items()):
            if not _is_unled(replica, image):
                del kept[index]
                self._remove(replica.partition, replica)
        if not kept:
            self._kept.pop(name, None)

    def take_back(self, partition: TopicPartition) -> None:
        """Note that this node is a replica of the partition again."""
        replica = self._kept.get(partition.topic, {}).pop(partition.partition, None)
        if replica is not None:
            self._returned[partition] = replica

    def begin_reopening(self, replica: Replica) -> None:
        """Note that the replica's log is being opened again."""
        self._reopening[replica.partition] = replica

    def end_reopening(self, replica: Replica) -> None:
        """Note that its files are free, or its own if it was not dropped."""
        del self._reopening[replica.partition]

    def is_reopening(self, partition: TopicPartition) -> bool:
        """Whether the log of a replica of the partition is being opened again."""
        return partition in self._reopening

    def require_free(self, replica: Replica) -> None:
        """Raise ``StorageError`` while another replica's log is being opened again there.

        For any thread.
        """
        if self._reopening.get(replica.partition, replica) is not replica:
            raise StorageError(f"the files of {replica.partition} are in use, try again")

    def has_returned(self, partition: TopicPartition) -> bool:
        """Whether the partition's kept log is to be closed before it is opened again."""
        return partition in self._returned

    def close_returned(self, partition: TopicPartition) -> None:
        """Close the partition's log if it was taken back: it is to be opened. For any thread."""
        replica = self._returned.pop(partition, None)
        if replica is None:
            return
        try:
            replica.close()
        except (TidelogError, OSError) as error:
            # The log is recovered when it is opened.
            logger.warning(
                "log not closed in order",
                extra={"partition": str(partition), "reason": str(error)},
            )
        replica.let_go()


def _is_unled(replica: Replica, image: ClusterImage) -> bool:
    """Whether the replica's partition has records in chains, and no leader that has entered it."""
    topic, index = image.topic(replica.partition.topic), replica.partition.partition
    if topic is None or topic.topic_id != replica.topic_id:
        return False
    partitions = image.partitions(topic.name)
    return index < len(partitions) and _waits_for_leader(partitions[index])


def _waits_for_leader(partition: Partition) -> bool:
    last = current_chain(partition.wal) if partition.is_diskless else None
    if last is None:
        return False
    entered = last.leader_epoch == partition.leader_epoch
    return not (entered and last.chain.broker_id == partition.leader)
