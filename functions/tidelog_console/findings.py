"""The cluster's faults, from the answers of nodes and stores. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidelog_console.facts import NAMES_SHOWN_MAX, ClusterFacts
from tidelog_console.node_pages import NodePage

BAD, WARN = "bad", "warn"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and what to do next."""

    severity: str
    what: str
    detail: str
    next_step: str


# A metric that is over 0 only while something is wrong; metrics.md has their meanings.
_METRICS = (
    (
        "tidelog_kafka_under_min_isr_partitions",
        BAD,
        "partitions refuse acks=all: too few replicas are in sync",
        "start the nodes that are missing",
    ),
    (
        "tidelog_kafka_offline_replicas",
        BAD,
        "replicas cannot be used on this node",
        "its log names each file and reason; see docs/operations.md",
    ),
    (
        "tidelog_cloud_storage_failing_partitions",
        WARN,
        "partitions wait after a failure of the object store",
        "its log has the store's answer; records stay on the node until it takes them",
    ),
    (
        "tidelog_kafka_partitions_with_late_transactions",
        WARN,
        "partitions have a transaction that nobody ends",
        "tidelog transaction find-hanging names them, abort ends them",
    ),
    (
        "tidelog_storage_damaged_segments_total",
        WARN,
        "damaged local segments were found since the node started",
        "its log names the files; tidelog verify checks the tier",
    ),
    (
        "tidelog_scrape_failed_sources",
        WARN,
        "parts of the node's metrics cannot be read",
        "its log has the cause",
    ),
)


def of_cluster(facts: ClusterFacts) -> Iterator[Finding]:
    """Yield the nodes' findings about partitions and disks."""
    if facts.leaderless:
        yield Finding(
            BAD,
            f"{len(facts.leaderless)} partitions have no leader",
            _names(facts.leaderless),
            "start the nodes that have their replicas: tidelog topic describe names them",
        )
    if facts.under_replicated:
        yield Finding(
            WARN,
            f"{len(facts.under_replicated)} partitions lack a replica in sync",
            _names(facts.under_replicated),
            "look for a node that is away or slow",
        )
    for node, problem in facts.disk_problems:
        yield Finding(
            BAD,
            f"the disk of node {node} has a problem",
            problem,
            "give it space, or replace it; see the runbook",
        )


def of_nodes(pages: Sequence[NodePage]) -> Iterator[Finding]:
    """Yield each node's findings about itself."""
    for one in pages:
        name = f"node {one.broker_id}" if one.broker_id is not None else one.address
        if one.problem:
            yield Finding(
                BAD,
                f"{one.address} does not answer",
                one.problem,
                "start the node again if nothing does; its log says why it ended",
            )
            continue
        for check, answer in one.checks.items():
            if not answer.get("ok"):
                yield Finding(
                    BAD,
                    f"{name} is not ready: {check}",
                    str(answer.get("detail", "")),
                    "clients are sent to the other nodes until it is",
                )
        for fault in one.faults:
            yield Finding(
                WARN,
                f"{name}: {fault.get('name')}",
                str(fault.get("detail", "")),
                "docs/troubleshooting.md has the message",
            )
        for metric, severity, what, step in _METRICS:
            value = one.metrics.get(metric, 0.0)
            if value > 0:
                yield Finding(severity, f"{name}: {value:g} {what}", metric, step)
        if (
            one.metrics.get("tidelog_cloud_storage_worker_restarts_total", 0) > 0
            and one.metrics.get("tidelog_cloud_storage_worker_up") == 0
        ):
            yield Finding(
                BAD,
                f"{name}: the tier worker does not run",
                "tidelog_cloud_storage_worker_up",
                "its log says why it ended; it is started again",
            )


def of_store(unreadable: Sequence[str]) -> Iterator[Finding]:
    """Yield the metadata items that cannot be read."""
    for sentence in unreadable[:NAMES_SHOWN_MAX]:
        yield Finding(
            BAD,
            "the metadata store has a damaged item",
            sentence,
            "tidelog repair restores it from the bucket, or says what it cannot",
        )


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return ", ".join(names[:NAMES_SHOWN_MAX]) + more
