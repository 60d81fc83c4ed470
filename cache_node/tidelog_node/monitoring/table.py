"""Every metric of a node: its name, type, labels and meaning.

The exposition serves the metrics of this table and no others, and ``docs/metrics.md`` is generated
from it (``python -m tools.metrics``). Names begin with ``tidelog_`` and use Redpanda's nouns where
it has them. Units are base units: seconds, bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The type of a metric, as Prometheus names it."""

    COUNTER = "counter"  # since the start of the process
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. A node without anything to count has no series of it."""

    name: str  # a counter's ends with ``_total``
    kind: Kind
    labels: tuple[str, ...]
    # For an operator who sees this one alone, as in a query or ``# HELP``; without a full stop.
    meaning: str


def _counter(name: str, meaning: str, *labels: str) -> MetricSpec:
    return MetricSpec(name, Kind.COUNTER, labels, meaning)


def _gauge(name: str, meaning: str, *labels: str) -> MetricSpec:
    return MetricSpec(name, Kind.GAUGE, labels, meaning)


def _histogram(name: str, meaning: str, *labels: str) -> MetricSpec:
    return MetricSpec(name, Kind.HISTOGRAM, labels, meaning)


_NODE = (
    _gauge(
        "tidelog_application_build",
        "1, with the node's versions as labels",
        *("version", "python_version", "broker_id", "cluster_id", "compiled"),
    ),
    _gauge("tidelog_application_uptime_seconds", "Time since the process started"),
    _gauge(
        "tidelog_scrape_failed_sources",
        "Parts of the node whose metrics could not be read; their series are missing",
    ),
    _gauge("tidelog_ready", "1 if /readyz answers 200, else 0"),
    _gauge("tidelog_ready_check", "1 if this check of /readyz holds, else 0", "check"),
    _gauge(
        "tidelog_faults",
        "Current faults of the node, by kind; a kind without a fault has no series",
        "fault",
    ),
)
_REQUESTS = (
    _histogram(
        "tidelog_kafka_handler_latency_seconds",
        "Time from the arrival of a request to its answer. Fetch, ShareFetch and JoinGroup include"
        " the time that the client wants to wait",
        "api",
    ),
    _counter(
        "tidelog_kafka_request_errors_total",
        "Errors in answers, by Kafka's name. Produce and Fetch count each partition",
        *("api", "error"),
    ),
    _counter("tidelog_kafka_throttled_requests_total", "Answers that told a client to wait"),
    _counter("tidelog_kafka_throttle_seconds_total", "Time that clients over quota had to wait"),
    _gauge(
        "tidelog_kafka_request_memory_bytes",
        "Memory that unanswered requests and unsent answers hold",
    ),
    _gauge(
        "tidelog_kafka_request_memory_limit_bytes",
        "The limit of the memory for requests and answers: queued.max.request.bytes",
    ),
    _gauge(
        "tidelog_kafka_request_memory_waiting",
        "Connections that wait for memory before their request is received",
    ),
)
_CONNECTIONS = (
    _gauge("tidelog_rpc_active_connections", "Open connections", "listener"),
    _counter("tidelog_rpc_connections_accepted_total", "Connections that were let in", "listener"),
    _counter(
        "tidelog_rpc_connections_refused_total",
        "Connections that were refused because a limit of connections was reached",
        "listener",
    ),
    _counter(
        "tidelog_rpc_connections_broken_total",
        "Connections closed because of what the client sent or did not take",
        "listener",
    ),
    _counter("tidelog_security_logins_total", "Clients that proved who they are", "listener"),
    _counter(
        "tidelog_security_logins_refused_total",
        "Clients that did not prove who they are",
        "listener",
    ),
    _counter(
        "tidelog_security_denials_total",
        "Operations that ACLs deny; with authorizer.dry.run those that they would deny",
    ),
    _counter("tidelog_rpc_received_bytes_total", "Bytes of requests, before TLS", "listener"),
    _counter("tidelog_rpc_sent_bytes_total", "Bytes of answers, before TLS", "listener"),
    _gauge(
        "tidelog_client_metrics_instances",
        "Clients that asked here lately which metrics to push, or pushed some (KIP-714)",
    ),
    _counter(
        "tidelog_client_metrics_pushes_total",
        "Pushes of metrics that were accepted; outcome is forwarded, or why they are lost:"
        " queue_full, refused by the receiver, or unreachable",
        "outcome",
    ),
    _counter(
        "tidelog_client_metrics_forwarded_bytes_total",
        "Bytes of clients' metrics that the receiver took",
    ),
    _gauge(
        "tidelog_client_metrics_waiting_bytes",
        "Bytes of clients' metrics that wait for the receiver",
    ),
)
_TOPICS = (
    _counter(
        "tidelog_kafka_request_bytes_total",
        "Bytes of record batches that clients produced or consumed here, as stored; request is"
        " produce or consume",
        *("request", "topic"),
    ),
    _counter(
        "tidelog_kafka_records_produced_total",
        "Records that clients produced, by the headers of their batches, without duplicates",
        "topic",
    ),
    _counter(
        "tidelog_kafka_batches_produced_total",
        "Record batches that clients produced, without duplicates",
        "topic",
    ),
    _counter(
        "tidelog_kafka_records_consumed_total",
        "Offsets of the records in answers to consumers: records, removed ones of compacted topics,"
        " and markers of transactions. Of an answer that its size limit cuts, up to"
        " index.interval.bytes may be missing",
        "topic",
    ),
    _counter(
        "tidelog_kafka_partitions_consumed_total",
        "Partitions with records in answers to consumers",
        "topic",
    ),
    _counter(
        "tidelog_kafka_tier_bytes_consumed_total",
        "Bytes of record batches that clients consumed here and that came from the tier",
        "topic",
    ),
    _counter(
        "tidelog_kafka_replicated_bytes_total",
        "Bytes that this node fetched as a follower (in), or sent to followers (out)",
        *("direction", "topic"),
    ),
)
_PARTITIONS = (
    _gauge("tidelog_kafka_leaders", "Partitions that this node leads"),
    _gauge("tidelog_kafka_replicas", "Replicas on this node, led or followed"),
    _gauge(
        "tidelog_kafka_under_replicated_partitions",
        "Led partitions with fewer replicas in sync than replicas",
    ),
    _gauge(
        "tidelog_kafka_under_min_isr_partitions",
        "Led partitions with fewer replicas in sync than min.insync.replicas: acks=all is refused",
    ),
    _gauge(
        "tidelog_kafka_offline_replicas", "Replicas whose log cannot be used on this node just now"
    ),
    _counter("tidelog_kafka_isr_shrinks_total", "Times that this node took replicas out of an ISR"),
    _counter("tidelog_kafka_isr_expands_total", "Times that replicas joined an ISR led here"),
    _counter(
        "tidelog_raft_leadership_changes_total",
        "Leaderships that this node took, also those of its own partitions after a restart",
    ),
    _counter(
        "tidelog_kafka_unclean_elections_total",
        "Partitions that this node gave to a replica that may lack records",
    ),
    _gauge(
        "tidelog_kafka_max_offset",
        "The high watermark of a led partition; for the first 1,000 partitions",
        *("topic", "partition"),
    ),
    _gauge(
        "tidelog_kafka_log_end_offset",
        "The log end offset of a led partition; for the first 1,000 partitions",
        *("topic", "partition"),
    ),
)
_CLUSTER = (
    _gauge("tidelog_cluster_brokers", "Brokers that are registered, as this node knows them"),
    _gauge(
        "tidelog_cluster_live_brokers",
        "Registered brokers that can serve, as far as this node knows",
    ),
    _gauge("tidelog_cluster_topics", "Topics of the cluster"),
    _gauge("tidelog_cluster_partitions", "Partitions of all topics"),
    _gauge("tidelog_cluster_unavailable_partitions", "Partitions without a leader that can serve"),
    _histogram("tidelog_lease_renewal_seconds", "Time that a renewal of this node's lease took"),
    _counter(
        "tidelog_lease_renewal_failures_total",
        "Renewals of this node's lease that failed or took too long",
    ),
    _counter(
        "tidelog_wrong_suspicions_total",
        "Times that this node suspected another broker which was alive",
    ),
)
_GROUPS = (
    _gauge(
        "tidelog_kafka_consumer_groups",
        "Groups that this node coordinates; type is classic, consumer or share",
        "type",
    ),
    _gauge(
        "tidelog_kafka_consumer_group_consumers",
        "Members of the groups that this node coordinates; type is classic, consumer or share",
        "type",
    ),
    _gauge(
        "tidelog_kafka_consumer_group_lag",
        "Offsets from a group's committed offsets to the ends of a topic's partitions, in all."
        " Refreshed by the group's coordinator every metrics.group.lag.interval.ms",
        *("group", "topic"),
    ),
    _gauge(
        "tidelog_kafka_consumer_group_lag_max",
        "Offsets from a group's committed offset to the end of a partition, for the topic's"
        " partition with the most",
        *("group", "topic"),
    ),
    _gauge(
        "tidelog_kafka_consumer_group_lag_seconds",
        "Age of the next record that the group has not committed, by its timestamp; the oldest of"
        " the topic's partitions. 0 at the end, and where only markers of transactions follow",
        *("group", "topic"),
    ),
    _gauge(
        "tidelog_kafka_consumer_groups_left_out",
        "Groups that lack some of the metrics of their lag: a node follows 1,000 groups and 10,000"
        " partitions of them, and shows 2,000 of their topics",
    ),
)
_TRANSACTIONS = (
    _gauge("tidelog_kafka_transactional_ids", "Transactional ids that this node coordinates"),
    _gauge("tidelog_kafka_open_transactions", "Open transactions that this node coordinates"),
    _gauge(
        "tidelog_kafka_ending_transactions",
        "Transactions that are decided, and whose markers are not written everywhere yet",
    ),
    _gauge(
        "tidelog_kafka_oldest_open_transaction_seconds",
        "Age of the oldest open transaction that this node coordinates; 0 without any",
    ),
    _gauge(
        "tidelog_kafka_partitions_with_late_transactions",
        "Led partitions with a transaction that its coordinator should have ended: nothing was"
        " written for transaction.max.timeout.ms and 5 minutes. It holds up read_committed",
    ),
)
_STORE = (
    _counter(
        "tidelog_metadata_store_requests_total",
        "Requests to the metadata store; outcome is ok, conflict, throttled or failed",
        *("operation", "outcome"),
    ),
    _counter(
        "tidelog_metadata_store_request_seconds_total",
        "Time spent waiting for the metadata store",
        "operation",
    ),
    _counter(
        "tidelog_metadata_store_units_total",
        "Request units that DynamoDB charged; kind is read or write",
        "kind",
    ),
)
_DISK = (
    _gauge("tidelog_storage_disk_free_bytes", "Free space on the disk of the data directory"),
    _gauge("tidelog_storage_disk_total_bytes", "Size of the disk of the data directory"),
    _gauge(
        "tidelog_storage_disk_reserve_bytes",
        "Space that stays free on the disk of the data directory: with less it counts as full"
        " (log.dir.reserve.bytes)",
    ),
    _gauge(
        "tidelog_storage_disk_free_space_alert",
        "0 if the disk takes records, 1 if it is full, 2 if it has failed",
    ),
    _gauge("tidelog_storage_log_size_bytes", "Size of the open local logs"),
    _counter(
        "tidelog_storage_expired_offsets_total",
        "Offsets that retention removed from the beginning of led logs",
    ),
    _counter("tidelog_storage_scrubbed_bytes_total", "Bytes of segments that the scrubber read"),
    _counter("tidelog_storage_damaged_segments_total", "Damaged local segments that were found"),
    _counter("tidelog_storage_compactions_total", "Compactions of local logs that succeeded"),
    _counter("tidelog_storage_compaction_failures_total", "Compactions of local logs that failed"),
    _counter(
        "tidelog_storage_compaction_read_bytes_total", "Bytes that compactions of local logs read"
    ),
    _counter(
        "tidelog_storage_compaction_written_bytes_total",
        "Bytes that compactions of local logs wrote",
    ),
)
_TIER = (
    _gauge("tidelog_cloud_storage_backlog_bytes", "Size of sealed local segments yet to be tiered"),
    _gauge(
        "tidelog_cloud_storage_backlog_segments", "Number of sealed local segments yet to be tiered"
    ),
    _gauge(
        "tidelog_cloud_storage_backlog_seconds",
        "Age of the oldest sealed local segment yet to be tiered, from its last write; 0 if there"
        " is none",
    ),
    _counter("tidelog_cloud_storage_copied_segments_total", "Segments that were tiered"),
    _counter("tidelog_cloud_storage_deleted_segments_total", "Tiered segments that expired"),
    _counter(
        "tidelog_cloud_storage_evicted_bytes_total",
        "Bytes of tiered segments that were removed from the local disk",
    ),
    _gauge(
        "tidelog_cloud_storage_failing_partitions",
        "Led partitions whose tier work waits after a failure",
    ),
    _counter(
        "tidelog_cloud_storage_requests_total",
        "Requests to the object store; method is put, get, head, list or delete, outcome ok,"
        " not_found, exists, unavailable, unknown or failed",
        *("method", "outcome"),
    ),
    _counter(
        "tidelog_cloud_storage_request_seconds_total",
        "Time spent waiting for the object store",
        "method",
    ),
    _counter("tidelog_cloud_storage_uploaded_bytes_total", "Bytes sent to the object store"),
    _counter("tidelog_cloud_storage_downloaded_bytes_total", "Bytes read from the object store"),
    _histogram(
        "tidelog_cloud_storage_cold_read_seconds",
        "Time that a Fetch waited for records from the tier",
    ),
    _counter(
        "tidelog_cloud_storage_cache_hits_total", "Chunks of tiered segments that were in the cache"
    ),
    _counter(
        "tidelog_cloud_storage_cache_misses_total",
        "Chunks of tiered segments that had to be fetched from the object store",
    ),
    _gauge(
        "tidelog_cloud_storage_cache_size_bytes", "Size of the cache of tiered chunks on the disk"
    ),
    _gauge("tidelog_cloud_storage_worker_up", "1 if the tier worker is connected, else 0"),
    _counter(
        "tidelog_cloud_storage_worker_restarts_total",
        "Times that the tier worker ended and was started again",
    ),
)
_DISKLESS = (
    _gauge(
        "tidelog_diskless_buffered_bytes",
        "Records of diskless topics that wait for the object store; at diskless.buffer.max.bytes"
        " their producers are not read",
    ),
    _counter(
        "tidelog_diskless_objects_total",
        "Objects with records of diskless topics that were committed",
    ),
    _counter(
        "tidelog_diskless_object_bytes_total",
        "Bytes of records in the committed objects of diskless topics",
    ),
    _histogram(
        "tidelog_diskless_put_seconds", "Time of the PUTs that stored an object of diskless topics"
    ),
    _counter(
        "tidelog_diskless_hedges_total",
        "PUTs of objects of diskless topics that were sent once more before the first was answered",
    ),
    _counter(
        "tidelog_diskless_retries_total", "PUTs of objects of diskless topics after one that failed"
    ),
    _counter(
        "tidelog_diskless_throttled_total",
        "PUTs of objects of diskless topics that the object store refused, because they were too"
        " many",
    ),
    _counter(
        "tidelog_diskless_unknown_total",
        "PUTs of objects of diskless topics without a known outcome: no answer, or not in time",
    ),
    _counter(
        "tidelog_diskless_deposed_chains_total",
        "Chains of this node that another node has sealed, or that could not go on",
    ),
    _gauge(
        "tidelog_diskless_kept_objects",
        "Objects of the node's chain that some partition needs until its records are tiered",
    ),
    _counter(
        "tidelog_diskless_collected_objects_total",
        "Objects of the node's chain that were deleted: no partition needed them any more",
    ),
    _gauge(
        "tidelog_diskless_refused_partitions",
        "Partitions that this node should lead and refuses to: the bucket has records that the"
        " metadata store does not know, because it was set back",
    ),
    _counter(
        "tidelog_diskless_damaged_objects_total",
        "Damaged objects of chains that this node has met before it led; counted in every try."
        " Partitions that may have records in one are not led until it is restored",
    ),
    _gauge(
        "tidelog_diskless_unfilled_partitions",
        "Partitions that this node leads, of which its log does not have all records yet."
        " Consumers of these records wait",
    ),
    _gauge(
        "tidelog_diskless_unfilled_seconds",
        "Time since this node began to lead the first partition of which its log lacks records, 0"
        " without one",
    ),
    _counter(
        "tidelog_diskless_gateway_batches_total",
        "Batches that this node has taken as a gateway, for leaders in other zones",
    ),
    _counter(
        "tidelog_diskless_gateway_bytes_total",
        "Bytes of batches that this node has taken as a gateway",
    ),
    _histogram(
        "tidelog_diskless_gateway_ack_seconds",
        "Time from a batch at the gateway to the commit of its leader",
    ),
    _counter(
        "tidelog_diskless_gateway_lost_batches_total",
        "Batches at this gateway that a leader has refused, or has not answered. Their producers"
        " send them again",
    ),
    _gauge(
        "tidelog_diskless_gateway_pending_bytes",
        "Bytes of batches at this gateway that have no answer yet",
    ),
    _gauge(
        "tidelog_diskless_gateway_waiting_batches", "Batches at this gateway that wait for a leader"
    ),
    _counter(
        "tidelog_diskless_gateway_referenced_batches_total",
        "Batches that this node has appended as a leader from the objects of gateways",
    ),
    _counter(
        "tidelog_diskless_gateway_referenced_bytes_total",
        "Bytes of batches that this node has appended as a leader from the objects of gateways",
    ),
    _counter(
        "tidelog_diskless_gateway_refused_batches_total",
        "Batches of gateways that this node has refused as a leader",
    ),
    _counter(
        "tidelog_diskless_gateway_read_hedges_total",
        "Reads of gateways' objects that were sent once more before the first one was answered",
    ),
    _gauge(
        "tidelog_diskless_gateway_late_reads",
        "Objects of gateways whose batches have offsets and could not be read yet. Their partitions"
        " wait",
    ),
)
_SCHEMAS = (
    _counter(
        "tidelog_schema_registry_requests_total",
        "Requests to this node's schema registry; kind is read, look_up, check, register, delete,"
        " read_settings, change_settings or other, outcome ok, refused (the caller's fault) or"
        " failed",
        *("kind", "outcome"),
    ),
    _histogram(
        "tidelog_schema_registry_request_seconds",
        "Time from a request to this node's schema registry to its answer, with the time that it"
        " waited for its turn",
        "kind",
    ),
    _gauge(
        "tidelog_schema_registry_subjects",
        "Subjects with a version that is not deleted, in all contexts; counted once a minute",
    ),
    _gauge(
        "tidelog_schema_registry_schemas",
        "Schemas of all contexts, also those that are deleted, but not permanently",
    ),
    _counter(
        "tidelog_schema_registry_journal_damaged_objects_total",
        "Objects of the schema journal that this node has found damaged or missing in the bucket;"
        " what they had is written again from the metadata store",
    ),
    _counter(
        "tidelog_schema_registry_checkpoint_failures_total",
        "Checkpoints of the schema journal that this node could not write",
    ),
)
_COSTS = (
    _counter(
        "tidelog_cost_dollars_total",
        "What this node has cost by the price file, as far as the node counts it; read once a"
        " minute (cost.ledger.interval.ms)",
        "item",
    ),
    _gauge(
        "tidelog_cost_dollars_per_hour",
        "What this node costs in an hour at the pace of the last ten minutes; the sum of all nodes"
        " is the cluster's, without functions. The live node with the lowest id also shows what"
        " is paid for by the hour",
        "item",
    ),
    _gauge(
        "tidelog_cost_topic_dollars_per_hour",
        "The part of a node's costs an hour that belongs to a topic, for the most expensive topics",
        "topic",
    ),
    _gauge(
        "tidelog_cost_spent_dollars",
        "What the cluster has cost in this calendar month, or on this day; shown by the live node"
        " with the lowest id",
        "period",
    ),
    _gauge(
        "tidelog_cost_forecast_dollars",
        "What the cluster will have cost in this calendar month, or on this day, if it goes on as"
        " in the last 24 hours; shown by the live node with the lowest id",
        "period",
    ),
    _gauge(
        "tidelog_cost_budget_dollars",
        "The budget: cost.budget.month.dollars or cost.budget.day.dollars; no series without one;"
        " shown by the live node with the lowest id",
        "period",
    ),
    _gauge(
        "tidelog_cost_budget_passed",
        "1 if the forecast is above the budget, else 0; while the ledger is younger than an hour,"
        " what was spent counts; shown by the live node with the lowest id",
        "period",
    ),
)
SECTIONS: Mapping[str, tuple[MetricSpec, ...]] = {
    "The node": _NODE,
    "Requests": _REQUESTS,
    "Connections and clients": _CONNECTIONS,
    "Topics": _TOPICS,
    "Partitions": _PARTITIONS,
    "The cluster": _CLUSTER,
    "Groups": _GROUPS,
    "Transactions": _TRANSACTIONS,
    "The metadata store": _STORE,
    "The disk": _DISK,
    "The tier": _TIER,
    "Diskless topics": _DISKLESS,
    "Schema registry": _SCHEMAS,
    "Costs": _COSTS,
}
METRICS: Mapping[str, MetricSpec] = {
    metric.name: metric for metrics in SECTIONS.values() for metric in metrics
}
