"""All dimensions, with the allowed growth of each cost and its reason.

Bounds are for nodes with the compiled hot path, per unit. The bound of the workload's CPU is a
share of the first step's. Costs that are not named must not grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from bench.scaling.clients import ClientIds, Connections, Groups, LongPolls, Members
from bench.scaling.dimension import Dimension, Grown, Growth, Measure
from bench.scaling.logs import SEGMENT_SIZE_BYTES, LocalSegments, Partitions, Topics
from bench.scaling.polls import PolledPartitions
from bench.scaling.producers import IdempotentProducers, OpenTransactions
from bench.scaling.subscriptions import SubscribedTopics
from bench.scaling.synthetic import TIERED_SETTINGS, Brokers, TieredSegments
from bench.scaling.workload import Commit, Workload

_TO_THOUSAND = (1, 10, 100, 1_000)
_TO_TEN_THOUSAND = (*_TO_THOUSAND, 10_000)


def _itself(grown: Grown) -> Workload:
    return cast("Workload", grown)


def _commit(_: Grown) -> Workload:
    return Commit()


def _partition_growth(replicas: int) -> Mapping[Measure, Growth]:
    return {
        Measure.IDLE_CPU: Growth(
            0.001 * replicas,
            "nothing visits all partitions every second: a node with 10,000 may take 15 ms, and"
            " takes some 4 with none",
        ),
        Measure.WORK_CPU: Growth(
            1e-4 if replicas > 1 else 3e-5,
            "partitions without news are in no request and no loop; 1.1 times with 1,000 and 1.3"
            " times with 10,000 is the goal, for what caches and dictionaries lose",
        ),
        Measure.MEMORY: Growth(
            0.012 * replicas, "12 KB a replica: its records, an open log, two indexes"
        ),
        Measure.START_CPU: Growth(
            0.0008 * replicas,
            "each item is read, each directory listed and each log opened once: 0.8 ms a replica",
        ),
    }


DIMENSIONS: tuple[Dimension, ...] = (
    Dimension(
        "partitions",
        "a partition with one record, one replica, in topics of 1,000",
        _TO_TEN_THOUSAND,
        Partitions,
        _partition_growth(1),
    ),
    Dimension(
        "topics",
        "a topic of one partition with one record",
        _TO_TEN_THOUSAND,
        Topics,
        {
            **_partition_growth(1),
            Measure.MEMORY: Growth(0.02, "20 KB: a partition, its topic's settings and name"),
            Measure.START_CPU: Growth(0.0015, "a partition's cost, and one more item to read"),
        },
    ),
    Dimension(
        "replicas",
        "a partition with a record and three replicas, on all three nodes; the workload's"
        " partition has three too",
        _TO_THOUSAND,
        lambda: Partitions(replicas=3),
        _partition_growth(3),
        nodes=3,
        can_be_kafka=False,
    ),
    Dimension(
        "altered topics",
        "a topic of one partition with a changed setting",
        _TO_THOUSAND,
        lambda: Topics(are_altered=True),
        {
            **_partition_growth(1),
            Measure.MEMORY: Growth(0.024, "24 KB: a topic, and settings of its own"),
            Measure.START_CPU: Growth(0.002, "a topic's cost, and its settings to parse"),
        },
    ),
    Dimension(
        "polled partitions",
        "a partition of a consumer without session, which names all of them in every fetch",
        _TO_THOUSAND,
        PolledPartitions,
        {
            **_partition_growth(1),
            Measure.WORK_CPU: Growth(
                2.5e-3, "each entry of the list is read, and its log's end: 0.25 µs of 100"
            ),
        },
        workload=_itself,
    ),
    Dimension(
        "groups",
        "a group without members that has committed an offset; the workload is another's commit",
        _TO_TEN_THOUSAND,
        Groups,
        {
            Measure.MEMORY: Growth(0.008, "8 KB: its coordinator's state while it is in use"),
            Measure.START_CPU: Growth(
                0.0001, "its shard's next coordinator reads its record and its offsets: 0.1 ms"
            ),
        },
        workload=_commit,
    ),
    Dimension(
        "members",
        "a member of one group (KIP-848) with its connection and its heartbeats; the workload is"
        " another group's commit",
        _TO_THOUSAND,
        Members,
        {
            Measure.IDLE_CPU: Growth(0.06, "a heartbeat every 5 s at 300 µs"),
            Measure.MEMORY: Growth(0.03, "30 KB: a connection's task and buffers, a member"),
        },
        is_kept=False,
        workload=_commit,
        can_be_kafka=False,
    ),
    Dimension(
        "subscribed topics",
        "a topic of one partition that the one member of a group (KIP-848) subscribes to by name;"
        " the workload is the member's commit",
        _TO_THOUSAND,
        SubscribedTopics,
        {
            Measure.IDLE_CPU: _partition_growth(1)[Measure.IDLE_CPU],
            Measure.MEMORY: Growth(0.012, "12 KB: an unused topic, and its entry in the group"),
        },
        is_kept=False,
        workload=_itself,
    ),
    Dimension(
        "connections",
        "a connection that has only requested the API versions",
        (*_TO_THOUSAND, 5_000),
        Connections,
        {Measure.MEMORY: Growth(0.02, "20 KB: a task, buffers, a socket")},
        is_kept=False,
    ),
    Dimension(
        "long polls",
        "a connection that repeats a fetch of another partition, which waits 5 s",
        _TO_THOUSAND,
        LongPolls,
        {
            Measure.IDLE_CPU: Growth(0.08, "a fetch every 5 s at 400 µs, its timer included"),
            Measure.MEMORY: Growth(0.03, "30 KB: a connection, a waiting fetch"),
        },
        is_kept=False,
    ),
    Dimension(
        "client ids",
        "a client id that has produced a record to the workload's partition, and left",
        _TO_TEN_THOUSAND,
        ClientIds,
        {Measure.MEMORY: Growth(0.002, "2 KB: its counters")},
        is_kept=False,
    ),
    Dimension(
        "idempotent producers",
        "a producer id with a batch in the workload's partition",
        _TO_TEN_THOUSAND,
        IdempotentProducers,
        {
            Measure.MEMORY: Growth(0.003, "3 KB: its last five batches"),
            Measure.START_CPU: Growth(0.00005, "50 µs: the snapshot is written and read"),
        },
    ),
    Dimension(
        "open transactions",
        "an unfinished transaction with a batch in the workload's partition",
        _TO_THOUSAND,
        OpenTransactions,
        {
            Measure.MEMORY: Growth(0.02, "20 KB: a record at the coordinator, a producer in a log"),
            Measure.START_CPU: Growth(0.003, "the next coordinator claims each with a write: 3 ms"),
        },
        can_be_kafka=False,
    ),
    Dimension(
        "local segments",
        "a segment of 16 KiB of the workload's partition",
        _TO_THOUSAND,
        LocalSegments,
        {
            Measure.MEMORY: Growth(0.004, "4 KB: a segment and its indexes"),
            Measure.START_CPU: Growth(0.0005, "three files to find and check: 0.5 ms"),
        },
        hot_settings={
            "segment.bytes": str(SEGMENT_SIZE_BYTES),
            "remote.storage.enable": "false",
        },
        can_be_kafka=False,
    ),
    Dimension(
        "tiered segments",
        "a tiered segment of the workload's partition, with an item but no objects",
        (100, 1_000, 10_000, 100_000),
        TieredSegments,
        {
            Measure.MEMORY: Growth(0.0006, "0.6 KB: packed, with the numbers of its look-up"),
            Measure.START_CPU: Growth(0.00003, "its item is read once: 30 µs"),
        },
        hot_settings=TIERED_SETTINGS,
        workload=_itself,
        can_be_kafka=False,
    ),
    Dimension(
        "nodes",
        "a node that only renews its lease, beside the measured node",
        _TO_THOUSAND,
        Brokers,
        {
            Measure.IDLE_CPU: Growth(0.005, "its lease is compared, not parsed, twice a second"),
            Measure.READ_UNITS: Growth(
                0.002,
                "1,000 nodes may read 2,000 of the 3,000 units a second that one key allows",
            ),
            Measure.MEMORY: Growth(0.004, "4 KB: its record and its lease"),
            Measure.START_CPU: Growth(0.0002, "its item is read: 0.2 ms"),
        },
        can_be_kafka=False,
    ),
)
