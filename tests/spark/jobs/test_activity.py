"""Who did what, from tiered events of the audit topic."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
from pyspark.sql import SparkSession
from tidelog_core.audit.events import (
    AUDIT_TOPIC,
    Activity,
    Actor,
    AuditEvent,
    AuditKind,
    EventSource,
    Resource,
    encode_event,
)
from tidelog_core.records.encode import build_batch
from tidelog_core.records.record import Record
from tidelog_spark.jobs.activity import ActivityRequest, activity

from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.peer import Peer
from tests.support.tiered_cluster import TieredCluster

pytestmark = pytest.mark.slow

SOURCE = EventSource("cluster", 1)
MARCH = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000)
APRIL = int(datetime(2026, 4, 1, tzinfo=UTC).timestamp() * 1000)
NO_CREATION = {"allow_auto_topic_creation": False}
ALICE, BOB = Actor("User:alice", "10.0.0.1", 1, "app"), Actor("User:bob", "10.0.0.2", 2, "etl")


def read(actor: Actor, topic: str, at_ms: int, count: int = 1) -> AuditEvent:
    resource = Resource("Topic", topic)
    return AuditEvent(
        AuditKind.CONSUME, actor, "Fetch", Activity.READ, (resource,), "", at_ms, at_ms + 5, count
    )


def batch(base_offset: int, events: Iterable[tuple[int, AuditEvent]]) -> bytes:
    records = [
        Record(0, event.end_ms, None, encode_event(event, SOURCE, UUID(int=number)))
        for number, event in events
    ]
    return build_batch(records, base_offset=base_offset, leader_epoch=0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> TieredCluster:
    """Events of three months; one was written twice."""
    found = TieredCluster(tmp_path_factory.mktemp("activity"))
    found.create_topic(AUDIT_TOPIC, partition_count=2)
    denied = replace(
        read(BOB, "orders", MARCH + 50), kind=AuditKind.DENIED, operation="Read", error="denied"
    )
    login = replace(
        read(ALICE, "", MARCH + 10),
        kind=AuditKind.AUTHENTICATE,
        operation="SCRAM-SHA-256",
        resources=(),
    )
    found.add_segment(
        AUDIT_TOPIC, [batch(0, [(1, read(BOB, "orders", MARCH - 5_000_000)), (2, login)])]
    )
    twice = [(3, read(ALICE, "orders", MARCH, 7)), (4, denied)]
    found.add_segment(AUDIT_TOPIC, [batch(2, twice), batch(4, twice)])
    found.add_segment(
        AUDIT_TOPIC,
        [
            batch(
                0,
                [
                    (5, read(ALICE, "orders", MARCH + 9_000, 3)),
                    (6, read(ALICE, "other", MARCH + 9_000)),
                    (7, read(BOB, "orders", APRIL)),
                ],
            )
        ],
        partition=1,
    )
    return found


def rows(spark: SparkSession, cluster: TieredCluster, **wanted: object) -> list[tuple[object, ...]]:
    request = ActivityRequest(**cluster.options, **wanted)  # type: ignore[arg-type]
    return [tuple(row) for row in activity(spark, request).collect()]


def test_who_read_a_topic_in_a_month(spark: SparkSession, cluster: TieredCluster) -> None:
    """Each event once, however often it was written, and no others."""
    found = rows(spark, cluster, kind="consume", resource="orders", from_ms=MARCH, until_ms=APRIL)
    first, last = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (MARCH, MARCH + 9_005))
    assert [row[:9] for row in found] == [
        ("User:alice", "10.0.0.1", "app", "consume", "Fetch", "Topic", "orders", "success", 10)
    ]
    times = [time.astimezone(UTC) for time in found[0][9:]]  # type: ignore[attr-defined]
    assert times == [first, last]


@pytest.mark.slow  # the query of the test above without its conditions
def test_whatever_is_not_asked_for_counts(spark: SparkSession, cluster: TieredCluster) -> None:
    found = {(row[0], row[4], row[6], row[7]): row[8] for row in rows(spark, cluster)}
    assert found == {
        ("User:alice", "Fetch", "orders", "success"): 10,
        ("User:alice", "Fetch", "other", "success"): 1,
        ("User:alice", "SCRAM-SHA-256", "", "success"): 1,
        ("User:bob", "Fetch", "orders", "success"): 2,
        ("User:bob", "Read", "orders", "denied"): 1,
    }
    assert [row[4] for row in rows(spark, cluster, user="User:bob", kind="denied")] == ["Read"]


@pytest.mark.slow  # The parts are tested above and in ``tests/node/audit``.
def test_the_job_shows_what_clients_did_to_a_node(tmp_path: Path) -> None:
    config = {
        "audit.enable": "true",
        "audit.event.types": "management,consume,produce",
        "remote.task.interval.ms": "50",
    }
    with NodeProcess(tmp_path / "data", config=config) as node:
        admin = Peer("tidelog", node.port, client_id=b"admin")
        admin.create_topic("orders")
        admin.until(
            lambda: admin.call("metadata", 12, topics=[{"name": AUDIT_TOPIC}], **NO_CREATION),
            lambda answer: len(answer["topics"][0]["partitions"]) == 4,
        )
        configs = [{"name": "segment.ms", "config_operation": 0, "value": "1"}]
        resource = {"resource_type": 2, "resource_name": AUDIT_TOPIC, "configs": configs}
        admin.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)
        admin.produce("orders", batch_of(b"x"))
        admin.fetch("orders", 0)
        time.sleep(5)
        admin.close()
    command = [sys.executable, "-m", "tidelog_cli.spark_jobs.activity", "--data-dir"]
    done = subprocess.run(
        [*command, str(tmp_path / "data"), "--topic", "orders", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {one["operation"] for one in json.loads(done.stdout)}
    assert found == {"CreateTopics", "Produce", "Fetch"}
