"""A node that drains counts as a replica where it is needed, until it stops."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from tidelog_core.metadata.location import open_metadata_store
from tidelog_core.metadata.records import BrokerLease, StepDownReason, broker_lease_key

from tests.support.batches import batch_of
from tests.support.replicated_cluster import MEMORY_DIR, replicated_cluster, stopped
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient

DRAINING, STAYING, SILENT = 1, 2, 3
REPLICAS = [[DRAINING, STAYING], [STAYING, DRAINING], [DRAINING, SILENT]]
LONG_LEASE = {"broker.session.timeout.ms": "9000", "replica.lag.time.max.ms": "60000"}

NEEDS_BOTH = {"min.insync.replicas": "2"}
LOADED_SECONDS = 3.0
QUEUED_MAX = 20_000
TOLD_SECONDS = 0.5  # until everyone has read the lease
DONE_OR_LATE = {ErrorCode.none, ErrorCode.request_timed_out}


def step_down_reason(metadata_store: str, broker_id: int) -> StepDownReason | None:
    """Return what the broker's lease says at this moment."""

    async def read() -> StepDownReason | None:
        store = open_metadata_store(metadata_store)
        try:
            item = await store.get(broker_lease_key(broker_id))
        finally:
            await store.close()
        return None if item is None else BrokerLease.from_item(item).step_down_reason

    return asyncio.run(read())


@pytest.mark.slow  # leader states are tested for the same in tests/core/replication
def test_partitions_that_need_a_draining_node_take_records_until_it_stops(tmp_path: Path) -> None:
    """With two replicas, both of them required; a third node keeps the drain from ending."""
    memory = MEMORY_DIR if MEMORY_DIR.is_dir() else tmp_path
    with TemporaryDirectory(dir=memory) as quick:
        location = f"sqlite://{quick}/metadata.db"
        with replicated_cluster(tmp_path, metadata_store=location, config=LONG_LEASE) as cluster:
            admin = AdminClient({"bootstrap.servers": cluster.addresses})
            new = NewTopic("t", 3, replica_assignment=REPLICAS, config=NEEDS_BOTH)
            admin.create_topics([new])["t"].result(60)
            draining, staying = cluster.nodes[DRAINING], cluster.nodes[STAYING]
            eventually(
                lambda: cluster.leader("t", 1, by=staying) == STAYING, "everyone knows the topic"
            )
            load = cluster.producer(acks=1, **{"enable.idempotence": False, "linger.ms": 0})
            with stopped(cluster.nodes[SILENT]), WireClient(staying.port) as client:
                os.kill(draining.pid, signal.SIGTERM)
                eventually(
                    lambda: (
                        cluster.leader("t", 0, by=staying) == STAYING
                        and step_down_reason(location, DRAINING) is StepDownReason.DRAINING
                    ),
                    "it drains",
                )
                time.sleep(TOLD_SECONDS)
                ends_at = time.monotonic() + LOADED_SECONDS
                while time.monotonic() < ends_at:
                    # So that a follower is behind whenever it is looked at.
                    for number in (0, 1) * (500 if len(load) < QUEUED_MAX else 0):
                        load.produce("t", bytes(1000), partition=number)
                    load.poll(0)
                    for number in (0, 1):
                        answer = client.produce("t", batch_of(b"1"), partition=number, acks=-1)
                        assert answer.error_code in DONE_OR_LATE, number
                assert answer.error_code is ErrorCode.none
                assert draining.process is not None
                assert draining.process.poll() is None, "it has stopped too early to tell"
            assert draining.process.wait(30) == 0
