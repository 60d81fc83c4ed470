"""Computes the metadata table's units per second, by purpose and for its hottest keys.

The input is rates, the output is units; the costs of one operation are measured (``operations``).
A key is a partition key of the table: all items of one query. DynamoDB allows at most 1,000 write
and 3,000 read units per second for each.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from tidelog_core.metadata.coordination.groups import shard_of_group
from tidelog_core.metadata.image.cluster_view import POLLS_PER_S_MAX
from tidelog_core.metadata.stores.dynamodb_units import (
    READ_UNIT_BYTES,
    eventual_read_units,
    read_units,
)
from tidelog_core.replication.leases.lease_times import LeaseTimes
from tidelog_core.replication.leases.lease_watch import WATCHERS_MIN, unhurried_interval_ms
from tidelog_core.tier.contents import OVERLAPPING_COUNT_MAX
from tidelog_node.membership.peer_watch import READINGS_PER_RENEWAL

from bench.day.amounts import Amounts
from bench.day.cluster import Cluster, Floats
from bench.day.operations import COSTS, ITEM_BYTES
from bench.day.scenario import DAY_S, GB, NODE, TOPIC, Scenario

KEY_WRITE_UNITS, KEY_READ_UNITS = 1000, 3000  # a second. Source: developer guide, partition keys
RENEWALS_PER_S = 1000 / LeaseTimes().renew_ms
LEASE_READINGS_PER_S = RENEWALS_PER_S * READINGS_PER_RENEWAL  # of a watcher, ``PeerWatch``
RETENTION_ROUND_S = NODE.log_retention_check_interval_ms / 1000

LOG_START = COSTS["a node advances a log start"]
COPY = (COSTS["begin a copy"], COSTS["finish a copy"])
DELETION = (COSTS["a node begins a deletion"], COSTS["a node drops a segment"])
COMMIT = COSTS["commit 4 of the 60 offsets in a page"]
TRANSACTION = COSTS["carry out a transaction"]
LISTED = "segment"


@dataclass(slots=True)
class Load:
    """Units of a second, or of a longer time."""

    writes: Amounts = field(default_factory=Amounts)  # by purpose
    reads: Amounts = field(default_factory=Amounts)
    key_writes: Amounts = field(default_factory=Amounts)  # by partition key
    key_reads: Amounts = field(default_factory=Amounts)

    def add(self, other: Load, times: float = 1.0) -> None:
        """Add the other load, multiplied by ``times``."""
        self.writes.add(other.writes, times)
        self.reads.add(other.reads, times)
        self.key_writes.add(other.key_writes, times)
        self.key_reads.add(other.key_reads, times)


def lease_list_units(registered: int) -> int:
    """Return the read units of one reading of all leases."""
    return read_units(registered * ITEM_BYTES["lease"])


def polls_per_s(brokers: int) -> float:
    """Return the number of polls of each broker for the cluster version."""
    return min(1000 / NODE.metadata_poll_interval_ms, POLLS_PER_S_MAX / max(1, brokers))


def lease_readings_per_s(alive: int, registered: int) -> float:
    """Return the number of readings of all leases, by all brokers."""
    watchers = min(alive, WATCHERS_MIN)
    unhurried = min(LEASE_READINGS_PER_S, 1000 / unhurried_interval_ms(registered))
    return watchers * LEASE_READINGS_PER_S + (alive - watchers) * unhurried


def segment_list_units(scenario: Scenario, cluster: Cluster) -> Floats:
    """Return the read units of listing each partition's segments, after retention was reached."""
    gb = cluster.share * scenario.produced_gb_per_s * DAY_S * scenario.retention_days
    counts = gb * GB / TOPIC.segment_bytes
    return np.maximum(1.0, np.ceil(counts * ITEM_BYTES["segment"] / READ_UNIT_BYTES))


def idle_load(scenario: Scenario, alive: int) -> Load:
    """Return the load of idle brokers per second."""
    load = Load()
    load.writes["leases"] = alive * RENEWALS_PER_S * COSTS["renew a lease"].writes
    readings = lease_readings_per_s(alive, scenario.brokers) * lease_list_units(scenario.brokers)
    load.reads["leases"] = readings
    polls = alive * polls_per_s(alive) * COSTS["poll, nothing has changed"].reads
    load.reads["polls"] = polls
    load.key_writes["broker-lease"] = load.writes["leases"]
    load.key_reads["broker-lease"] = readings
    load.key_reads["#cluster"] = polls
    return load


def client_load(scenario: Scenario) -> Load:
    """Return the load of offset commits and transactions per second."""
    load = Load()
    pages = COMMIT.write_units["offset"] * scenario.offset_pages
    check = COMMIT.write_units["group"]
    load.writes["offset commits"] = scenario.commits_per_s * (pages + check)
    load.writes["transactions"] = scenario.transactions_per_s * TRANSACTION.writes
    a_group = scenario.members / scenario.commit_interval_s
    load.key_writes["offset:<a group>"] = a_group * pages
    groups = groups_of_busiest_shard(scenario)
    load.key_writes["group:<busiest shard>"] = groups * a_group * check
    return load


def changelog_entry_bytes(keys: float) -> float:
    """Return the size of a changelog entry of ``keys`` keys, each of another topic."""
    further = ITEM_BYTES["changelog entry, each further key"]
    return ITEM_BYTES["changelog entry of one key"] + (keys - 1) * further


def changes_load(alive: int, commits: float, keys: float) -> Load:
    """Return the reads of all brokers for ``commits`` logged commits per second.

    Each commit changes ``keys`` keys. A poll reads all new entries of the changelog at once.
    """
    load = Load()
    if commits <= 0:
        return load
    polls = polls_per_s(alive)
    asking = polls * -math.expm1(-commits / polls)  # polls that find new entries
    found_bytes = changelog_entry_bytes(keys) * commits / asking
    entries = alive * asking * eventual_read_units(math.ceil(found_bytes))
    load.reads["changes"] = entries + alive * commits * keys
    load.key_reads["#changelog"] = entries
    return load


def log_starts_load(moves: float) -> Load:
    """Return the load of advancing log starts per second, each a logged commit of one key."""
    load = Load()
    load.writes["log starts"] = moves * LOG_START.writes
    load.reads["log starts"] = moves * LOG_START.reads
    load.key_writes["#cluster"] = moves * LOG_START.write_units["#cluster"]
    load.key_writes["#changelog"] = moves * LOG_START.write_units["#changelog"]
    return load


def segments_load(copied: float, deleted: float) -> Load:
    """Return the load of tiering and deleting segments per second, without log starts."""
    load = Load()
    load.writes["segments"] = copied * sum(c.writes for c in COPY)
    load.writes["segments"] += deleted * sum(c.writes for c in DELETION)
    load.reads["segments"] = copied * sum(c.reads for c in COPY)
    load.reads["segments"] += deleted * sum(c.reads for c in DELETION)
    return load


def eviction_units() -> int:
    """Return the read units of a follower's ``read_tiered_end`` before it evicts a segment."""
    segment = ITEM_BYTES["segment"]
    return read_units(OVERLAPPING_COUNT_MAX * segment) + read_units(segment)


def functions_load(lists: float, others: float) -> Load:
    """Return the reads of retention's functions: listed segments, and each call's other reads."""
    load = Load()
    call = COSTS["a function finds nothing due"]
    load.reads["retention functions"] = lists + others * (call.reads - call.read_units[LISTED])
    return load


def groups_of_busiest_shard(scenario: Scenario) -> int:
    """Return the number of the scenario's groups on the shard that has most."""
    shards = Counter(
        shard_of_group(f"group-{number}", NODE.offsets_topic_num_partitions)
        for number in range(scenario.groups)
    )
    return max(shards.values())
