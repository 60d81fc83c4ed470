"""Metrics of partitions, replication and the cluster, as this node's image and replicas show them.

All partitions are looked at in each scrape, in turns. Watermarks are served for the first
``WATERMARKS_MAX`` partitions that the node leads: each is two series.
"""

from __future__ import annotations

from tidelog_core.log.local_log import LocalLog
from tidelog_core.model import NO_OFFSET, RESERVED_TOPICS
from tidelog_core.turns import Turn

from tidelog_node.monitoring.request_source import histogram
from tidelog_node.monitoring.scrape import Scrape
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager

WATERMARKS_MAX = 1_000
LATE_MS = 5 * 60_000  # Source: Kafka's ``ProducerStateManager.LATE_TRANSACTION_BUFFER_MS``


class PartitionSource:
    """Reads the image, the replicas and the node's counters."""

    def __init__(self, node: NodeContext, replicas: ReplicaManager) -> None:
        self._node = node
        self._replicas = replicas

    async def collect(self, scrape: Scrape) -> None:
        """Add the series."""
        counters = self._node.counters
        scrape.add("tidelog_kafka_isr_shrinks_total", counters.isr_shrink_count)
        scrape.add("tidelog_kafka_isr_expands_total", counters.isr_expand_count)
        scrape.add("tidelog_raft_leadership_changes_total", counters.leadership_change_count)
        scrape.add("tidelog_kafka_unclean_elections_total", counters.unclean_election_count)
        scrape.add("tidelog_lease_renewal_seconds", histogram(counters.lease_renewals))
        scrape.add("tidelog_lease_renewal_failures_total", counters.lease_failure_count)
        scrape.add("tidelog_wrong_suspicions_total", counters.wrong_suspicion_count)
        await self._collect_replicas(scrape)
        await self._collect_cluster(scrape)

    async def _collect_replicas(self, scrape: Scrape) -> None:
        turn = Turn()
        replica_count = leader_count = under_replicated = under_min_isr = size_bytes = 0
        late_count, late_before_ms = 0, self._late_before_ms()
        for replica in list(self._replicas.replicas()):
            await turn.step()
            replica_count += 1
            log, followed = replica.opened_log, replica.followed
            if log is not None:
                size_bytes += log.size_bytes
            if not replica.is_leader or followed is None:
                continue
            leader_count += 1
            isr, all_replicas = _isr_of(replica), len(followed.replicas)
            under_replicated += isr < all_replicas
            wanted = min(replica.config.min_insync_replicas, all_replicas)
            under_min_isr += isr < wanted
            late_count += log is not None and await _has_late(log, turn, late_before_ms)
            if log is not None and leader_count <= WATERMARKS_MAX:
                labels = (replica.partition.topic, str(replica.partition.partition))
                scrape.add("tidelog_kafka_max_offset", log.high_watermark, *labels)
                scrape.add("tidelog_kafka_log_end_offset", log.log_end_offset, *labels)
        scrape.add("tidelog_kafka_replicas", replica_count)
        scrape.add("tidelog_kafka_leaders", leader_count)
        scrape.add("tidelog_kafka_under_replicated_partitions", under_replicated)
        scrape.add("tidelog_kafka_under_min_isr_partitions", under_min_isr)
        scrape.add("tidelog_kafka_offline_replicas", len(self._replicas.in_trouble()))
        scrape.add("tidelog_storage_log_size_bytes", size_bytes)
        scrape.add("tidelog_kafka_partitions_with_late_transactions", late_count)

    def _late_before_ms(self) -> int:
        """Return the time since when every open transaction should have ended or gone on."""
        timeout_ms = self._node.config().transaction_max_timeout_ms
        return self._node.clock_ms() - timeout_ms - LATE_MS

    async def _collect_cluster(self, scrape: Scrape) -> None:
        turn, node = Turn(), self._node
        image = node.view.image
        live = node.membership.live_brokers(image)
        topic_count = partition_count = unavailable = 0
        for name in tuple(image.topics):
            if name in RESERVED_TOPICS:
                continue
            partitions = image.partitions(name)
            topic_count += 1
            partition_count += len(partitions)
            for partition in partitions:
                await turn.step()
                unavailable += partition.leader not in live or partition.awaits_first_leader
        scrape.add("tidelog_cluster_brokers", len(image.brokers))
        scrape.add("tidelog_cluster_live_brokers", len(live))
        scrape.add("tidelog_cluster_topics", topic_count)
        scrape.add("tidelog_cluster_partitions", partition_count)
        scrape.add("tidelog_cluster_unavailable_partitions", unavailable)


async def _has_late(log: LocalLog, turn: Turn, late_before_ms: int) -> bool:
    if log.last_stable_offset >= log.high_watermark:
        return False  # As nearly always: no transaction is open.
    for _, entry in tuple(log.producers.items()):
        await turn.step()
        if entry.transaction_first_offset != NO_OFFSET and entry.last_seen_ms < late_before_ms:
            return True
    return False


def _isr_of(replica: Replica) -> int:
    leader, followed = replica.leader, replica.followed
    partition = followed if leader is None else leader.partition
    return 0 if partition is None else len(partition.isr)
