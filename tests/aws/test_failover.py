"""A leader that dies where leases and leaderships are kept in DynamoDB."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from tests.aws.test_dynamodb_store import new_table
from tests.support.batches import batch_of
from tests.support.replicated_cluster import replicated_cluster
from tests.support.stalling_node import STALL_SECONDS, StallingNode
from tests.support.wire_client import WireClient

PARTITIONS = 6


@pytest.mark.slow  # tests/node/membership asks the same on SQLite
@pytest.mark.usefixtures("aws_credentials")
def test_a_killed_leaders_partitions_take_writes_again(
    tmp_path: Path, dynamodb_local_endpoint: str
) -> None:
    table = asyncio.run(new_table(dynamodb_local_endpoint))
    store = f"dynamodb://{table}?region=us-east-1&endpoint={dynamodb_local_endpoint}"
    with replicated_cluster(tmp_path, metadata_store=store) as cluster:
        cluster.create("t", partitions=PARTITIONS)
        acked = cluster.produce("t", [b"%d" % number for number in range(20)])
        assert len(acked) == 20
        cluster.nodes[1].kill()
        killed = time.monotonic()
        missing = set(range(PARTITIONS))
        with WireClient(cluster.nodes[2].port) as two, WireClient(cluster.nodes[3].port) as three:
            while missing:
                assert time.monotonic() - killed < 60, missing
                for partition in sorted(missing):
                    for client in (two, three):
                        answer = client.produce("t", batch_of(b"x"), partition=partition)
                        if answer.error_code is ErrorCode.none:
                            missing.discard(partition)
                            break
                time.sleep(0.02)
        print(f"writes taken again after {time.monotonic() - killed:.2f} s")
        found = cluster.consume("t", 20)
        assert acked.items() <= found.items()
        cluster.nodes[1].start()
        cluster.wait_isr("t", {1, 2, 3})
        assert cluster.nodes[2].stop() == 0
        assert "leaderships kept" not in cluster.nodes[2].log


@pytest.mark.slow  # tests/node/membership asks the same on SQLite
@pytest.mark.usefixtures("aws_credentials")
def test_a_node_whose_loop_is_busy_for_a_lease_keeps_it(
    tmp_path: Path, dynamodb_local_endpoint: str
) -> None:
    table = asyncio.run(new_table(dynamodb_local_endpoint))
    busy = StallingNode(
        tmp_path / "node",
        metadata_store=f"dynamodb://{table}?region=us-east-1&endpoint={dynamodb_local_endpoint}",
        config={"broker.session.timeout.ms": "3000"},
        environment={STALL_SECONDS: "3.2"},
    )
    with busy as node, WireClient(node.port) as client:
        admin = AdminClient({"bootstrap.servers": node.address})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
        assert client.produce("t", batch_of(b"before")).error_code is ErrorCode.none
        node.stall()
        time.sleep(0.1)
        assert client.produce("t", batch_of(b"while")).error_code is ErrorCode.none
        assert "fenced" not in node.log
