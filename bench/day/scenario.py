"""The simulated scenario: the cluster, its load, its failures, and costs per byte and request.

All assumptions are here, with their units; constants of the product come from its code. A GB is
10^9 bytes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tidelog_core.config import NodeConfig, TopicConfig
from tidelog_core.metadata.coordination.groups import OFFSETS_PAGE_PARTITIONS

from bench.day.prices import Machine, machine_named

GB = 1e9
MIB = 1 << 20
HOUR_S = 3600
DAY_S = 24 * HOUR_S
ZONES = 3
REPLICAS = 3

# As in infra/zone.yaml; all other settings have their defaults.
LOCAL_RETENTION_S = 3600
NODE = NodeConfig()
TOPIC = TopicConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuCosts:
    """CPU seconds of one broker or worker, from bench/README.md.

    Under «Replication» three replicas take 1 / 0.28 s per GB in batches of 1 MB, divided as 1.5
    for the leader and 0.85 for each follower. A single record takes 370 us of the leader and
    980 us of all. The cost of a byte is the rest after subtracting that cost of each batch.
    """

    leader_gb: float = 1.32
    follower_gb: float = 0.66
    leader_request: float = 120e-6  # of 370 us: a produce request and a fetch of each follower
    follower_request: float = 305e-6  # on the follower, of one fetch and its records
    consumed_gb: float = 1 / 4.7  # on a busy machine; «One node» has 6.4 of an idle one
    cold_gb: float = 1.4  # «Cold reads», node and worker, at S3's pace
    tiered_gb: float = 1.3  # 0.9 for building an index, 0.4 for sending (as for receiving)
    # 1,500 idle partitions on three brokers take 0.045 of a core each: 4,000 entries of
    # fetches per second, sent or served. The model has no fetch sessions: each fetch names every
    # partition that a follower has of a leader. With sessions a node takes less.
    fetch_entry: float = 11e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A day. Rates are means over the day, except where noted."""

    seed: int = 7
    # -- the cluster --
    machines_per_zone: int = 20
    processes_per_machine: int = 3  # nodes
    machine: Machine = dataclasses.field(default_factory=lambda: machine_named("i4i.2xlarge"))
    topics: int = 100
    partitions_per_topic: int = 60
    # -- the load --
    produced_gb_per_s: float = 1.0
    peak_factor: float = (
        1.6  # of the mean, at 15:00; the night is below the mean by the same amount
    )
    popularity_exponent: float = 0.7  # Zipf's, over all partitions
    burst: float = 0.15  # standard deviation of a topic's rate around its share, a minute long
    batch_bytes: int = 64 * 1024  # of one partition in one produce request, as sent
    readers: int = 3  # consumer groups of each topic, at the tail
    members: float = 15  # of each group
    commit_interval_s: float = 5.0  # auto.commit.interval.ms of every client
    transactions_per_s: float = 50.0
    consumers_fetch_closest: bool = True  # client.rack is set
    cold_read_gb_per_s: float = 0.3  # through nodes, while a backfill runs
    cold_read_from_h: float = 2.0
    cold_read_to_h: float = 4.0
    spark_read_share: float = 1.0  # of a day's produced bytes, read once from the bucket
    # -- failures --
    machine_fails_at_h: float = 9.5
    machine_replaced_after_s: float = 240.0  # with an empty disk
    zone_fails_at_h: float = 15.0
    zone_fails_for_s: float = 600.0  # its machines are cut off and keep their disks
    # -- other --
    retention_days: float = 7.0
    function_schedule_s: float = 900.0  # between two runs for all partitions
    s3_connection_gb_per_s: float = 0.087
    table_change_latency_s: float = 0.020  # of a transaction of DynamoDB
    table_read_latency_s: float = 0.005
    zone_round_trip_s: float = 0.001  # between machines of two zones
    cpu: CpuCosts = CpuCosts()

    @property
    def machines(self) -> int:
        """Machines of all zones."""
        return self.machines_per_zone * ZONES

    @property
    def brokers(self) -> int:
        """Nodes: processes of all machines."""
        return self.machines * self.processes_per_machine

    @property
    def partitions(self) -> int:
        """Partitions of all topics."""
        return self.topics * self.partitions_per_topic

    @property
    def groups(self) -> int:
        """Consumer groups of all topics."""
        return self.topics * self.readers

    @property
    def commits_per_s(self) -> float:
        """Offset commits of all members; at this rate no two of a group share a write."""
        return self.groups * self.members / self.commit_interval_s

    @property
    def offset_pages(self) -> int:
        """Items with a group's offsets of a topic."""
        return -(-self.partitions_per_topic // OFFSETS_PAGE_PARTITIONS)

    @property
    def stored_gb(self) -> float:
        """Return the size of the bucket after retention was reached."""
        return self.produced_gb_per_s * DAY_S * self.retention_days

    def with_load(self, factor: float) -> Scenario:
        """Return the same cluster with ``factor`` times the clients and the bytes."""
        return dataclasses.replace(
            self,
            produced_gb_per_s=self.produced_gb_per_s * factor,
            cold_read_gb_per_s=self.cold_read_gb_per_s * factor,
            transactions_per_s=self.transactions_per_s * factor,
            members=self.members * factor,
        )

    def grown(self, factor: float) -> Scenario:
        """Return a cluster of ``factor`` times the size and the load.

        It has more machines, topics and groups; each of them has the same load as before.
        """
        machines = max(1, round(self.machines_per_zone * factor))
        return dataclasses.replace(
            self,
            machines_per_zone=machines,
            topics=max(1, round(self.topics * factor)),
            produced_gb_per_s=self.produced_gb_per_s * factor,
            cold_read_gb_per_s=self.cold_read_gb_per_s * factor,
            transactions_per_s=self.transactions_per_s * factor,
        )
